"""Plays a trace against an OpenAI-compatible server and measures what a client sees."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from .serve_trace import Session, Turn


@dataclass(slots=True)
class Sample:
    """One request: when it was sent, when each piece came, and what the server says it cost."""

    sent_s: float
    pieces_s: list[float] = field(default_factory=list[float])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What the clients of one server saw. Gaps are between pieces of a stream; `admitting`: those during which another
    request waited for its first token. Goodput counts generated tokens of requests that kept both limits.
    """

    server: str
    n_requests: int
    duration_s: float
    first_token_p50_s: float
    first_token_p99_s: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_admitting_p50_ms: float
    gap_admitting_p99_ms: float
    tokens_per_s: float
    goodput_tokens_per_s: float
    cache_hit_rate: float
    prompt_tokens: int  # of all requests, from the cache or not: templates differ in what they show of tools


async def play(url: str, sessions: Sequence[Session], n_warm: int = 1) -> list[Sample]:
    """Sends every session at its time; `n_warm` short requests before are not counted."""
    async with httpx.AsyncClient(
        base_url=url, timeout=None, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    ) as client:
        for _ in range(n_warm):
            await _ask(client, Turn(({"role": "user", "content": "Hello"},), 4))
        begun_s = time.perf_counter()
        played = await asyncio.gather(*(_play_session(client, session, begun_s) for session in sessions))
        return [sample for samples in played for sample in samples]


async def _play_session(client: httpx.AsyncClient, session: Session, begun_s: float) -> list[Sample]:
    await asyncio.sleep(max(0.0, begun_s + session.start_s - time.perf_counter()))
    return [await _ask(client, turn) for turn in session.turns]


async def _ask(client: httpx.AsyncClient, turn: Turn) -> Sample:
    body: dict[str, Any] = {
        "model": "default",
        "messages": turn.messages,
        "max_tokens": turn.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if turn.tools:
        body["tools"] = turn.tools
    sample = Sample(time.perf_counter())
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            await response.aread()
            raise RuntimeError(f"{response.status_code}: {response.text[:300]}")
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                _note(json.loads(line[6:]), sample)
    return sample


def _note(chunk: dict[str, Any], sample: Sample) -> None:
    deltas: list[dict[str, Any]] = [choice["delta"] for choice in chunk.get("choices") or []]
    if any(delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content") for delta in deltas):
        sample.pieces_s.append(time.perf_counter())
    usage: dict[str, Any] | None = chunk.get("usage")
    if usage:
        sample.prompt_tokens = usage["prompt_tokens"]
        sample.completion_tokens = usage["completion_tokens"]
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def report(server: str, samples: Sequence[Sample], first_token_limit_s: float, gap_limit_ms: float) -> ServeReport:
    """The numbers of one server."""
    answered = [sample for sample in samples if sample.pieces_s]
    first = [sample.pieces_s[0] - sample.sent_s for sample in answered]
    gaps, admitting = _gaps(answered)
    duration_s = max(s.pieces_s[-1] for s in answered) - min(s.sent_s for s in answered)
    good = [s for s in answered if _is_good(s, first_token_limit_s, gap_limit_ms)]
    return ServeReport(
        server=server,
        n_requests=len(samples),
        duration_s=duration_s,
        first_token_p50_s=percentile(first, 50),
        first_token_p99_s=percentile(first, 99),
        gap_p50_ms=percentile(gaps, 50) * 1e3,
        gap_p99_ms=percentile(gaps, 99) * 1e3,
        gap_admitting_p50_ms=percentile(admitting, 50) * 1e3,
        gap_admitting_p99_ms=percentile(admitting, 99) * 1e3,
        tokens_per_s=sum(s.completion_tokens for s in samples) / duration_s,
        goodput_tokens_per_s=sum(s.completion_tokens for s in good) / duration_s,
        cache_hit_rate=sum(s.cached_tokens for s in samples) / max(1, sum(s.prompt_tokens for s in samples)),
        prompt_tokens=sum(s.prompt_tokens for s in samples),
    )


def _is_good(sample: Sample, first_token_limit_s: float, gap_limit_ms: float) -> bool:
    gaps = [b - a for a, b in zip(sample.pieces_s, sample.pieces_s[1:], strict=False)]
    return sample.pieces_s[0] - sample.sent_s <= first_token_limit_s and percentile(gaps, 99) * 1e3 <= gap_limit_ms


def _gaps(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """(all gaps, those that overlap the time in which another request waited for its first token)."""
    waits = [(i, sample.sent_s, sample.pieces_s[0]) for i, sample in enumerate(samples)]
    gaps: list[float] = []
    admitting: list[float] = []
    for i, sample in enumerate(samples):
        for begin, end in zip(sample.pieces_s, sample.pieces_s[1:], strict=False):
            gaps.append(end - begin)
            if any(other != i and begin < until and since < end for other, since, until in waits):
                admitting.append(end - begin)
    return gaps, admitting


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` of the values do not exceed; 0 for none."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]

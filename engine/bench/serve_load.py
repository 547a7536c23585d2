"""A client of its own process: streams of text completions at once, and what they get per second while all are live.

Every token of the server's vocabulary must stand for a text with one space in front (random_files.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`tokens_per_s` over all streams, between the last one's first token and the first one's end."""

    n_streams: int
    tokens_per_s: float
    window_s: float
    window_tokens: int
    first_token_s: float  # the last stream's
    longest_gap_ms: float  # inside the window


async def load(url: str, n_streams: int, context_tokens: int, n_tokens: int, vocab: int) -> LoadReport:
    """Asks for `n_tokens` after a prompt of `context_tokens` random ids, on every stream at the same time."""
    begun_s = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:
        asked = (_stream(client, prompt_ids(r, context_tokens, vocab), n_tokens) for r in range(n_streams))
        streams = await asyncio.gather(*asked)
    begin, end = max(s[0][0] for s in streams), min(s[-1][0] for s in streams)
    if end <= begin:
        raise RuntimeError("no moment had all streams live: ask for more tokens")
    inside = [[piece for piece in s if begin < piece[0] <= end] for s in streams]
    n_inside = sum(n for pieces in inside for _, n in pieces)
    gaps = [b[0] - a[0] for pieces in inside for a, b in zip(pieces, pieces[1:], strict=False)]
    longest_s = max(gaps, default=0.0)
    return LoadReport(n_streams, n_inside / (end - begin), end - begin, n_inside, begin - begun_s, longest_s * 1e3)


def prompt_ids(stream: int, n: int, vocab: int) -> list[int]:
    """The prompt of a stream: the same for whoever asks."""
    dice = random.Random(stream)
    return [dice.randrange(vocab) for _ in range(n)]


async def _stream(client: httpx.AsyncClient, prompt: list[int], n_tokens: int) -> list[tuple[float, int]]:
    """(time, tokens) of every piece."""
    body = {"model": "default", "prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    pieces: list[tuple[float, int]] = []
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        if response.status_code != 200:
            await response.aread()
            raise RuntimeError(f"{response.status_code}: {response.text[:300]}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                n = _n_tokens(json.loads(line[6:]))
                if n:
                    pieces.append((time.perf_counter(), n))
    if sum(n for _, n in pieces) != n_tokens:
        raise RuntimeError(f"{sum(n for _, n in pieces)} tokens came for {n_tokens}")
    return pieces


def _n_tokens(chunk: dict[str, Any]) -> int:
    return sum((choice.get("text") or "").count(" ") for choice in chunk.get("choices") or [])


def main() -> None:
    """The command line that `bench serve --random-weights` uses; prints the report as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    for name in ("streams", "context", "tokens", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    found = asyncio.run(load(options.url, options.streams, options.context, options.tokens, options.vocab))
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()

"""`bench serve`: what it sends and how it counts."""

from __future__ import annotations

import asyncio

from pointcode_local.engine.bench.serve_run import Sample, percentile, play, report
from pointcode_local.engine.bench.serve_trace import agent, shared_prefix
from pointcode_local.engine.chat_model import LocalChatModel

from .kit import serving


def test_the_recorded_agent_repeats_its_conversation_turn_by_turn() -> None:
    first, second = agent(2, 0.5)
    assert (first.start_s, second.start_s) == (0.0, 0.5)
    assert len(first.turns) == 8
    for before, after in zip(first.turns, first.turns[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.messages[-1]["role"] in ("user", "tool")
    assert first.turns[0].messages[0] == second.turns[0].messages[0]  # the system prompt is shared
    assert first.turns[-1].messages != second.turns[-1].messages
    assert [session.turns for session in agent(1, 0.5, n_turns=3)] == [first.turns[:3]]


def test_arrivals_are_the_same_for_every_server() -> None:
    assert shared_prefix(5, 2.0, seed=1) == shared_prefix(5, 2.0, seed=1)
    assert shared_prefix(5, 2.0, seed=1) != shared_prefix(5, 2.0, seed=2)


def test_gaps_count_as_admitting_while_another_request_waits_for_its_first_token() -> None:
    running = Sample(0.0, [1.0, 1.1, 1.2, 1.9, 2.0], prompt_tokens=100, cached_tokens=0, completion_tokens=5)
    admitted = Sample(1.25, [1.85], prompt_tokens=100, cached_tokens=80, completion_tokens=1)
    found = report("x", [running, admitted], first_token_limit_s=0.7, gap_limit_ms=1000)
    assert round(found.gap_admitting_p50_ms) == 700
    assert round(found.gap_p50_ms) == 100
    assert round(found.first_token_p50_s, 3) == 0.8
    assert found.cache_hit_rate == 0.4
    assert round(found.tokens_per_s, 6) == 3.0
    assert round(found.goodput_tokens_per_s, 6) == 0.5  # the running one's first token came too late


def test_a_percentile_of_few_values_is_one_of_them_or_zero() -> None:
    assert percentile([], 99) == 0.0
    assert percentile([3.0], 50) == 3.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_a_trace_is_played_against_a_running_server(model: LocalChatModel) -> None:
    sessions = shared_prefix(4, 1000.0, seed=0, n_rules=1, max_tokens=8)

    async def main() -> list[Sample]:
        async with serving(model) as url:
            return await play(url, sessions)

    samples = asyncio.run(main())
    assert [sample.completion_tokens for sample in samples] == [8] * 4
    found = report("ours", samples, 60.0, 60_000.0)
    assert found.n_requests == 4
    assert found.goodput_tokens_per_s == found.tokens_per_s > 0

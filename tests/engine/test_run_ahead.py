"""Steps that are launched before the results of the last one have come change nothing but the time between steps.

A backend whose launched steps are computed when they are collected stands in for a device; the model is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from pointcode_local.engine import _native
from pointcode_local.engine._native import DeferredBackend, Notice, RowEnd, SamplingConfig, TokenFlag
from pointcode_local.engine.assembly import cpu_backend, cpu_schedules, kv_geometry
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.kv_cache import KvCache
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.parts import EngineParts
from pointcode_local.engine.types import Grammar, Request, SamplingParams, TokensDecoded

from .desks import KINDS, VOCAB, Desk, answer_queries, watched
from .engines import OPTIONS, collect, opened, prompt


@pytest.fixture(scope="module")
def cpu(files: ModelFiles) -> _native.CpuBackend:
    kv = KvCache(kv_geometry(files.config), 32, 0)
    return cpu_backend(files.weights, kv, cpu_schedules(files.config, 1))


def test_rows_of_all_kinds_get_the_same_records_as_without(cpu: _native.CpuBackend) -> None:
    ahead, behind = Desk.over(cpu), Desk.over(cpu, ahead=False)
    for desk in (ahead, behind):
        for i, (n_tokens, sampling, stop) in enumerate(KINDS):
            desk.add(i + 1, prompt(i, 1), n_tokens, [i], sampling, stop)
        desk.run()
        desk.service.close()
    assert ahead.records == behind.records
    assert {r[-1][2] for r in ahead.records.values()} >= {TokenFlag.END_STOP}
    assert ahead.n_ahead > 30


def test_it_can_be_switched_off(cpu: _native.CpuBackend) -> None:
    desk = Desk.over(cpu)
    desk.service.set_run_ahead(False)
    desk.add(1, prompt(1, 1), 20, [0])
    desk.run()
    assert desk.n_ahead == 0
    desk.service.close()


def test_steps_run_ahead_past_drafts_that_keep_being_wrong(cpu: _native.CpuBackend) -> None:
    """The history holds every three tokens of the text to come, each time followed by another token."""
    n, length = 60, 480

    def decoded(history: list[int], *, drafts: bool) -> Desk:
        desk = Desk.over(cpu)
        desk.service.set_drafts(drafts)
        desk.add(1, history, n, range(16), SamplingConfig(temperature=1.0, seed=3))
        desk.run()
        desk.service.close()
        return desk

    lead = [VOCAB - 3, VOCAB - 2, VOCAB - 1]
    text = decoded([0] * (length - 3) + lead, drafts=False).tokens(1)
    known = [*lead, *text]
    wrong = [token for at in range(3, len(known)) for token in (*known[at - 3 : at], (known[at] + 1) % VOCAB)]
    desk = decoded(([0] * length + wrong + [1] + lead)[-length:], drafts=True)
    assert desk.tokens(1) == text
    assert 0 <= desk.service.accepted <= desk.service.drafted / 2
    assert desk.service.drafted > 0
    assert desk.n_ahead > 0  # how many depends on how long steps took


def test_while_the_device_is_shared_steps_wait_for_each_other(cpu: _native.CpuBackend) -> None:
    alone = Desk.over(cpu, ahead=False)
    alone.add(1, prompt(1, 1), 40, [0])
    alone.run()
    desk = Desk.over(cpu)
    desk.add(1, prompt(1, 1), 40, [0])
    desk.service.set_shared(True)
    desk.run_steps(20, [1])
    assert desk.n_ahead == 0
    desk.service.set_shared(False)
    desk.run()
    assert desk.n_ahead > 0
    assert desk.records == alone.records
    for each in (alone, desk):
        each.service.close()


def test_no_step_is_launched_that_is_known_to_be_in_vain(cpu: _native.CpuBackend) -> None:
    desk = Desk.over(cpu)
    desk.add(1, prompt(1, 1), 20, [0])
    desk.run()
    assert (desk.service.steps, desk.n_ahead) == (20, 19)
    desk.service.close()


def test_the_step_after_a_stop_is_dropped_and_the_others_keep_theirs(cpu: _native.CpuBackend) -> None:
    alone = Desk.over(cpu)
    alone.add(1, prompt(2, 1), 30, [0])
    alone.add(2, prompt(1, 1), 30, [1])
    alone.run()
    stop_at = next(i for i in range(5, 30) if alone.tokens(1)[i] not in alone.tokens(1)[:i])
    desk = Desk.over(cpu)
    desk.add(1, prompt(2, 1), 30, [0], stop=[alone.tokens(1)[stop_at]])
    desk.add(2, prompt(1, 1), 30, [1])
    desk.run()
    assert desk.tokens(1) == alone.tokens(1)[:stop_at]
    assert desk.tokens(2) == alone.tokens(2)
    assert desk.service.steps == 30  # no token of the second row was computed twice
    views = {view[0]: view for view in desk.service.rows()}
    assert views[1][1:4] == (RowEnd.STOP, stop_at + 1, stop_at + 1)  # what was dropped does not count as cached
    for each in (alone, desk):
        each.service.close()


def test_a_row_out_of_pages_waits_and_goes_on_as_if_it_had_not(cpu: _native.CpuBackend) -> None:
    whole = Desk.over(cpu)
    whole.add(1, prompt(1, 1), 90, [0, 1])
    whole.run()
    desk = Desk.over(cpu)
    desk.add(1, prompt(1, 1), 90, [0])
    desk.add(2, prompt(2, 1), 130, [2, 3, 4])
    desk.run_until(lambda: desk.ended(2))
    assert desk.service.wait_notices(5.0) & Notice.PAGES
    assert desk.tokens(1) == whole.tokens(1)[:64]
    desk.service.set_pages(1, 0, np.asarray([0, 1], np.int32))
    desk.run_until(lambda: desk.ended(1))
    assert desk.tokens(1) == whole.tokens(1)
    for each in (whole, desk):
        each.service.close()


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_a_token_that_calls_for_a_mask_is_followed_by_a_masked_one(cpu: _native.CpuBackend, penalty: float) -> None:
    """The step under way was not masked: what it gave the row is dropped, and the row goes on from the same place."""
    sampling = SamplingConfig(temperature=1.0, seed=3, repetition_penalty=penalty)
    found: list[Desk] = []
    for ahead in (True, False):
        desk = Desk.over(cpu, ahead=ahead)
        desk.add(1, prompt(1, 1), 50, [0], sampling, watch=watched(range(0, VOCAB, 4)))
        desk.add(2, prompt(2, 1), 60, [1])
        desk.service.resume()
        n_asked = 0
        while not (desk.ended(1) and desk.ended(2)):
            desk.read()
            n_asked += answer_queries(desk, 4)
        assert desk.service.park(5.0)
        assert n_asked > 5
        found.append(desk)
    assert found[0].records == found[1].records
    assert found[0].n_ahead > 10
    for desk in found:
        desk.service.close()


class Logits:
    """Python's logits: the next token is token + 1, but what `change` makes of them; notes what it was asked."""

    def __init__(self, change: Callable[[list[int], np.ndarray], None]) -> None:
        self.change = change

    def __call__(self, tokens: np.ndarray, positions: np.ndarray, pages: object) -> np.ndarray:
        logits = np.zeros((len(tokens), VOCAB), np.float32)
        logits[np.arange(len(tokens)), (tokens + 1) % VOCAB] = 5.0
        self.change(positions.tolist(), logits)
        return logits


def unchanged(positions: list[int], logits: np.ndarray) -> None:
    pass


def over_logits(change: Callable[[list[int], np.ndarray], None]) -> Desk:
    return Desk.over(_native.LogitsBackend("counting", VOCAB, Logits(change)))


def test_a_row_with_a_nan_ends_alone_although_its_next_step_has_been_launched() -> None:
    def change(positions: list[int], logits: np.ndarray) -> None:
        for row, position in enumerate(positions):
            if position == 110:
                logits[row, 3] = np.nan

    desk = over_logits(change)
    desk.add(1, [10] * 101, 30, [0, 1, 2])  # position 110 after ten tokens
    desk.add(2, [50] * 3, 40, [3, 4])
    desk.run()
    assert desk.tokens(1) == list(range(11, 21))
    assert desk.records[1][-1][2] == TokenFlag.END_NAN
    assert desk.tokens(2) == list(range(51, 91))
    assert desk.n_ahead > 30
    desk.service.close()


def test_a_row_cancelled_in_the_middle_of_a_step_ends_and_the_others_go_on() -> None:
    def change(positions: list[int], logits: np.ndarray) -> None:
        if 110 in positions:
            desk.service.cancel(1)

    desk = over_logits(change)
    desk.add(1, [10] * 101, 30, [0, 1, 2])
    desk.add(2, [50] * 3, 40, [3, 4])
    desk.run_until(lambda: desk.ended(2))
    ends = {request: end for request, end, *_ in desk.service.rows()}
    assert ends == {1: RowEnd.CANCELLED, 2: RowEnd.LENGTH}
    assert desk.tokens(1) in (list(range(11, 22)), list(range(11, 23)))  # with what was under way, or without
    assert desk.tokens(2) == list(range(51, 91))
    desk.service.close()


def test_a_failure_while_another_step_is_under_way_ends_all_rows_once_and_the_next_backend_works() -> None:
    def change(positions: list[int], logits: np.ndarray) -> None:
        if 12 in positions:
            raise ValueError("the card is gone")

    desk = over_logits(change)
    desk.add(1, [10] * 3, 30, [0])
    desk.add(2, [50] * 3, 40, [1])
    desk.service.resume()
    while not (desk.ended(1) and desk.ended(2)):
        desk.read()
    assert desk.service.wait_notices(5.0) & Notice.FAILED
    assert "the card is gone" in desk.service.error
    assert desk.service.park(5.0)
    assert desk.read() == 0
    assert [desk.records[r][-1][2] for r in (1, 2)] == [TokenFlag.END_BACKEND] * 2
    assert desk.tokens(1) == list(range(11, 21))
    for request in (1, 2):
        desk.service.remove_row(request)
    desk.backend = DeferredBackend(_native.LogitsBackend("new", VOCAB, Logits(unchanged)))
    desk.service.set_backend(desk.backend)
    desk.add(3, [70], 20, [0])
    desk.run_until(lambda: desk.ended(3))
    assert desk.tokens(3) == list(range(71, 91))
    desk.service.close()


def test_closing_waits_for_what_is_under_way() -> None:
    desk = over_logits(unchanged)
    desk.add(1, [10], 200, [0, 1, 2, 3])
    desk.service.resume()
    while not desk.read():
        pass
    desk.service.close()
    assert isinstance(desk.backend, DeferredBackend) and desk.backend.n_under_way == 0


def test_a_slow_reader_loses_nothing(cpu: _native.CpuBackend) -> None:
    desk = Desk.over(cpu, ring=32)
    desk.add(1, prompt(1, 1), 60, [0])
    desk.service.resume()
    while desk.service.steps < 16:  # then the ring has no room for a step of 8 rows and their possible errors
        pass
    assert desk.service.wait_notices(0.05) == 0
    desk.run()
    assert len(desk.tokens(1)) == 60
    desk.service.close()


def test_rows_join_and_leave_for_200_steps_without_changing_each_others_tokens(cpu: _native.CpuBackend) -> None:
    dice = np.random.default_rng(0)
    desk = Desk.over(cpu)
    free, live, n_started = list(range(16)), dict[int, list[int]](), 0
    while desk.service.steps < 200 or live:
        for request, end, *_ in desk.service.rows():
            if end != RowEnd.RUNNING:
                desk.service.remove_row(request)
                free += live.pop(request)
        while desk.service.steps < 200 and len(live) < 8 and len(free) >= 2:
            n_started += 1
            live[n_started] = [free.pop(0), free.pop(0)]  # pages that rows left behind, the latest last
            start_row(desk, n_started, live[n_started])
        desk.run_steps(int(dice.integers(1, 9)), list(live))
    assert n_started > 15 and desk.n_ahead > 60
    alone = Desk.over(cpu, ahead=False)
    for request in range(1, n_started + 1):
        start_row(alone, request, [0, 1])
        alone.run_steps(1000, [request])
        alone.service.remove_row(request)
    assert desk.records == alone.records
    for each in (alone, desk):
        each.service.close()


def start_row(desk: Desk, request: int, pages: list[int]) -> None:
    """The row of this number, always the same: greedy or sampled, 5 to 68 tokens."""
    sampling = SamplingConfig(temperature=float(request % 2), seed=request, top_p=0.9)
    desk.add(request, prompt(request, 1), 5 + request * 29 % 64, pages, sampling, stop=range(0, VOCAB, 64))


# ------------------------------------------------------------------ through the whole engine
def ahead(parts: EngineParts) -> EngineParts:
    return replace(parts, make_backend=lambda: DeferredBackend(parts.make_backend()))


def same(parts: EngineParts) -> EngineParts:
    return parts


@pytest.mark.parametrize("drafts", [False, True])
def test_requests_at_once_get_the_same_text_with_grammars_and_drafts(files: ModelFiles, drafts: bool) -> None:
    loop = prompt(3, 5) * 30
    requests = [
        Request(loop, 120),
        Request(prompt(4, 70), 90, SamplingParams(temperature=1.0, seed=7, top_p=0.9, n_logprobs=2)),
        Request(prompt(5, 70), 60, grammar=Grammar("lark", "start: /[a-z ]{5,40}/")),
        Request(loop[:77], 61, stop_ids=frozenset(range(20, 60))),
    ]

    async def main(engine: Engine) -> list[object]:
        results = await asyncio.gather(*(collect(engine, request) for request in requests))
        return [(ids, end.reason) for ids, end in results]

    options = replace(OPTIONS, limits=ControlLimits(chunk_tokens=64, drafts=drafts))
    found: list[list[object]] = []
    for change in (ahead, same):
        with opened(files, options, change) as engine:
            found.append(asyncio.run(main(engine)))
    assert found[0] == found[1]


def test_requests_that_are_dropped_at_any_moment_leave_no_page_behind(files: ModelFiles) -> None:
    with opened(files, OPTIONS, ahead) as engine:

        async def dropped(seed: int) -> None:
            async with aclosing(engine.stream(Request(prompt(seed, 90), 200))) as events:
                n = 0
                async for event in events:
                    n += isinstance(event, TokensDecoded)
                    if n > seed % 5:
                        return

        async def main() -> None:
            kept = asyncio.create_task(collect(engine, Request(prompt(99, 90), 100)))
            await asyncio.gather(*(dropped(seed) for seed in range(10)))
            alone = await collect(engine, Request(prompt(99, 90), 100))
            assert (await kept)[0] == alone[0]

        asyncio.run(main())

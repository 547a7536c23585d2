"""Decode steps that are launched before the tokens of the last one have come give the same tokens as without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pointcode_local.engine._native import Notice, RowEnd, SamplingConfig, StepRow, TokenFlag
from pointcode_local.engine.kv_cache import FULL, SLIDING, SequencePages
from pointcode_local.engine.scheduler import ORDER_NAMES
from pointcode_local.engine.weights import ModelWeights

from ..engine.desks import KINDS, VOCAB, Desk, answer_queries, watched
from .support import Bed, needs_gpu, prompt_of

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def bed(weights: ModelWeights) -> Bed:
    return Bed.of(weights)


def decode(bed: Bed, prompts: list[list[int]], n: int, sampling: SamplingConfig, *, ahead: bool) -> list[list[int]]:
    started = [bed.start(prompt, n + 1, sampling=sampling) for prompt in prompts]
    _, tokens = bed.backend.run([row for _, row in started], n, ahead)
    for pages, _ in started:
        pages.release()
    return tokens.T.tolist()


@pytest.mark.parametrize("order", ORDER_NAMES)
def test_every_order_gives_the_same_tokens_ahead(weights: ModelWeights, order: str) -> None:
    bed = Bed.of(weights, order)
    for n_rows in (1, 2, 3, 8):
        prompts = [prompt_of(40 + 23 * r, seed=r) for r in range(n_rows)]
        for sampling in (SamplingConfig(), SamplingConfig(temperature=1.0, top_p=0.9, top_k=40, seed=n_rows)):
            runs = [decode(bed, prompts, 70, sampling, ahead=ahead) for ahead in (True, False)]
            assert runs[0] == runs[1]


def test_the_tag_may_wrap_while_a_step_is_under_way(bed: Bed) -> None:
    wanted = decode(bed, [prompt_of(20, seed=3)], 20, SamplingConfig(), ahead=False)
    bed.backend.set_step((1 << 24) - 8)
    assert decode(bed, [prompt_of(20, seed=3)], 20, SamplingConfig(), ahead=True) == wanted


@pytest.mark.parametrize("n_rows", [1, 3])
def test_the_kernels_that_are_timed_are_those_of_the_run(bed: Bed, n_rows: int) -> None:
    wanted = decode(bed, [prompt_of(20, seed=3)], 20, SamplingConfig(), ahead=True)
    started = [bed.start(prompt_of(30 + 40 * r, seed=r), 61) for r in range(n_rows)]
    rows = [row for _, row in started]
    first = np.array([(row.token, row.position) for row in rows], np.int32).T
    tokens = bed.backend.run(rows, 60)[1]
    logits = [bed.backend.logits(r) for r in range(n_rows)]
    for (_, row), token, position in zip(started, *first.tolist(), strict=True):
        row.token, row.position = token, position
    fed = np.concatenate([first[:1], tokens[:-1]])
    assert bed.backend.time_kernels(rows, fed, first[1] + np.arange(60, dtype=np.int32)[:, np.newaxis]) > 0
    assert all(np.array_equal(bed.backend.logits(r), logits[r]) for r in range(n_rows))
    for pages, _ in started:
        pages.release()
    assert decode(bed, [prompt_of(20, seed=3)], 20, SamplingConfig(), ahead=True) == wanted


def test_steps_outside_the_pages_or_of_other_chains_are_not_timed(bed: Bed) -> None:
    pages, row = bed.start(prompt_of(30, seed=4), 4)
    for tokens, positions, problem in (
        ([[7]], [[64]], "stands at position 64"),
        ([[-1]], [[30]], "token -1"),
        ([[7, 7]], [[30, 31]], r"must be \(steps, rows\)"),
    ):
        with pytest.raises(RuntimeError, match=problem):
            bed.backend.time_kernels([row], np.array(tokens, np.int32), np.array(positions, np.int32))
    step = np.array([[7, 7]], np.int32)
    full, sliding = (np.asarray(pages.tables[group], np.int32) for group in (FULL, SLIDING))
    after = StepRow(token=7, position=30, full_pages=full, sliding_pages=sliding)
    with pytest.raises(RuntimeError, match="another chain"):
        bed.backend.time_kernels([row, after], step, np.array([[30, 32]], np.int32))
    assert bed.backend.time_kernels([row, after], step, np.array([[29, 30]], np.int32)) > 0
    pages.release()


# ------------------------------------------------------------------ through the decode service
def join(
    desk: Desk, bed: Bed, request: int, n_prompt: int, n_new: int, sampling: SamplingConfig, **more: object
) -> SequencePages:
    """A row whose prompt has been computed."""
    ids = prompt_of(n_prompt, seed=request)
    pages, _ = bed.start(ids, n_new + 1)
    tables = np.asarray(pages.tables[FULL], np.int32), np.asarray(pages.tables[SLIDING], np.int32)
    torch.cuda.synchronize()
    desk.add(request, ids, n_new, tables, sampling, **more)  # type: ignore[arg-type]
    return pages


def alone(bed: Bed, request: int, n_prompt: int, n_new: int, sampling: SamplingConfig, **more: object) -> Desk:
    """The row by itself, each step after the last."""
    desk = Desk.over(bed.backend, ahead=False)
    pages = join(desk, bed, request, n_prompt, n_new, sampling, **more)
    desk.run()
    desk.service.close()
    pages.release()
    return desk


def test_rows_of_all_kinds_that_end_at_different_steps_get_the_same_records(bed: Bed) -> None:
    found: list[Desk] = []
    for ahead in (True, False):
        desk = Desk.over(bed.backend, ahead=ahead)
        held = [
            join(desk, bed, i + 1, 60 + 5 * i, n_tokens, sampling, stop=stop)
            for i, (n_tokens, sampling, stop) in enumerate(KINDS)
        ]
        desk.run()
        desk.service.close()
        for pages in held:
            pages.release()
        found.append(desk)
    assert found[0].records == found[1].records


def test_a_row_with_a_nan_ends_alone_although_its_next_step_has_been_launched(bed: Bed) -> None:
    wanted = alone(bed, 2, 66, 60, SamplingConfig()).records[2]
    desk = Desk.over(bed.backend)
    bad, good = (join(desk, bed, request, 66, 60, SamplingConfig()) for request in (1, 2))
    bed.kv.pools[FULL].v[0, bad.tables[FULL][0]] = float("nan")
    torch.cuda.synchronize()
    desk.run()
    assert [flags for _, _, flags, _ in desk.records[1]] == [TokenFlag.END_NAN]
    assert desk.records[2] == wanted
    desk.service.close()
    bad.release()
    good.release()


def test_a_row_cancelled_at_any_moment_ends_and_the_others_go_on(bed: Bed) -> None:
    wanted = alone(bed, 1, 50, 400, SamplingConfig()), alone(bed, 2, 60, 450, SamplingConfig())
    desk = Desk.over(bed.backend)
    held = [join(desk, bed, 1, 50, 400, SamplingConfig()), join(desk, bed, 2, 60, 450, SamplingConfig())]
    desk.run_until(lambda: len(desk.records[1]) > 10)
    desk.service.resume()
    desk.service.cancel(1)
    desk.run_until(lambda: desk.ended(2))
    ends = {request: end for request, end, *_ in desk.service.rows()}
    assert ends == {1: RowEnd.CANCELLED, 2: RowEnd.LENGTH}
    assert desk.tokens(1) == wanted[0].tokens(1)[: len(desk.tokens(1))]
    assert desk.records[2] == wanted[1].records[2]
    desk.service.close()
    for pages in held:
        pages.release()


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_a_token_that_calls_for_a_mask_is_followed_by_a_masked_one(bed: Bed, penalty: float) -> None:
    sampling = SamplingConfig(temperature=1.0, seed=3, repetition_penalty=penalty)
    found: list[Desk] = []
    for ahead in (True, False):
        desk = Desk.over(bed.backend, ahead=ahead)
        held = [
            join(desk, bed, 1, 40, 100, sampling, watch=watched(range(0, VOCAB, 8))),
            join(desk, bed, 2, 50, 120, SamplingConfig()),
        ]
        desk.service.resume()
        n_asked = 0
        while not (desk.ended(1) and desk.ended(2)):
            desk.read()
            n_asked += answer_queries(desk, 8)
        assert n_asked > 5
        desk.service.close()
        for pages in held:
            pages.release()
        found.append(desk)
    assert found[0].records == found[1].records


def test_rows_join_and_leave_for_200_steps_without_changing_each_others_tokens(bed: Bed) -> None:
    """Pages of rows that have left go to those that join at once."""
    dice = np.random.default_rng(0)
    desk = Desk.over(bed.backend)
    live: dict[int, SequencePages] = {}
    n_started = 0
    while desk.service.steps < 200 or live:
        for request, end, *_ in desk.service.rows():
            if end != RowEnd.RUNNING:
                desk.service.remove_row(request)
                live.pop(request).release()
        while desk.service.steps < 200 and len(live) < 8:
            n_started += 1
            live[n_started] = join(desk, bed, *row_of(n_started), stop=range(0, VOCAB, 64))
        desk.run_steps(int(dice.integers(1, 9)), list(live))
    desk.service.close()
    assert n_started > 15
    for request in range(1, n_started + 1):
        assert desk.records[request] == alone(bed, *row_of(request), stop=range(0, VOCAB, 64)).records[request]


def row_of(request: int) -> tuple[int, int, int, SamplingConfig]:
    """(request, prompt, new tokens, sampling) of the row of this number: always the same."""
    sampling = SamplingConfig(temperature=float(request % 2), seed=request, top_p=0.9)
    return request, 20 + request * 31 % 110, 5 + request * 29 % 64, sampling


def test_a_missing_producer_ends_all_rows_and_the_next_backend_works(bed: Bed) -> None:
    schedule = bed.schedules[1]
    wave = schedule.wave_names.index("L2.router")
    keep = schedule.tasks["wave"] != wave
    before = np.concatenate([[0], np.cumsum(keep)])
    broken = replace(schedule, tasks=schedule.tasks[keep], offsets=before[schedule.offsets].astype(np.int32))
    victim = bed.rebuilt([bed.schedules[0], broken])
    victim.backend.set_spin_limit(20_000)
    desk = Desk.over(victim.backend)
    held = [join(desk, victim, request, 30, 50, SamplingConfig()) for request in (1, 2)]
    desk.service.resume()
    while not (desk.ended(1) and desk.ended(2)):
        desk.read()
    assert desk.service.wait_notices(5.0) & Notice.FAILED
    assert "barrier time-out: SM" in desk.service.error
    assert [desk.records[request][-1][2] for request in (1, 2)] == [TokenFlag.END_BACKEND] * 2
    desk.service.close()
    for pages in held:
        pages.release()
    assert len(alone(bed.rebuilt(), 1, 30, 20, SamplingConfig()).tokens(1)) == 20

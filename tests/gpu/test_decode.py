"""The megakernel backend on tiny models: right, repeatable, independent of the batch, and readable when it fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine._native import RowStatus
from pointcode_local.engine.scheduler import ORDER_NAMES, ORDERS
from pointcode_local.engine.weights import ModelWeights

from .support import Bed, decode, needs_gpu, prompt_of, soak

pytestmark = needs_gpu


@pytest.fixture(scope="module", params=ORDER_NAMES)
def bed(request: pytest.FixtureRequest, weights: ModelWeights) -> Bed:
    return Bed.of(weights, request.param)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 70, 71, 129, 300])
def test_logits_after_a_prompt_agree_with_the_fp32_reference(bed: Bed, length: int) -> None:
    prompt = prompt_of(length, seed=length)
    pages, row = bed.start(prompt, 1)
    [result] = bed.backend.step([row])
    ours, wanted = torch.from_numpy(bed.backend.logits(0)), bed.reference(prompt)[-1]
    assert result.status == RowStatus.OK and result.token == int(ours.argmax())
    assert (ours - wanted).norm() / wanted.norm() < 0.05
    pages.release()


def test_greedy_tokens_are_the_references_wherever_its_margin_exceeds_the_noise(bed: Bed) -> None:
    prompt = prompt_of(50, seed=7)
    tokens = decode(bed, [prompt], 60)[:, 0].tolist()
    logits = bed.reference(prompt + tokens)[len(prompt) - 1 : -1]
    top = logits.topk(2, dim=-1)
    clear = (top.values[:, 0] - top.values[:, 1]) > 0.05 * logits.std()
    assert clear.sum() > 10
    assert [t for t, c in zip(tokens, clear, strict=True) if c] == top.indices[clear, 0].tolist()


@pytest.mark.parametrize("n_rows", [2, 3, 4, 5, 6, 7, 8])
def test_a_row_gets_the_same_tokens_alone_and_in_any_batch(bed: Bed, n_rows: int) -> None:
    prompts = [prompt_of(17 * r + 40, seed=r) for r in range(n_rows)]
    together = decode(bed, prompts, 40)
    for r, prompt in enumerate(prompts):
        assert decode(bed, [prompt], 40)[:, 0].tolist() == together[:, r].tolist()


def test_the_published_orders_give_the_same_bits(weights: ModelWeights) -> None:
    found: list[np.ndarray] = []
    for order in ORDERS:
        bed = Bed.of(weights, order)
        rows = [bed.start(prompt_of(n, seed=n), 2)[1] for n in (30, 64, 65, 129, 200)]
        bed.backend.step(rows)
        found.append(np.stack([bed.backend.logits(r) for r in range(len(rows))]))
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_the_same_seed_gives_the_same_text_whatever_else_runs(bed: Bed) -> None:
    settings = {"temperature": 1.0, "top_p": 0.95, "seed": 11}
    alone = decode(bed, [prompt_of(80, seed=1)], 60, **settings)[:, 0].tolist()
    beside = decode(bed, [prompt_of(30, seed=2), prompt_of(80, seed=1)], 60, **settings)[:, 1].tolist()
    assert alone == beside
    assert alone != decode(bed, [prompt_of(80, seed=1)], 60, **(settings | {"seed": 12}))[:, 0].tolist()


def test_the_tag_may_wrap(bed: Bed) -> None:
    wanted = decode(bed, [prompt_of(20, seed=3)], 20).tolist()
    bed.backend.set_step((1 << 24) - 8)
    assert decode(bed, [prompt_of(20, seed=3)], 20).tolist() == wanted


def test_a_row_with_a_nan_ends_alone(bed: Bed) -> None:
    prompts = [prompt_of(66, seed=4), prompt_of(66, seed=5)]
    (pages_a, row_a), (pages_b, row_b) = (bed.start(prompt, 2) for prompt in prompts)
    [alone] = bed.backend.step([row_b])
    bed.kv.pools[0].v[0, pages_a.tables[0][0]] = float("nan")
    torch.cuda.synchronize()
    bad, good = bed.backend.step([row_a, row_b])
    assert (bad.status, good.status) == (RowStatus.NAN, RowStatus.OK)
    assert good.token == alone.token
    pages_a.release()
    pages_b.release()


def test_a_missing_producer_is_reported_by_name_and_the_next_backend_works(bed: Bed) -> None:
    wanted = decode(bed, [prompt_of(20, seed=6)], 5).tolist()
    schedule = bed.schedules[0]
    wave = schedule.wave_names.index("L2.router")
    keep = schedule.tasks["wave"] != wave
    before = np.concatenate([[0], np.cumsum(keep)])
    broken = replace(schedule, tasks=schedule.tasks[keep], offsets=before[schedule.offsets].astype(np.int32))
    victim = bed.rebuilt([broken])
    victim.backend.set_spin_limit(20_000)
    with pytest.raises(RuntimeError, match=r"barrier time-out: SM \d+, warp \d+ \(.*\), task \d+ \(L\d\."):
        decode(victim, [prompt_of(20, seed=6)], 5)
    with pytest.raises(RuntimeError, match="barrier time-out"):
        decode(victim, [prompt_of(20, seed=6)], 5)
    assert decode(bed.rebuilt(), [prompt_of(20, seed=6)], 5).tolist() == wanted


def test_a_position_without_a_page_is_refused_before_the_launch(bed: Bed) -> None:
    row = _native.StepRow(token=1, position=64, full_pages=np.zeros(1, np.int32), sliding_pages=np.zeros(1, np.int32))
    with pytest.raises(RuntimeError, match="1 pages of KV group 0 and stands at position 64"):
        bed.backend.step([row])


def test_rows_come_and_go_without_changing_each_others_tokens(bed: Bed) -> None:
    assert soak(bed, 2000) > 30

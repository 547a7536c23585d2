"""The opcodes of the mixture of experts alone against NumPy in fp64, through queues and as fixed slices."""

from __future__ import annotations

import numpy as np
import pytest

from pointcode_local.engine._native import Opcode, TaskFlag, WeightKind

from .opcode_bench import Bench, Sizes
from .test_opcodes import CASES, IDS, close, ffn_norm, silu, untouched

FUSED = int(TaskFlag.FUSED_TOPK)


@pytest.fixture(params=CASES, ids=IDS)
def bench(request: pytest.FixtureRequest) -> Bench:
    sizes, n_rows = request.param
    bench = Bench(sizes, n_rows)
    bench.fill("router_logits", "normed", "residual")
    return bench


def routed(bench: Bench) -> tuple[np.ndarray, np.ndarray]:
    """(ids ascending, weights) of every row, each (R, T)."""
    s, logits = bench.sizes, bench.buffer("router_logits").astype(np.float64)
    ids = np.sort(np.argsort(-logits, axis=1, kind="stable")[:, : s.top_k], axis=1)
    scores = 1 / (1 + np.exp(-logits))
    if s.softmax_router:
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = e / e.sum(axis=1, keepdims=True)
    weights = np.take_along_axis(scores, ids, axis=1)
    return ids, weights / weights.sum(axis=1, keepdims=True) if s.norm_topk else weights


def route(bench: Bench) -> None:
    bench.run(Opcode.ROUTER_TOPK, 1, tile_count=bench.n_rows)
    bench.run(Opcode.ROUTE_FINALIZE, 1)


def pairs(bench: Bench) -> list[tuple[int, int, int]]:
    """(expert, row, slot) in the order of moe_in."""
    ids, _ = routed(bench)
    found = [(int(ids[r, t]), r, t) for r in range(bench.n_rows) for t in range(bench.sizes.top_k)]
    return sorted(found)


def hidden(bench: Bench, x: np.ndarray) -> np.ndarray:
    """(R, T, F) of the chosen experts, times their weights."""
    _, weights = routed(bench)
    gate, up = bench.w(1, WeightKind.EXPERT_GATE), bench.w(1, WeightKind.EXPERT_UP)
    out = np.zeros((bench.n_rows, bench.sizes.top_k, bench.sizes.expert_ffn))
    for expert, row, slot in pairs(bench):
        out[row, slot] = silu(gate[expert] @ x[row]) * (up[expert] @ x[row]) * weights[row, slot]
    return out


def test_router_topk_takes_the_largest_logits_in_ascending_id(bench: Bench) -> None:
    bench.poison("topk_weights")
    bench.run(Opcode.ROUTER_TOPK, 1, tile_count=bench.n_rows)
    ids, weights = routed(bench)
    assert np.array_equal(bench.buffer("topk_ids"), ids)
    close(bench.buffer("topk_weights"), weights)


def test_equal_router_logits_go_to_the_lower_expert() -> None:
    bench = Bench(Sizes(n_experts=20), 2)
    bench.buffer("router_logits")[:] = 0.5
    bench.buffer("router_logits")[1, 7] = 0.75
    bench.run(Opcode.ROUTER_TOPK, 1, tile_count=2)
    assert bench.buffer("topk_ids").tolist() == [[0, 1, 2], [0, 1, 7]]


@pytest.mark.parametrize("flags", [0, FUSED])
def test_moe_gather_groups_the_rows_by_expert(bench: Bench, flags: int) -> None:
    if not flags:
        route(bench)
    bench.poison("moe_in")
    n = bench.n_rows * bench.sizes.top_k
    for begin, end in ((0, n // 2), (n // 2, n)):
        bench.run(Opcode.MOE_GATHER, 1, tile_begin=begin, tile_count=end - begin, flags=flags)
    rows = [row for _, row, _ in pairs(bench)]
    assert np.array_equal(bench.buffer("moe_in"), bench.buffer("normed")[rows])


@pytest.mark.parametrize("flags", [0, FUSED])
def test_upgate_claims_all_units_of_all_chosen_experts(bench: Bench, flags: int) -> None:
    route(bench)
    bench.run(Opcode.MOE_GATHER, 1, tile_count=bench.n_rows * bench.sizes.top_k)
    bench.poison("moe_hidden")
    bench.run(Opcode.MOE_UPGATE_ACT_DRAIN, 1, queue=0, flags=flags)
    close(bench.buffer("moe_hidden"), hidden(bench, bench.buffer("normed").astype(np.float64)))


@pytest.mark.parametrize("flags", [TaskFlag.SLICED, TaskFlag.SLICED | TaskFlag.FUSED_TOPK | TaskFlag.FUSED_NORM])
def test_upgate_slices_cover_all_units_once(bench: Bench, flags: int) -> None:
    if not flags & FUSED:
        route(bench)
    bench.poison("moe_hidden")
    cuts = [0, 9000, 9001, 40000, 65536]
    for lo, hi in zip(cuts, cuts[1:], strict=False):
        bench.run(Opcode.MOE_UPGATE_ACT_DRAIN, 1, slice_lo=lo, slice_hi=hi, flags=int(flags))
    x = bench.buffer("normed").astype(np.float64)
    if flags & TaskFlag.FUSED_NORM:
        x = bench.normalised(bench.buffer("residual"), ffn_norm(bench, 1))
    close(bench.buffer("moe_hidden"), hidden(bench, x))


def products(bench: Bench) -> np.ndarray:
    """moe_out: (R, T, D) of the down projections."""
    down, inner = bench.w(1, WeightKind.EXPERT_DOWN), bench.buffer("moe_hidden").astype(np.float64)
    out = np.zeros((bench.n_rows, bench.sizes.top_k, bench.sizes.hidden))
    for expert, row, slot in pairs(bench):
        out[row, slot] = down[expert] @ inner[row, slot]
    return out


def test_down_claims_all_tiles_and_combine_adds_the_slots(bench: Bench) -> None:
    route(bench)
    bench.fill("moe_hidden")
    bench.poison("moe_out", "ffn_out")
    bench.run(Opcode.MOE_DOWN_DRAIN, 1, queue=0)
    close(bench.buffer("moe_out"), products(bench))
    for split in range(3):
        bench.run(Opcode.MOE_COMBINE, 1, tile_count=bench.n_rows, split=split, n_splits=3)
    close(bench.buffer("ffn_out"), products(bench).sum(axis=1))


@pytest.mark.parametrize("add", [0, int(TaskFlag.ADD_RESIDUAL)])
def test_sliced_down_sums_the_experts_of_its_tiles(bench: Bench, add: int) -> None:
    bench.fill("moe_hidden", "o_out")
    bench.poison("ffn_out")
    before = bench.buffer("residual").astype(np.float64)
    bench.run(Opcode.MOE_DOWN_DRAIN, 1, tile_begin=1, tile_count=2, flags=add | FUSED | int(TaskFlag.SLICED))
    total = products(bench).sum(axis=1)
    if not add:
        close(bench.buffer("ffn_out")[:, 16:48], total[:, 16:48])
        assert untouched(bench.buffer("ffn_out")[:, :16])
        return
    before[:, 16:48] += (bench.buffer("o_out") + total)[:, 16:48]
    close(bench.buffer("residual"), before)


def test_claimed_and_sliced_experts_give_the_same_bits() -> None:
    bench = Bench(Sizes(), 5)
    bench.fill("router_logits", "normed")
    route(bench)
    bench.run(Opcode.MOE_GATHER, 1, tile_count=15)
    bench.run(Opcode.MOE_UPGATE_ACT_DRAIN, 1, queue=0)
    claimed = bench.buffer("moe_hidden").copy()
    bench.run(Opcode.MOE_DOWN_DRAIN, 1, queue=0)
    bench.run(Opcode.MOE_COMBINE, 1, tile_count=5)
    summed = bench.buffer("ffn_out").copy()
    bench.poison("moe_hidden", "ffn_out")
    bench.run(Opcode.MOE_UPGATE_ACT_DRAIN, 1, flags=int(TaskFlag.SLICED))
    assert np.array_equal(bench.buffer("moe_hidden"), claimed)
    bench.run(Opcode.MOE_DOWN_DRAIN, 1, tile_count=4, flags=int(TaskFlag.SLICED))
    assert np.array_equal(bench.buffer("ffn_out"), summed)

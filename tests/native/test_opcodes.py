"""Every opcode alone against NumPy in fp64: random inputs, poisoned outputs, 1 to 8 rows, several models."""

from __future__ import annotations

import numpy as np
import pytest

from pointcode_local.engine._native import Opcode, TaskFlag, WeightKind

from .opcode_bench import MAX_SPLITS, PAGE, Bench, Sizes, variants

CASES = [(sizes, n_rows) for i, sizes in enumerate(variants()) for n_rows in ((1, 8) if i == 0 else (3 + i,))]
IDS = [f"model{i // 2 if i < 2 else i - 1}-{n}rows" for i, (_, n) in enumerate(CASES)]


@pytest.fixture(params=CASES, ids=IDS)
def bench(request: pytest.FixtureRequest) -> Bench:
    sizes, n_rows = request.param
    return Bench(sizes, n_rows)


def close(got: np.ndarray, expected: np.ndarray) -> None:
    """fp32 sums of a few hundred terms of size about 1."""
    assert np.all(np.isfinite(got)), "an output was not written"
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(expected).max())))


def untouched(array: np.ndarray) -> bool:
    return bool(np.all(np.isnan(array)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def ffn_norm(bench: Bench, layer: int) -> np.ndarray:
    return bench.w(layer, WeightKind.NORM_ATTN if bench.sizes.parallel_block else WeightKind.NORM_FFN)


def test_add_rmsnorm_adds_what_its_flags_say_and_normalises(bench: Bench) -> None:
    for flags, norm in (
        (0, (1, WeightKind.NORM_ATTN)),
        (TaskFlag.ADD_ATTN | TaskFlag.FFN_NORM, (1, WeightKind.NORM_FFN)),
        (TaskFlag.ADD_ATTN | TaskFlag.ADD_FFN, (1, WeightKind.NORM_ATTN)),
        (TaskFlag.ADD_FFN | TaskFlag.FINAL, (2, WeightKind.FINAL_NORM)),
    ):
        bench.fill("residual", "o_out", "ffn_out")
        bench.poison("normed")
        expected = bench.buffer("residual").copy()
        if flags & TaskFlag.ADD_ATTN:
            expected += bench.buffer("o_out")
        if flags & TaskFlag.ADD_FFN:
            expected += bench.buffer("ffn_out")
        bench.run(Opcode.ADD_RMSNORM, norm[0], tile_count=bench.n_rows, flags=int(flags))
        assert np.array_equal(bench.buffer("residual"), expected)
        close(bench.buffer("normed"), bench.normalised(expected, bench.w(*norm)))


def test_add_rmsnorm_leaves_other_rows_alone() -> None:
    bench = Bench(Sizes(), 4)
    bench.fill("residual")
    bench.poison("normed")
    bench.run(Opcode.ADD_RMSNORM, 0, tile_begin=1, tile_count=2)
    assert untouched(bench.buffer("normed")[[0, 3]]) and np.all(np.isfinite(bench.buffer("normed")[1:3]))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("flags", [0, TaskFlag.ROPE, TaskFlag.ROPE | TaskFlag.FUSED_NORM])
def test_qkv_proj_writes_queries_and_the_rows_place_in_its_pages(bench: Bench, layer: int, flags: int) -> None:
    s = bench.sizes
    bench.fill("normed", "residual")
    x = bench.buffer("normed").astype(np.float64)
    if flags & TaskFlag.FUSED_NORM:
        x = bench.normalised(bench.buffer("residual"), bench.w(layer, WeightKind.NORM_ATTN))
    before = bench.k.copy(), bench.v.copy()
    tiles = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim // 16
    bench.poison("q")
    cut = tiles // 3
    sliding = TaskFlag.SLIDING if layer == 1 else 0
    for begin, end in ((0, cut), (cut, tiles)):  # a cut inside a head
        bench.run(Opcode.QKV_PROJ, layer, tile_begin=begin, tile_count=end - begin, flags=int(flags | sliding))
    kinds = (WeightKind.Q, WeightKind.Q_BIAS), (WeightKind.K, WeightKind.K_BIAS), (WeightKind.V, WeightKind.V_BIAS)
    projected = [x @ bench.w(layer, w).T + (bench.w(layer, b) if s.bias else 0) for w, b in kinds]
    for row, position in enumerate(bench.positions):
        q, k, v = (part[row].reshape(-1, s.head_dim) for part in projected)
        if flags & TaskFlag.ROPE:
            q, k = bench.rotated(q, position), bench.rotated(k, position)
        close(bench.buffer("q")[row], q)
        page, place = bench.pages[row][position // PAGE], position % PAGE
        close(bench.k[layer, page, :, place], k)
        close(bench.v[layer, page, :, place], v)
        for cache, old in ((bench.k, before[0]), (bench.v, before[1])):
            old[layer, page, :, place] = cache[layer, page, :, place]
    assert np.array_equal(bench.k, before[0]) and np.array_equal(bench.v, before[1]), "another place was written"


def attention(bench: Bench, layer: int, row: int, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(o, m, l) over keys [begin, end): o is not divided by l."""
    s = bench.sizes
    k, v = (
        np.repeat(t.astype(np.float64), s.n_heads // s.n_kv_heads, axis=0)
        for t in bench.keys_values(layer, row, begin, end)
    )
    scores = np.einsum("hc,htc->ht", bench.buffer("q")[row].astype(np.float64), k) * 0.2
    m = scores.max(axis=1)
    p = np.exp(scores - m[:, None])
    return np.einsum("ht,htc->hc", p, v), m, p.sum(axis=1)


def visible(bench: Bench, layer: int, position: int) -> int:
    """First key that a row at `position` sees."""
    return max(0, position + 1 - bench.sizes.window) if layer == 1 and bench.sizes.window else 0


def expect_parts(bench: Bench, layer: int, n_splits: int) -> None:
    C = bench.sizes.head_dim
    for row, position in enumerate(bench.positions):
        first = visible(bench, layer, position)
        first_page, n_pages = first // PAGE, position // PAGE - first // PAGE + 1
        for split in range(n_splits):
            pages = [first_page + n_pages * i // n_splits for i in (split, split + 1)]
            part = bench.buffer("attn_part")[row, :, split]
            if pages[0] == pages[1]:
                assert np.all(part[:, :C] == 0) and np.all(part[:, C] == -np.inf) and np.all(part[:, C + 1] == 0)
                continue
            o, m, total = attention(bench, layer, row, max(first, pages[0] * PAGE), min(position + 1, pages[1] * PAGE))
            close(part[:, :C], o)
            close(part[:, C], m)
            close(part[:, C + 1], total)


@pytest.mark.parametrize("layer", [0, 1])
def test_attn_decode_makes_the_partial_sums_of_its_split(bench: Bench, layer: int) -> None:
    for n_splits in (1, 2, MAX_SPLITS):
        bench.fill("q")
        bench.poison("attn_part")
        for split in range(n_splits):
            flags = int(TaskFlag.SLIDING) if layer == 1 else 0
            fields = {"tile_count": bench.sizes.n_kv_heads, "split": split, "n_splits": n_splits, "flags": flags}
            bench.run(Opcode.ATTN_DECODE, layer, **fields)
        expect_parts(bench, layer, n_splits)


@pytest.mark.parametrize("layer", [0, 1])
def test_attn_drain_claims_every_item(bench: Bench, layer: int) -> None:
    bench.fill("q")
    bench.poison("attn_part")
    flags = int(TaskFlag.SLIDING) if layer == 1 else 0
    bench.run(Opcode.ATTN_DRAIN, layer, n_splits=3, queue=0, flags=flags)
    expect_parts(bench, layer, 3)


def test_the_window_moves_over_page_borders() -> None:
    for position in (0, 63, 64, 69, 70, 127, 128, 133, 134, 191):
        bench = Bench(Sizes(), 1)
        bench.set_positions([position])
        bench.fill("q")
        bench.run(Opcode.ATTN_DECODE, 1, tile_count=2, n_splits=1, flags=int(TaskFlag.SLIDING))
        expect_parts(bench, 1, 1)


def test_attn_combine_merges_the_splits(bench: Bench) -> None:
    s = bench.sizes
    bench.fill("q")
    bench.run(Opcode.ATTN_DRAIN, 0, n_splits=4, queue=0)
    bench.poison("attn")
    tiles = bench.n_rows * s.n_heads * s.head_dim // 16
    for begin, end in ((0, tiles // 3), (tiles // 3, tiles)):
        bench.run(Opcode.ATTN_COMBINE, 0, tile_begin=begin, tile_count=end - begin, n_splits=4)
    for row, position in enumerate(bench.positions):
        o, _, total = attention(bench, 0, row, 0, position + 1)
        close(bench.buffer("attn")[row], (o / total[:, None]).reshape(-1))


def test_o_proj_multiplies_its_tiles(bench: Bench) -> None:
    bench.fill("attn")
    bench.poison("o_out")
    bench.run(Opcode.O_PROJ, 0, tile_begin=1, tile_count=2)
    expected = bench.buffer("attn").astype(np.float64) @ bench.w(0, WeightKind.O).T
    close(bench.buffer("o_out")[:, 16:48], expected[:, 16:48])
    assert untouched(bench.buffer("o_out")[:, :16]) and untouched(bench.buffer("o_out")[:, 48:])


@pytest.mark.parametrize("flags", [0, TaskFlag.FUSED_NORM])
def test_ffn_upgate_act_makes_eight_units_a_tile(bench: Bench, flags: int) -> None:
    bench.fill("normed", "residual")
    bench.poison("ffn_hidden")
    bench.run(Opcode.FFN_UPGATE_ACT, 0, tile_begin=3, tile_count=5, flags=int(flags))
    x = bench.normalised(bench.buffer("residual"), ffn_norm(bench, 0)) if flags else bench.buffer("normed")
    expected = silu(x @ bench.w(0, WeightKind.GATE).T) * (x @ bench.w(0, WeightKind.UP).T)
    close(bench.buffer("ffn_hidden")[:, 24:64], expected[:, 24:64])
    assert untouched(bench.buffer("ffn_hidden")[:, :24]) and untouched(bench.buffer("ffn_hidden")[:, 64:])


@pytest.mark.parametrize("flags", [0, TaskFlag.ADD_RESIDUAL])
def test_ffn_down_writes_its_output_or_adds_it_to_the_residual(bench: Bench, flags: int) -> None:
    bench.fill("ffn_hidden", "o_out", "residual")
    before = bench.buffer("residual").copy()
    bench.poison("ffn_out")
    bench.run(Opcode.FFN_DOWN, 0, tile_begin=1, tile_count=2, flags=int(flags))
    product = bench.buffer("ffn_hidden").astype(np.float64) @ bench.w(0, WeightKind.DOWN).T
    if not flags:
        close(bench.buffer("ffn_out")[:, 16:48], product[:, 16:48])
        return
    expected = before.astype(np.float64)
    expected[:, 16:48] += (bench.buffer("o_out") + product)[:, 16:48]
    close(bench.buffer("residual"), expected)
    assert untouched(bench.buffer("ffn_out"))


@pytest.mark.parametrize("flags", [0, TaskFlag.FUSED_NORM])
def test_router_gemm_makes_the_logits_of_the_experts(bench: Bench, flags: int) -> None:
    bench.fill("normed", "residual")
    bench.poison("router_logits")
    bench.run(Opcode.ROUTER_GEMM, 1, tile_count=-(-bench.sizes.n_experts // 16), flags=int(flags))
    x = bench.normalised(bench.buffer("residual"), ffn_norm(bench, 1)) if flags else bench.buffer("normed")
    close(bench.buffer("router_logits"), x @ bench.w(1, WeightKind.ROUTER).T)


@pytest.mark.parametrize("flags", [0, TaskFlag.FUSED_NORM])
def test_lm_head_scales_its_tiles_of_the_vocabulary(bench: Bench, flags: int) -> None:
    bench.fill("normed", "residual")
    bench.poison("logits")
    for begin, count in ((0, 3), (3, 4)):  # 104 words are six and a half tiles
        bench.run(Opcode.LM_HEAD, 2, tile_begin=begin, tile_count=count, flags=int(flags))
    x = (
        bench.normalised(bench.buffer("residual"), bench.w(2, WeightKind.FINAL_NORM))
        if flags
        else bench.buffer("normed")
    )
    close(bench.buffer("logits"), x @ bench.w(2, WeightKind.LM_HEAD).T * bench.sizes.logit_scale)

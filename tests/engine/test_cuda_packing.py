"""Packing order, KV pages in fragment order, and the memory plan: everything of the GPU path that needs no GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pointcode_local.engine.cuda import memory, packing, pages
from pointcode_local.engine.cuda.packing import PackPlan
from pointcode_local.engine.errors import BackendError
from pointcode_local.engine.kv_cache import PAGE_TOKENS, KvGeometry
from pointcode_local.engine.models.config import LayerSpec, ModelConfig

CPU = torch.device("cpu")


def fragment_offset(row: int, k: int, k_tiles: int) -> int:
    """`fragment_offset` of csrc/mk_storer.cuh, in bytes."""
    tile, rr, kk = (row >> 4) * k_tiles + (k >> 4), row & 15, k & 15
    return tile * 512 + ((rr & 7) * 4 + ((kk & 7) >> 1)) * 16 + ((rr >> 3) + 2 * (kk >> 3)) * 4 + (kk & 1) * 2


def numbered(*shape: int) -> torch.Tensor:
    """Distinct bf16 values as far as bf16 reaches: bit patterns 0, 1, 2, … (no NaN below 0x7f80)."""
    n = torch.Size(shape).numel()
    return (torch.arange(n) % 0x7F00).to(torch.int16).view(torch.bfloat16).view(shape)


@pytest.mark.parametrize(("k", "stages", "octets"), [(64, 1, 1), (768, 2, 3), (2048, 4, 4), (3072, 6, 4), (4096, 8, 4)])
def test_a_plan_cuts_k_into_equal_stages_of_eights_of_k_tiles(k: int, stages: int, octets: int) -> None:
    plan = PackPlan.of(k)
    assert (plan.stages, plan.octets) == (stages, octets)
    assert plan.k_tiles * 16 >= k


@pytest.mark.parametrize(("rows", "k"), [(16, 128), (48, 64), (32, 2048), (8, 64), (40, 176)])
def test_a_packed_matrix_holds_each_element_at_the_kernels_offset_and_zeros_in_the_padding(rows: int, k: int) -> None:
    matrix = numbered(rows, k)
    packed = packing.pack_matrix(matrix)
    flat, k_tiles = packed.flatten().view(torch.int16), packed.shape[2]
    seen = torch.zeros(flat.numel(), dtype=torch.bool)
    for r in range(rows):
        for c in range(0, k, 3):
            assert flat[fragment_offset(r, c, k_tiles) // 2] == matrix.view(torch.int16)[r, c]
    for r in range(rows):
        seen[[fragment_offset(r, c, k_tiles) // 2 for c in range(k)]] = True
    assert not flat[~seen].any()
    assert torch.equal(packing.unpack(packed, rows, k)[0].view(torch.int16), matrix.view(torch.int16))


def test_gate_and_up_rows_alternate_in_runs_of_eight() -> None:
    gate, up = numbered(24, 64), numbered(24, 64) + 1
    packed = packing.empty_packed(48, 64, device=CPU)
    packing.pack_half_rows(packed, gate[None], 0)
    packing.pack_half_rows(packed, up[None], 1)
    wanted = torch.stack([gate.view(3, 8, 64), up.view(3, 8, 64)], 1).reshape(48, 64)
    assert torch.equal(packing.unpack(packed, 48, 64)[0], wanted)


def test_qkv_rows_are_grouped_by_kv_head() -> None:
    groups, heads, dims, hidden = 2, 6, 16, 64
    q, k, v = (torch.randn(n * dims, hidden).bfloat16() for n in (heads, groups, groups))
    packed = packing.empty_packed((heads + 2 * groups) * dims, hidden, device=CPU)
    parts = packing.group_tiles(packed, groups, dims, heads)
    for name, rows in (("q", q), ("k", k), ("v", v)):
        packing.pack_rows(parts[name], rows.view(groups, -1, hidden))
    per = heads // groups * dims
    wanted = torch.cat(
        [torch.cat([q[g * per :][:per], k[g * dims :][:dims], v[g * dims :][:dims]]) for g in range(groups)]
    )
    assert torch.equal(packing.unpack(packed, wanted.shape[0], hidden)[0], wanted)


def test_rows_are_found_in_a_packed_embedding() -> None:
    table = torch.randn(100, 64).bfloat16()
    ids = torch.tensor([0, 99, 17, 17, 64])
    assert torch.equal(packing.unpack_row_ids(packing.pack_matrix(table), ids, 64), table[ids])


@pytest.mark.parametrize("dims", [16, 32, 128])
def test_pages_hold_each_element_at_the_kernels_offset(dims: int) -> None:
    k = numbered(PAGE_TOKENS, 2, dims)
    pool_k, pool_v = (torch.zeros(3, 2, PAGE_TOKENS, dims, dtype=torch.bfloat16) for _ in range(2))
    pages.write_tokens(pages.FRAGMENT_PAGES, (pool_k, pool_v), [1], 0, k, k)
    for head in range(2):
        flat_k, flat_v = pool_k[1, head].flatten(), pool_v[1, head].flatten()
        for token in range(PAGE_TOKENS):
            for dim in range(0, dims, 5):
                assert flat_k[fragment_offset(token, dim, dims // 16) // 2] == k[token, head, dim]
                assert flat_v[fragment_offset(dim, token, PAGE_TOKENS // 16) // 2] == k[token, head, dim]


@pytest.mark.parametrize("layout", [pages.FRAGMENT_PAGES, pages.PLAIN_PAGES])
def test_tokens_come_back_from_pages_however_the_writes_were_cut(layout: pages.PageLayout) -> None:
    runs = torch.randn(2, 300, 2, 32).bfloat16().unbind(0)
    pools = torch.full((2, 9, 2, PAGE_TOKENS, 32), float("nan"), dtype=torch.bfloat16).unbind(0)
    table = [5, 0, 8, 2, 7]
    for begin, end in ((0, 1), (1, 64), (64, 70), (70, 193), (193, 300)):
        pages.write_tokens(layout, (pools[0], pools[1]), table, begin, *(run[begin:end] for run in runs))
    for pool, run, is_value in zip(pools, runs, (False, True), strict=True):
        for begin, end in ((0, 300), (63, 65), (128, 192), (129, 130)):
            assert torch.equal(pages.read_tokens(layout, pool, table, begin, end, is_value=is_value), run[begin:end])
        untouched = [p for p in range(9) if p not in table]
        assert pool[untouched].isnan().all()


def test_reading_past_the_window_is_refused() -> None:
    pool = torch.zeros(3, 1, PAGE_TOKENS, 16, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="left the window"):
        pages.read_tokens(pages.FRAGMENT_PAGES, pool, [-1, 1], 0, 70, is_value=False)


def north() -> ModelConfig:
    """The sizes of North Mini Code 1.0."""
    layers = tuple(
        LayerSpec(rope=i == 0 or i % 4 != 0, sliding=i % 4 != 0, moe=i > 0, intermediate=768 if i else 3072)
        for i in range(49)
    )
    return ModelConfig(
        "cohere2_moe", 2048, 32, 4, 128, 262144, layers, 1e-6, 50000.0, 500000, True, 128, 8, 4096,
        parallel_block=True, rope_interleaved=True,
    )  # fmt: skip


def geometry_of(config: ModelConfig) -> KvGeometry:
    return KvGeometry(tuple(s.sliding for s in config.layers), config.n_kv_heads, config.head_dim, config.window, 2)


def test_north_mini_fits_an_80_gb_card_with_a_long_context() -> None:
    plan = memory.plan_memory(north(), geometry_of(north()), 84_000_000_000, chunk_tokens=4096)
    assert 60.9e9 < plan.weight_bytes < 61.3e9
    assert plan.kv_tokens > 262144
    assert plan.weight_bytes + plan.workspace_bytes + plan.kv_bytes <= plan.total_bytes
    assert "weights 61." in plan.describe() or "weights 60." in plan.describe()


def test_a_card_that_is_too_small_is_refused_with_the_numbers() -> None:
    with pytest.raises(BackendError, match=r"48\.0 GB of GPU memory are free; weights take 6\d\.\d GB"):
        memory.plan_memory(north(), geometry_of(north()), 48_000_000_000, chunk_tokens=4096)


def test_a_limit_on_the_cache_is_kept() -> None:
    limited = memory.plan_memory(
        north(), geometry_of(north()), 140_000_000_000, chunk_tokens=4096, kv_limit_bytes=4_000_000_000
    )
    assert limited.kv_bytes <= 4_000_000_000
    assert dataclasses.replace(limited, total_bytes=0).n_full_pages == limited.n_full_pages

"""The opcodes that only the published orders use, one wave at a time on the emulated device, against torch.

Inputs are random and tagged, counters are filled beforehand, everything else is poisoned.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pointcode_local.engine.cuda.device_weights import Scratch
from pointcode_local.engine.weights import ModelWeights

from .host_kernel import HostKernel, build, compiler
from .test_megakernel import weights  # noqa: F401  # pyright: ignore[reportUnusedImport]

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the kernel is compiled for the host, and there is no C++ compiler"),
    pytest.mark.timeout(300),
]
ROWS, LAYER = 5, 1  # layer 1 has experts
Words = NDArray[np.uint32]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, weights: ModelWeights) -> HostKernel:  # noqa: F811
    library: ctypes.CDLL = build(tmp_path_factory.getbasetemp().parent)
    return HostKernel.of(library, weights, 3, order="shipped")


def floats(values: torch.Tensor) -> Words:
    return values.float().contiguous().numpy().reshape(-1).view(np.uint32)


def pairs(values: torch.Tensor) -> Words:
    return values.bfloat16().contiguous().view(torch.int16).numpy().reshape(-1).view(np.uint32)


def as_floats(words: Words, *shape: int) -> torch.Tensor:
    return torch.from_numpy(words.view(np.float32).copy()).view(*shape)


def as_bf16(words: Words, *shape: int) -> torch.Tensor:
    return torch.from_numpy(words.view(np.int16).copy()).view(torch.bfloat16).view(*shape).float()


def random_route(kernel: HostKernel, seed: int) -> tuple[torch.Tensor, torch.Tensor, Words]:
    """Experts (R, T) ascending, weights (R, T), and the kernel's route for them."""
    config, rng = kernel.model.config, np.random.default_rng(seed)
    chosen = [np.sort(rng.choice(config.n_experts, config.top_k, replace=False)) for _ in range(ROWS)]
    ids, scores = torch.from_numpy(np.stack(chosen)), torch.rand(ROWS, config.top_k) + 0.1
    both = np.stack([ids.numpy().reshape(-1).astype(np.uint32), floats(scores)], axis=1).reshape(-1)
    step = kernel.run_wave(f"L{LAYER}.finalize", ROWS, {"topk": (LAYER, both)})
    return ids, scores, kernel.results("route", 146, step, LAYER)


def expected_pairs(ids: torch.Tensor) -> list[int]:
    """row * T + slot of every pair, grouped by expert."""
    flat = ids.view(-1)
    return sorted(range(len(flat)), key=lambda i: (int(flat[i]), i))


def close(ours: torch.Tensor, wanted: torch.Tensor, relative: float) -> bool:
    return float((ours - wanted).norm()) <= relative * float(wanted.norm())


def test_add_rmsnorm_adds_both_branches_and_norms(kernel: HostKernel) -> None:
    config = kernel.model.config
    torch.manual_seed(1)
    o, ffn = torch.randn(ROWS, config.hidden), torch.randn(ROWS, config.hidden)
    step = kernel.run_wave("L1.norm", ROWS, {"o_out": (0, floats(o)), "ffn_out": (0, floats(ffn))})
    embedded = kernel.model.embed.row_ids(torch.arange(3, 3 + ROWS)).float()  # which the kernel wrote before
    wanted = embedded + o + ffn
    size = ROWS * config.hidden
    assert close(as_floats(kernel.results("residual", size, step, 1), ROWS, -1), wanted, 1e-6)
    normed = torch.nn.functional.rms_norm(wanted, (config.hidden,), kernel.model.layers[1].norm, config.eps)
    assert close(as_bf16(kernel.results("normed", size // 2, step, 1), ROWS, -1), normed, 4e-3)


def test_router_topk_takes_the_largest_ties_to_the_lower_id_slots_ascending(kernel: HostKernel) -> None:
    config = kernel.model.config
    torch.manual_seed(2)
    logits = torch.randn(ROWS, config.n_experts)
    logits[0] = 0.5  # all equal
    logits[1, [1, 6]] = 3.0
    step = kernel.run_wave("L1.topk", ROWS, {"router": (LAYER, floats(logits))})
    found = kernel.results("topk", ROWS * config.top_k * 2, step, LAYER).reshape(ROWS, config.top_k, 2)
    ids = logits.sort(dim=1, descending=True, stable=True).indices[:, : config.top_k].sort(dim=1).values
    assert torch.equal(torch.from_numpy(found[:, :, 0].astype(np.int64)), ids)
    weights_found = as_floats(np.ascontiguousarray(found[:, :, 1]).reshape(-1), ROWS, config.top_k)
    assert torch.allclose(weights_found, logits.sigmoid().gather(1, ids), rtol=1e-5)


def test_route_finalize_lists_the_union_and_its_pairs(kernel: HostKernel) -> None:
    ids, scores, route = random_route(kernel, 3)
    union = sorted(set(ids.view(-1).tolist()))
    raw = route.view(np.uint8)
    assert int(route[0]) == len(union)
    entries = raw[4 : 4 + 4 * len(union)].reshape(-1, 4)
    assert (entries[:, 0].astype(int) + entries[:, 1].astype(int) * 256).tolist() == union
    assert entries[:, 2].tolist() == [sum(1 << r for r in range(ROWS) if e in ids[r]) for e in union]
    assert raw[260 : 260 + ids.numel()].tolist() == expected_pairs(ids)
    assert torch.equal(as_floats(route[81 : 81 + ids.numel()], ROWS, -1), scores)


def test_moe_gather_groups_the_rows_by_expert(kernel: HostKernel) -> None:
    config = kernel.model.config
    ids, _, route = random_route(kernel, 4)
    normed = torch.randn(ROWS, config.hidden).bfloat16()
    step = kernel.run_wave("L1.gather", ROWS, {"route": (LAYER, route), "normed": (LAYER, pairs(normed))})
    order = expected_pairs(ids)
    found = as_bf16(kernel.results("moe_in", len(order) * config.hidden // 2, step, LAYER), len(order), -1)
    assert torch.equal(found, normed[[pair // config.top_k for pair in order]].float())


def test_moe_upgate_claims_every_tile_of_the_union_once(kernel: HostKernel) -> None:
    config, layer = kernel.model.config, kernel.model.layers[LAYER]
    ids, scores, route = random_route(kernel, 5)
    order, width = expected_pairs(ids), config.layers[LAYER].intermediate
    moe_in = torch.randn(len(order), config.hidden).bfloat16()
    step = kernel.run_wave("L1.upgate", ROWS, {"route": (LAYER, route), "moe_in": (LAYER, pairs(moe_in))})
    found = as_bf16(kernel.results("ffn", len(order) * width // 2, step, LAYER), len(order), -1)
    bank = layer.upgate.dense(Scratch(torch.device("cpu"))).float().view(config.n_experts, -1, 2, 8, config.hidden)
    for i, pair in enumerate(order):
        matrices = bank[ids.view(-1)[pair]]
        gate, up = (matrices[:, part].flatten(0, 1) @ moe_in[i].float() for part in (0, 1))
        wanted = torch.nn.functional.silu(gate) * up * scores.view(-1)[pair]
        assert close(found[pair], wanted, 4e-3), f"pair {pair}"


def test_moe_down_claims_every_tile_of_the_union_once(kernel: HostKernel) -> None:
    config, layer = kernel.model.config, kernel.model.layers[LAYER]
    ids, _, route = random_route(kernel, 6)
    width, n = config.layers[LAYER].intermediate, ROWS * config.top_k
    hidden = torch.randn(n, width).bfloat16()
    step = kernel.run_wave("L1.down", ROWS, {"route": (LAYER, route), "ffn": (LAYER, pairs(hidden))})
    found = as_floats(kernel.results("moe_out", n * config.hidden, step, LAYER), n, -1)
    bank = layer.down.dense(Scratch(torch.device("cpu"))).float()
    wanted = torch.stack([bank[ids.view(-1)[pair]] @ hidden[pair].float() for pair in range(n)])
    assert close(found, wanted, 1e-5)


def test_moe_combine_sums_the_slots(kernel: HostKernel) -> None:
    config = kernel.model.config
    out = torch.randn(ROWS, config.top_k, config.hidden)
    step = kernel.run_wave("L1.moe_combine", ROWS, {"moe_out": (LAYER, floats(out))})
    found = as_floats(kernel.results("ffn_out", ROWS * config.hidden, step, LAYER), ROWS, -1)
    assert close(found, out.sum(dim=1), 1e-6)


def test_attn_drain_claims_every_split_of_every_row_once(kernel: HostKernel) -> None:
    config = kernel.model.config
    n_splits, heads, hd = kernel.schedules[0].n_splits, config.n_heads // config.n_kv_heads, config.head_dim
    q = torch.randn(ROWS, config.n_heads, hd)
    positions = [0] * ROWS  # no earlier key anywhere: o = 0, m = -inf, l = 0
    step = kernel.run_wave("L0.attn", ROWS, {"q": (0, pairs(q))}, positions)
    stride = hd + 4  # payloads of a head: o, m, l, two unused
    blocks = ROWS * config.n_kv_heads * n_splits
    found = kernel.tagged("part", blocks * 8 * stride).reshape(blocks, 8, stride, 2)[:, :heads, : hd + 2]
    assert (found[..., 1] == step * 256).all()
    values = np.ascontiguousarray(found[..., 0]).view(np.float32)
    assert (values[..., :hd] == 0).all() and np.isneginf(values[..., hd]).all() and (values[..., hd + 1] == 0).all()

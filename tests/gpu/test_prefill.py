"""Prefill, loading and the torch decoder on the GPU against their CPU twins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pointcode_local.engine.cuda import attention, moe, native_attention, ops, packed_products, packing
from pointcode_local.engine.cuda.device_weights import DeviceMatrix, Scratch
from pointcode_local.engine.cuda.loader import load_model
from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES, PLAIN_PAGES, PageLayout, read_tokens, write_tokens
from pointcode_local.engine.cuda.prefill import GpuPrefill
from pointcode_local.engine.kv_cache import GROUPS, KvCache, SequencePages
from pointcode_local.engine.models.reference import TorchModel, full_logits
from pointcode_local.engine.plans import kv_geometry
from pointcode_local.engine.weights import ModelWeights

from .support import needs_gpu, prompt_of

pytestmark = needs_gpu
GPU, CPU = torch.device("cuda"), torch.device("cpu")


def close(ours: torch.Tensor, wanted: torch.Tensor, relative: float = 1e-2) -> bool:
    ours, wanted = ours.cpu().float(), wanted.cpu().float()
    return float((ours - wanted).norm()) <= relative * float(wanted.norm())


@pytest.mark.parametrize("block_bytes", [4 << 10, 40 << 10, 64 << 20])  # small ones are used again and again
def test_a_load_to_the_gpu_equals_one_to_the_cpu(weights: ModelWeights, block_bytes: int) -> None:
    ours, theirs = load_model(weights, GPU, block_bytes=block_bytes)[0], load_model(weights, CPU)[0]
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        for x, y in zip(a.matrices(), b.matrices(), strict=True):
            assert torch.equal(x.data.cpu(), y.data)
            assert torch.equal(x.dense(Scratch(GPU)).cpu(), y.dense(Scratch(CPU)))


@pytest.mark.parametrize(("rows", "k", "count"), [(1536, 2048, 3), (2048, 768, 3), (2048, 4096, 1), (128, 64, 1)])
def test_unpacking_on_the_gpu_inverts_packing(rows: int, k: int, count: int) -> None:
    bank = torch.randn(count, rows, k, device=GPU).bfloat16()
    packed = torch.cat([packing.pack_matrix(matrix) for matrix in bank])
    assert torch.equal(packing.unpack(packed, rows, k), bank)


def test_the_kernels_of_a_chunk_equal_their_torch_twins() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(33, 2048), torch.rand(2048) + 0.5
    assert close(ops.rms_norm(x.to(GPU), weight.to(GPU), 1e-6), ops.rms_norm(x, weight, 1e-6))
    qkv, angles = torch.randn(33, 40 * 128).bfloat16(), torch.randn(33, 64)
    rotation = angles.cos(), angles.sin()
    on_gpu = rotation[0].to(GPU), rotation[1].to(GPU)
    for rotate_cpu, rotate_gpu in ((None, None), (rotation, on_gpu)):
        k, v = torch.empty(2, 40, 4, 128, dtype=torch.bfloat16).unbind(0)
        on = k.to(GPU), v.to(GPU)
        assert close(
            ops.split_qkv(qkv.to(GPU), rotate_gpu, 32, on[0][7:], on[1][7:]),
            ops.split_qkv(qkv, rotate_cpu, 32, k[7:], v[7:]),
        )
        assert close(on[0][7:], k[7:]) and close(on[1][7:], v[7:])
    wide = torch.randn(33, 1536).bfloat16()
    assert close(ops.silu_up(wide.to(GPU)), ops.silu_up(wide))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_sum_of_parts_and_its_norm_equal_their_torch_twin(weighted: bool) -> None:
    torch.manual_seed(0)
    x, norm, attn = torch.randn(33, 2048), torch.rand(2048) + 0.5, torch.randn(33, 2048).bfloat16()
    values, places = torch.randn(33 * 8, 2048).bfloat16(), torch.randperm(33 * 8).view(33, 8).int()
    weights = torch.rand(33, 8) if weighted else None
    parts = ops.Parts(values, places, weights)
    on_gpu = ops.Parts(values.to(GPU), places.to(GPU), None if weights is None else weights.to(GPU))
    added = x.to(GPU)
    ours = ops.add_parts(added, attn.to(GPU), on_gpu, norm.to(GPU), 1e-6)
    wanted = ops.add_parts(x, attn, parts, norm, 1e-6)
    assert close(added, x, 1e-5) and close(ours, wanted)


def test_attention_with_a_window_works_here() -> None:
    assert attention.kernel_works(torch.device("cuda", 0), 128) and attention.flash_works(torch.device("cuda", 0), 128)
    torch.manual_seed(0)
    q, k, v = (torch.randn(n, h, 128, device=GPU).bfloat16() for n, h in ((700, 32), (6000, 4), (6000, 4)))
    for window in (0, 4096):
        ours = attention.attend(q, k, v, window=window, scale=128**-0.5)
        assert close(ours, attention.attend_in_blocks(q, k, v, window=window, scale=128**-0.5))


@pytest.mark.parametrize(("n", "s", "window", "dims"), [(700, 6000, 0, 128), (700, 6000, 4096, 128), (65, 65, 33, 16)])
def test_the_attention_kernel_equals_blocks_with_masks(n: int, s: int, window: int, dims: int) -> None:
    from pointcode_local.engine.cuda import triton_attention

    torch.manual_seed(0)
    q, k, v = (torch.randn(m, h, dims, device=GPU).bfloat16() for m, h in ((n, 8), (s, 2), (s, 2)))
    ours = triton_attention.attend(q, k, v, window=window, scale=dims**-0.5)
    assert close(ours, attention.attend_in_blocks(q, k, v, window=window, scale=dims**-0.5))


@pytest.mark.parametrize(("n", "n_experts", "top_k"), [(1, 8, 2), (333, 128, 8), (70, 12, 3)])
@pytest.mark.parametrize("normalise", [True, False])
def test_pairs_are_laid_out_as_on_the_cpu_also_with_ties(n: int, n_experts: int, top_k: int, normalise: bool) -> None:
    torch.manual_seed(n)
    h, logits = torch.randn(n, 64).bfloat16(), (torch.randn(n, n_experts) * 4).round() / 4
    ours = ops.dispatch(logits.to(GPU), top_k, normalise=normalise)
    wanted = ops.dispatch(logits, top_k, normalise=normalise)
    assert torch.equal(ours.source.cpu(), wanted.source) and torch.equal(ours.ends.cpu(), wanted.ends)
    assert torch.equal(ours.places.cpu(), wanted.places) and torch.equal(ours.begins.cpu(), wanted.begins)
    assert torch.equal(ops.gather(h.to(GPU), ours).cpu(), ops.gather(h, wanted))
    assert torch.allclose(ours.weights.cpu(), wanted.weights, atol=1e-6)


@pytest.mark.parametrize("n", [1, 333])
def test_experts_pairs_begin_at_multiples_where_they_have_to(n: int) -> None:
    torch.manual_seed(n)
    logits = torch.randn(n, 128)
    spread, dense = ops.dispatch(logits.to(GPU), 8, normalise=True, unit=8), ops.dispatch(logits, 8, normalise=True)
    begins, ends = spread.begins.cpu(), spread.ends.cpu()
    assert not (begins % 8).any() and torch.equal(ends - begins, dense.ends - dense.begins)
    assert torch.equal((ends[:-1] + 7) // 8 * 8, begins[1:]) and ends[-1] <= len(spread.source)
    shift = (begins - dense.begins).repeat_interleave(dense.ends - dense.begins)
    assert torch.equal(spread.places.cpu(), dense.places + shift[dense.places])
    assert torch.equal(spread.source.cpu()[spread.places.cpu()], torch.arange(n).view(n, 1).expand(n, 8).int())


def test_router_logits_have_fp32_sums() -> None:
    torch.manual_seed(0)
    h, router = torch.randn(300, 2048).bfloat16(), torch.randn(128, 2048).bfloat16()
    assert close(ops.router_logits(h.to(GPU), router.to(GPU)), ops.router_logits(h, router), 1e-5)


@pytest.mark.parametrize("layout", [FRAGMENT_PAGES, PLAIN_PAGES])
def test_pages_are_written_and_read_as_on_the_cpu(layout: PageLayout) -> None:
    runs, table = torch.randn(2, 300, 4, 128).bfloat16(), [5, 0, 8, 2, 7]
    on_cpu = torch.full((2, 9, 4, 64, 128), 7.0, dtype=torch.bfloat16)
    on_gpu = on_cpu.to(GPU)
    for begin, end in ((0, 1), (1, 64), (64, 70), (70, 193), (193, 300)):
        for pools in (on_cpu, on_gpu):
            keys, values = runs[:, begin:end].to(pools.device).contiguous()
            write_tokens(layout, (pools[0], pools[1]), table, begin, keys, values)
    assert torch.equal(on_gpu.cpu(), on_cpu)
    for pool, run, is_value in zip(on_gpu, runs, (False, True), strict=True):
        for begin, end in ((0, 300), (63, 65), (128, 192)):
            ours = read_tokens(layout, pool, table, begin, end, is_value=is_value)
            assert torch.equal(ours.cpu(), run[begin:end])


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(
    ("rows", "k", "counts"),
    [(512, 128, (1,)), (512, 256, (0, 65, 3)), (1536, 2048, (300, 0, 129, 1, 257)), (2048, 768, (64, 900))],
)
def test_products_from_packed_weights_equal_those_of_the_matrices(
    rows: int, k: int, counts: tuple[int, ...], cluster: int
) -> None:
    torch.manual_seed(0)
    sizes = torch.tensor(counts)
    whole = (sizes + 7) // 8 * 8
    begins, n = (whole.cumsum(0) - whole).int(), int(whole.sum())
    ends = begins + sizes.int()
    bank, x = torch.randn(len(counts), rows, k, device=GPU).bfloat16() * 0.03, torch.randn(n, k, device=GPU).bfloat16()
    packed, panels = torch.cat([packing.pack_matrix(m) for m in bank]), packed_products.to_panels(x)
    runs = begins.to(GPU), ends.to(GPU)
    plain = packed_products.products(packed, rows, k, panels, *runs, cluster=cluster)
    gated = packed_products.products(packed, rows, k, panels, *runs, gated=True, cluster=cluster)
    for matrix, begin, end in zip(bank, begins.tolist(), ends.tolist(), strict=True):
        wanted = x[begin:end].float() @ matrix.float().t()
        assert close(plain[begin:end], wanted)
        assert close(packed_products.from_panels(gated)[begin:end], ops.silu_up(wanted.bfloat16()), 2e-2)


@pytest.mark.parametrize("n", [1, 64, 333])
def test_a_packed_linear_equals_torchs(n: int) -> None:
    torch.manual_seed(n)
    matrix, x = torch.randn(2048, 4096, device=GPU).bfloat16() * 0.02, torch.randn(n, 4096, device=GPU).bfloat16()
    packed = DeviceMatrix(packing.pack_matrix(matrix), 2048, 4096, True)
    assert packed_products.can_multiply(packed)
    assert close(packed_products.linear(x, packed), torch.nn.functional.linear(x, matrix))


def test_rows_are_gathered_into_panels() -> None:
    x, source = torch.randn(70, 2048, device=GPU).bfloat16(), torch.randint(70, (160,), device=GPU, dtype=torch.int32)
    assert torch.equal(packed_products.from_panels(packed_products.gather_panels(x, source)), x[source.long()])


@pytest.mark.parametrize("tokens", [1, 3, 64, 1024])
def test_experts_of_any_chunk_give_the_same_from_packed_weights(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(tokens)
    h, logits = torch.randn(tokens, 256, device=GPU).bfloat16(), torch.randn(tokens, 16, device=GPU)
    upgate, down = (
        DeviceMatrix(torch.randn(16, r // 16, k // 16, 256, device=GPU).bfloat16() * 0.1, r, k, True)
        for r, k in ((512, 256), (256, 256))
    )
    sums: list[torch.Tensor] = []
    for enabled in (True, False):
        monkeypatch.setattr(packed_products, "enabled", enabled)
        assert packed_products.can_multiply(upgate, down) == enabled
        parts = moe.run_experts(h, logits, 8, normalise=True, upgate=upgate, down=down, scratch=Scratch(GPU))
        sums.append(torch.zeros(tokens, 256, device=GPU))
        ops.add_parts(sums[-1], torch.zeros_like(h), parts, torch.ones(256, device=GPU), 1e-6)
    assert close(sums[0], sums[1])


@pytest.mark.parametrize(
    ("n", "s", "window"),
    [(1, 1, 0), (128, 128, 0), (700, 6000, 0), (700, 6000, 4096), (257, 900, 100), (3, 5000, 4096)],
)
def test_the_native_attention_equals_blocks_with_masks(n: int, s: int, window: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(m, h, 128, device=GPU).bfloat16() for m, h in ((n, 8), (s, 2), (s, 2)))
    ours = native_attention.attend(q, k, v, window=window, scale=128**-0.5)
    assert close(ours, attention.attend_in_blocks(q, k, v, window=window, scale=128**-0.5))


def test_grouped_products_equal_a_loop_even_with_idle_experts() -> None:
    torch.manual_seed(0)
    x, bank = torch.randn(300, 256).bfloat16(), torch.randn(8, 512, 256).bfloat16()
    ends = torch.tensor([0, 5, 5, 90, 91, 200, 300, 300], dtype=torch.int32)
    assert close(moe.grouped_linear(x.to(GPU), bank.to(GPU), ends.to(GPU)), moe.grouped_linear(x, bank, ends))


@pytest.mark.parametrize("packed", [True, False])
def test_prefill_logits_agree_with_the_fp32_reference(weights: ModelWeights, packed: bool) -> None:
    prompt = prompt_of(200, seed=1)
    model, _ = load_model(weights, GPU, packed=packed)
    pages = SequencePages(KvCache(kv_geometry(weights.config, 2), 9, 9, GPU))
    pages.grow(len(prompt))
    ours = GpuPrefill(model, FRAGMENT_PAGES if packed else PLAIN_PAGES).forward_logits(prompt, pages, n_last=20)
    assert close(ours, full_logits(TorchModel(weights, use_native=False), prompt)[-20:], 0.05)


@pytest.mark.parametrize("length", [1, 64, 65, 150])
def test_the_torch_decoder_agrees_with_the_fp32_reference(weights: ModelWeights, length: int) -> None:
    from pointcode_local.engine.cuda.torch_backend import TorchDecoder

    prompt = prompt_of(length, seed=length)
    model, _ = load_model(weights, GPU, packed=False)
    kv = KvCache(kv_geometry(weights.config, 2), 9, 9, GPU)
    pages = SequencePages(kv)
    pages.grow(length + 2)
    if length > 1:
        GpuPrefill(model, PLAIN_PAGES)(prompt, 0, length - 1, pages, lambda part: None)
    decoder = TorchDecoder(model, kv, 512)
    for row in range(3):  # the same sequence three times: rows must not disturb each other
        for group in GROUPS:
            table = np.asarray(pages.tables[group], np.int32)
            decoder.tables[group, row, : len(table)] = torch.from_numpy(table).to(GPU)
        decoder.tokens[row], decoder.positions[row] = prompt[-1], length - 1
    wanted = full_logits(TorchModel(weights, use_native=False), prompt)[-1]
    for _ in range(2):  # captured, then replayed
        logits = decoder.step(3)
        for row in range(3):
            assert close(logits[row], wanted, 0.05)

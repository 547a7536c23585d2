"""Loading and prefill of the GPU path, run on CPU tensors against the fp32 reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pointcode_local.engine.cuda import moe, ops
from pointcode_local.engine.cuda.attention import attend_in_blocks
from pointcode_local.engine.cuda.device_weights import DeviceMatrix, DeviceModel, Scratch, require_supported
from pointcode_local.engine.cuda.loader import load_model
from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES, PLAIN_PAGES, PageLayout, read_tokens
from pointcode_local.engine.cuda.prefill import GpuPrefill
from pointcode_local.engine.cuda.random_weights import north_mini, random_model
from pointcode_local.engine.errors import BackendError
from pointcode_local.engine.kv_cache import KvCache, SequencePages
from pointcode_local.engine.models.reference import GrowingKv, TorchModel
from pointcode_local.engine.plans import kv_geometry
from pointcode_local.engine.weights import ModelWeights, open_weights

from .tiny_models import make_tiny

CPU = torch.device("cpu")
PROMPT = [(7 * i * i + 3) % 320 for i in range(150)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> ModelWeights:
    return open_weights(make_tiny("cohere2_moe", tmp_path_factory.mktemp("tiny"), dtype=torch.bfloat16))


@pytest.fixture(scope="module")
def reference(weights: ModelWeights) -> tuple[torch.Tensor, GrowingKv]:
    kv = GrowingKv(weights.config.n_layers)
    logits = TorchModel(weights, use_native=False).forward(PROMPT, kv, logits="all")
    assert logits is not None
    return logits, kv


def sequence(weights: ModelWeights, n_tokens: int) -> SequencePages:
    pages = SequencePages(KvCache(kv_geometry(weights.config, 2), 9, 9, CPU))
    pages.grow(n_tokens)
    return pages


def relative(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((ours.float() - wanted.float()).norm() / wanted.float().norm())


def test_a_packed_and_a_plain_load_hold_the_same_matrices_and_report_progress(weights: ModelWeights) -> None:
    seen: list[tuple[int, int]] = []
    packed, report = load_model(weights, CPU, progress=lambda done, total: seen.append((done, total)))
    plain, _ = load_model(weights, CPU, packed=False)
    for a, b in zip(packed.layers, plain.layers, strict=True):
        for x, y in zip(a.matrices(), b.matrices(), strict=True):
            assert torch.equal(x.dense(Scratch(CPU)), y.data)
        assert torch.equal(a.norm, b.norm)
    ids = torch.tensor([0, 319, 5])
    assert torch.equal(packed.embed.row_ids(ids), plain.embed.data[0][ids])
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert report.n_bytes >= weights.stored_bytes and report.gb_per_s > 0


def test_fused_and_separate_expert_files_load_the_same(weights: ModelWeights, tmp_path: Path) -> None:
    fused = open_weights(make_tiny("cohere2_moe", tmp_path, dtype=torch.bfloat16, experts="fused"))
    ours, theirs = load_model(weights, CPU)[0], load_model(fused, CPU)[0]
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(a.upgate.data, b.upgate.data) and torch.equal(a.down.data, b.down.data)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("cuts", [(0, 150), (0, 64, 150), (0, 1, 70, 71, 150)])
def test_prefill_writes_the_references_keys_and_values_however_it_is_cut(
    weights: ModelWeights, reference: tuple[torch.Tensor, GrowingKv], packed: bool, cuts: tuple[int, ...]
) -> None:
    layout: PageLayout = FRAGMENT_PAGES if packed else PLAIN_PAGES
    prefill = GpuPrefill(load_model(weights, CPU, packed=packed)[0], layout)
    pages = sequence(weights, len(PROMPT))
    for begin, end in zip(cuts, cuts[1:], strict=False):
        prefill(PROMPT, begin, end, pages, lambda part: None)
    for layer in range(weights.config.n_layers):
        table = pages.tables[pages.kv.group_of(layer)]
        wanted = reference[1].gather(layer, 0, len(PROMPT))
        for pool, values, is_value in zip(pages.kv.layer(layer), wanted, (False, True), strict=True):
            ours = read_tokens(layout, pool, table, 0, len(PROMPT), is_value=is_value)
            assert relative(ours, values) < 0.02 + 0.01 * layer  # bf16 activations add up over the layers


def test_logits_after_prefill_agree_with_the_reference(
    weights: ModelWeights, reference: tuple[torch.Tensor, GrowingKv]
) -> None:
    prefill = GpuPrefill(load_model(weights, CPU)[0], FRAGMENT_PAGES)
    logits = prefill.forward_logits(PROMPT, sequence(weights, len(PROMPT)), n_last=8)
    assert relative(logits, reference[0][-8:]) < 0.05


def test_a_cancelled_prefill_stops_between_layers(weights: ModelWeights) -> None:
    prefill = GpuPrefill(load_model(weights, CPU)[0], FRAGMENT_PAGES)
    calls = 0

    def at_layer(part: float) -> None:
        nonlocal calls
        assert 0 <= part < 1
        calls += 1
        if calls == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        prefill(PROMPT, 0, 20, sequence(weights, 20), at_layer)
    assert calls == 3


@pytest.mark.parametrize(("n", "s", "window"), [(1500, 1500, 0), (1500, 1700, 0), (1100, 1300, 97), (5, 5, 7)])
def test_attention_in_blocks_equals_one_masked_product(n: int, s: int, window: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(n, 4, 16), torch.randn(s, 2, 16), torch.randn(s, 2, 16)
    distance = torch.arange(s - n, s).unsqueeze(1) - torch.arange(s)
    mask = (distance >= 0) & ((distance < window) if window else True)
    scores = torch.einsum("thc,shc->hts", q, k.repeat_interleave(2, 1)) * 0.25
    wanted = torch.einsum("hts,shc->thc", scores.masked_fill(~mask, -torch.inf).softmax(-1), v.repeat_interleave(2, 1))
    assert torch.allclose(attend_in_blocks(q, k, v, window=window, scale=0.25), wanted, atol=1e-5)


@pytest.mark.parametrize("normalise", [False, True])
def test_experts_of_sorted_pairs_equal_a_loop_over_tokens(normalise: bool) -> None:
    torch.manual_seed(0)
    h, upgate, down = torch.randn(9, 32), torch.randn(6, 32, 32), torch.randn(6, 32, 16)
    logits = torch.randn(9, 6)
    ids, weights = ops.route(logits, 2, normalise=normalise)
    wide, narrow = (DeviceMatrix(bank, bank.shape[1], bank.shape[2], packed=False) for bank in (upgate, down))
    parts = moe.run_experts(h, logits, 2, normalise=normalise, upgate=wide, down=narrow, scratch=Scratch(CPU))
    x, norm = torch.randn(9, 32), torch.rand(32)
    wanted = x.clone()
    for token in range(9):
        for e, weight in zip(ids[token].tolist(), weights[token], strict=True):
            wanted[token] += weight * (down[e] @ ops.silu_up((upgate[e] @ h[token]).unsqueeze(0))[0])
    normed = ops.add_parts(x, torch.zeros(9, 32), parts, norm, 1e-6)
    assert torch.allclose(x, wanted, atol=1e-3)
    assert torch.allclose(normed.float(), ops.rms_norm(wanted, norm, 1e-6).float(), atol=2e-2)


def test_random_weights_have_the_models_shape_and_repeat(weights: ModelWeights) -> None:
    small = random_model(weights.config, CPU, seed=3)
    again = random_model(weights.config, CPU, seed=3)
    assert isinstance(small, DeviceModel) and small.layers[1].upgate.count == 8
    assert torch.equal(small.layers[0].qkv.data, again.layers[0].qkv.data)


def test_a_model_that_the_kernels_cannot_run_is_refused_with_the_reasons(tmp_path: Path) -> None:
    dense = open_weights(make_tiny("qwen2", tmp_path))
    with pytest.raises(BackendError, match="serial blocks, .*biases"):
        require_supported(dense.config)
    require_supported(north_mini())

"""The torch forward against transformers: every logit within 1e-4 on tiny random checkpoints of all families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pointcode_local.engine.models.reference import GrowingKv, TorchModel, full_logits
from pointcode_local.engine.weights import open_weights

from .tiny_models import VOCAB_SIZE, Family, load_reference, make_tiny

TOLERANCE = 1e-4
CASES: list[tuple[Family, dict[str, Any]]] = [
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    ("llama", {}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("cohere2_moe", {}),
    ("cohere2_moe", {"norm_topk_prob": True}),
    ("cohere2_moe", {"expert_selection_fn": "softmax"}),
    ("cohere2_moe", {"rms_norm_eps": None}),
    ("cohere2_moe", {"first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2}),
    ("cohere2_moe", {"sliding_window": 64, "num_experts_per_tok": 1, "num_hidden_layers": 9}),
]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ids_of(length: int) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def reference_logits(reference: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("use_native", [False, True], ids=["torch", "native"])
@pytest.mark.parametrize(("family", "overrides"), CASES, ids=str)
def test_every_logit_equals_transformers(
    family: Family, overrides: dict[str, Any], use_native: bool, tmp_path: Path
) -> None:
    folder = make_tiny(family, tmp_path / "m", **overrides)
    reference, model = load_reference(family, folder), TorchModel(open_weights(folder), use_native=use_native)
    for length in (1, 6, 7, 8, 63, 64, 65, 130):
        ids = ids_of(length)
        error = (full_logits(model, ids) - reference_logits(reference, ids)).abs().max().item()
        assert error < TOLERANCE, f"{length} tokens: a logit is off by {error}"


@pytest.mark.parametrize("family", ["qwen2", "llama", "cohere2_moe"])
@pytest.mark.parametrize("chunk", [1, 5, 7, 64])
def test_prefill_in_chunks_equals_one_pass(family: Family, chunk: int, tmp_path: Path) -> None:
    model = TorchModel(open_weights(make_tiny(family, tmp_path / "m")))
    ids = ids_of(70)
    whole, kv = full_logits(model, ids), GrowingKv(model.config.n_layers)
    for begin in range(0, len(ids), chunk):
        piece = model.forward(ids[begin : begin + chunk], kv, first_position=begin, logits="all")
        assert piece is not None
        torch.testing.assert_close(piece, whole[begin : begin + chunk], atol=TOLERANCE, rtol=0)


def test_a_wrong_window_or_norm_would_be_seen(tmp_path: Path) -> None:
    """The tiny constants are exaggerated enough: each change moves some logit by far more than the tolerance."""
    ids = ids_of(40)
    base = full_logits(TorchModel(open_weights(make_tiny("cohere2_moe", tmp_path / "base"))), ids)
    changes: list[dict[str, Any]] = [
        {"sliding_window": 8}, {"norm_topk_prob": True}, {"rms_norm_eps": None}, {"logit_scale": 1.0},
        {"rms_norm_eps": 1e-6}, {"rope_theta": 50.0}, {"prefix_dense_sliding_window_pattern": 3},
    ]  # fmt: skip
    for i, change in enumerate(changes):
        other = full_logits(TorchModel(open_weights(make_tiny("cohere2_moe", tmp_path / str(i), **change))), ids)
        assert (other - base).abs().max() > 10 * TOLERANCE, change


def test_only_the_last_logits_or_none_are_computed_on_request(tmp_path: Path) -> None:
    model = TorchModel(open_weights(make_tiny("qwen2", tmp_path / "m")))
    ids = ids_of(9)
    last = model.forward(ids, GrowingKv(model.config.n_layers))
    assert last is not None
    torch.testing.assert_close(last[0], full_logits(model, ids)[-1])
    assert model.forward(ids, GrowingKv(model.config.n_layers), logits="none") is None


def test_a_bounded_cache_of_matrices_changes_nothing(tmp_path: Path) -> None:
    weights = open_weights(make_tiny("cohere2_moe", tmp_path / "m", dtype=torch.bfloat16))
    ids = ids_of(20)
    cached = TorchModel(weights, cache_bytes=100_000)
    first, second = full_logits(cached, ids), full_logits(cached, ids)
    assert torch.equal(first, full_logits(TorchModel(weights), ids)) and torch.equal(first, second)

"""The checkpoint that load_time.py writes is one that opens (no GPU is needed to see that)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pointcode_local.engine.cuda.random_weights import north_mini
from pointcode_local.engine.models.config import ModelConfig
from pointcode_local.engine.weights import open_weights

from .full_checkpoint import checkpoint_bytes, write_checkpoint


def small() -> ModelConfig:
    """Six layers of the full model's kinds, small."""
    base = north_mini(6, 400)
    layers = tuple(replace(layer, intermediate=48 if layer.moe else 96) for layer in base.layers)
    return replace(base, hidden=64, n_heads=4, n_kv_heads=2, head_dim=32, n_experts=8, top_k=3, layers=layers)


def test_a_written_checkpoint_opens_as_the_model_that_was_asked_for(tmp_path: Path) -> None:
    n_bytes = write_checkpoint(tmp_path, small())
    weights = open_weights(tmp_path)
    assert weights.config == small()
    assert weights.stored_bytes == n_bytes == checkpoint_bytes(small())


def test_the_full_size_is_that_of_the_published_model() -> None:
    assert round(checkpoint_bytes(north_mini()) / 1e9, 1) == 61.0

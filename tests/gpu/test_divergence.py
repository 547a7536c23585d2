"""The megakernel stays as near to the fp32 reference as a second, plain bf16 implementation of the model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine.kv_cache import FULL, SLIDING, SequencePages
from pointcode_local.engine.weights import ModelWeights, open_weights

from ..engine.tiny_models import VOCAB_SIZE, make_tiny
from .divergence import bf16_logits, fp32_logits, mean_divergence, random_sequences, stepped_logits
from .support import Bed, needs_gpu

pytestmark = needs_gpu
N_SEQUENCES, N_TOKENS = 8, 300
# Logits with a deviation of 3, as a trained model has them; the window ends within the sequence.
SHARP: dict[str, Any] = {"logit_scale": 8.0, "layer_norm_eps": 1e-5, "sliding_window": 70}
WIDE = SHARP | {
    "num_hidden_layers": 5, "hidden_size": 256, "num_attention_heads": 16, "head_dim": 64, "intermediate_size": 528,
    "prefix_dense_intermediate_size": 640, "num_experts": 12, "norm_topk_prob": True,
}  # fmt: skip


def megakernel_logits(weights: ModelWeights, order: str, sequences: list[list[int]]) -> list[torch.Tensor]:
    """All sequences as one batch, every token through a decode step: no prefill."""
    bed = Bed.of(weights, order)
    rows: list[_native.StepRow] = []
    for ids in sequences:
        pages = SequencePages(bed.kv)
        pages.grow(len(ids))
        full, sliding = (np.asarray(pages.tables[group], np.int32) for group in (FULL, SLIDING))
        rows.append(_native.StepRow(token=0, position=0, full_pages=full, sliding_pages=sliding))

    def step(position: int, tokens: list[int]) -> torch.Tensor:
        for row, token in zip(rows, tokens, strict=True):
            row.token, row.position = token, position
        bed.backend.step(rows)
        return torch.from_numpy(np.stack([bed.backend.logits(r) for r in range(len(rows))]))

    return stepped_logits(step, sequences)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", [SHARP, WIDE], ids=["narrow", "wide"])
def test_teacher_forced_divergence_is_at_most_twice_that_of_bf16_torch(
    tmp_path: Path, shape: dict[str, Any], seed: int
) -> None:
    folder = make_tiny("cohere2_moe", tmp_path, seed=seed, dtype=torch.bfloat16, **shape)
    weights = open_weights(folder)
    sequences = random_sequences(N_SEQUENCES, N_TOKENS, VOCAB_SIZE, seed)
    reference = fp32_logits(weights, sequences)
    allowed = 2 * mean_divergence(reference, bf16_logits(folder, sequences))
    for order in ("lean", "shipped"):
        ours = mean_divergence(reference, megakernel_logits(weights, order, sequences))
        print(f"{order}: KL {ours:.2e}, bf16 torch {allowed / 2:.2e}, ratio {2 * ours / allowed:.2f}")
        assert ours <= allowed, order

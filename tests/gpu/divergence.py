"""Teacher-forced divergence from the fp32 reference, of a decoder that takes a token a step and of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointcode_local.engine.models.reference import TorchModel, full_logits
from pointcode_local.engine.weights import ModelWeights

Logits = list[torch.Tensor]  # a sequence each: (T, vocab)


def fp32_logits(weights: ModelWeights, sequences: Sequence[Sequence[int]]) -> Logits:
    """Of the independent reference, whole sequences at once."""
    model = TorchModel(weights, use_native=False)
    return [full_logits(model, ids) for ids in sequences]


def bf16_logits(folder: Path, sequences: Sequence[Sequence[int]]) -> Logits:
    """Of transformers with weights and activations in bf16."""
    import transformers

    kind: Any = transformers.Cohere2MoeForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    with torch.inference_mode():
        return [model(torch.tensor([ids])).logits[0].float() for ids in sequences]


def stepped_logits(step: Callable[[int, list[int]], torch.Tensor], sequences: Sequence[Sequence[int]]) -> Logits:
    """Of a decoder: step(position, a token per sequence) gives (sequences, vocab). Sequences are equally long."""
    by_position = [step(t, [int(ids[t]) for ids in sequences]) for t in range(len(sequences[0]))]
    return list(torch.stack(by_position, dim=1))


def mean_divergence(reference: Logits, other: Logits) -> float:
    """Mean over all positions of KL(reference || other), in nats."""
    p, q = (torch.cat(logits).double().log_softmax(-1) for logits in (reference, other))
    return float((p.exp() * (p - q)).sum(-1).mean())


def random_sequences(n: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    """`n` sequences of random tokens."""
    return np.random.default_rng(seed).integers(0, vocab, (n, length)).tolist()

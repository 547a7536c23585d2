"""A model of any shape with random weights, made on the device: speed needs no checkpoint."""

from __future__ import annotations

import torch

from ..models.config import LayerSpec, ModelConfig
from .device_weights import DeviceModel, empty_model

_RUN = 1 << 28


def north_mini(n_layers: int = 49, vocab: int = 262144) -> ModelConfig:
    """The shape of North Mini Code 1.0 (a speed measurement states it; a checkpoint states its own)."""
    layers = tuple(
        LayerSpec(rope=i == 0 or i % 4 != 0, sliding=i % 4 != 0, moe=i > 0, intermediate=768 if i else 3072)
        for i in range(n_layers)
    )
    return ModelConfig(
        family="cohere2_moe",
        hidden=2048,
        n_heads=32,
        n_kv_heads=4,
        head_dim=128,
        vocab=vocab,
        layers=layers,
        eps=1e-6,
        rope_theta=50000.0,
        max_positions=500000,
        tied=True,
        n_experts=128,
        top_k=8,
        window=4096,
        parallel_block=True,
        rope_interleaved=True,
    )


def random_model(config: ModelConfig, device: torch.device, *, packed: bool = True, seed: int = 0) -> DeviceModel:
    """Every matrix is normal with deviation 0.03 (the head 0.3), norms lie near 1."""
    generator = torch.Generator(device).manual_seed(seed)
    model = empty_model(config, packed=packed, device=device)
    for layer in model.layers:
        for matrix in layer.matrices():
            _fill(matrix.data, 0.03, generator)
        layer.norm.normal_(1.0, 0.1, generator=generator)
    model.final_norm.normal_(1.0, 0.1, generator=generator)
    for matrix in {id(m): m for m in (model.head, model.embed)}.values():
        _fill(matrix.data, 0.3, generator)
    return model


def _fill(data: torch.Tensor, deviation: float, generator: torch.Generator) -> None:
    """Padding too becomes random: it meets activations that are zero."""
    flat = data.view(-1)
    for begin in range(0, flat.numel(), _RUN):
        flat[begin : begin + _RUN].normal_(0.0, deviation, generator=generator)

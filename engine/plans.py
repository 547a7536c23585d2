"""What the scheduler, the KV cache and the native backends need of a configuration."""

from __future__ import annotations

from . import _native
from .kv_cache import KvGeometry
from .models.config import ModelConfig
from .tasks import LayerPlan, ModelPlan

_SHAPE_FIELDS = (
    *("hidden", "n_heads", "n_kv_heads", "head_dim", "vocab", "n_layers", "n_experts", "top_k", "window"),
    *("parallel_block", "rope_interleaved", "layer_norm", "norm_topk", "softmax_router"),
    *("eps", "rope_theta", "attn_scale", "logit_scale"),
)


def kv_geometry(config: ModelConfig, element_bytes: int = 4) -> KvGeometry:
    """The cache's shape."""
    sliding = tuple(s.sliding for s in config.layers)
    return KvGeometry(sliding, config.n_kv_heads, config.head_dim, config.window, element_bytes)


def model_plan(config: ModelConfig) -> ModelPlan:
    """What the scheduler needs of a configuration."""
    return ModelPlan(
        config.hidden,
        config.n_heads,
        config.n_kv_heads,
        config.head_dim,
        config.vocab,
        config.n_experts,
        config.top_k,
        config.parallel_block,
        tuple(LayerPlan(s.rope, s.sliding, s.moe, s.intermediate) for s in config.layers),
    )


def bare_shape(config: ModelConfig) -> _native.ModelShape:
    """The native form of the configuration, without weights."""
    shape = _native.ModelShape()
    for field in _SHAPE_FIELDS:
        setattr(shape, field, getattr(config, field))
    shape.layers = [
        _native.LayerShape(rope=s.rope, sliding=s.sliding, moe=s.moe, intermediate=s.intermediate)
        for s in config.layers
    ]
    return shape

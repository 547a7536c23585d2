"""qwen2: the llama block with biases on q, k and v (Qwen2.5, Qwen2.5-Coder)."""

from __future__ import annotations

from collections.abc import Mapping

from .config import Family, ModelConfig, WeightKind
from .fields import Fields, dense_config_from_gguf, dense_config_from_hf
from .llama import GGUF_LAYER_NAMES, LAYER_NAMES


def _from_hf(values: Mapping[str, object]) -> ModelConfig:
    Fields(values, "config.json").only("use_sliding_window", False)
    return dense_config_from_hf(values, "qwen2", attention_bias=True)


def _from_gguf(metadata: Mapping[str, object]) -> ModelConfig:
    # Unlike llama's, qwen2's q and k rows keep their order in GGUF: the rotation pairs halves.
    return dense_config_from_gguf(metadata, "qwen2", attention_bias=True, rope_interleaved=False)


FAMILY = Family(
    name="qwen2",
    layer_names={
        **LAYER_NAMES,
        WeightKind.Q_BIAS: "self_attn.q_proj.bias",
        WeightKind.K_BIAS: "self_attn.k_proj.bias",
        WeightKind.V_BIAS: "self_attn.v_proj.bias",
    },
    config_from_hf=_from_hf,
    gguf_layer_names={
        **GGUF_LAYER_NAMES,
        WeightKind.Q_BIAS: "attn_q.bias",
        WeightKind.K_BIAS: "attn_k.bias",
        WeightKind.V_BIAS: "attn_v.bias",
    },
    config_from_gguf=_from_gguf,
)

"""llama: a dense decoder with RMSNorm, grouped-query attention and a SwiGLU (SmolLM2, Llama, Mistral-like)."""

from __future__ import annotations

from collections.abc import Mapping

from .config import Family, ModelConfig, WeightKind
from .fields import Fields, dense_config_from_gguf, dense_config_from_hf

LAYER_NAMES: Mapping[WeightKind, str] = {
    WeightKind.NORM_ATTN: "input_layernorm.weight",
    WeightKind.Q: "self_attn.q_proj.weight",
    WeightKind.K: "self_attn.k_proj.weight",
    WeightKind.V: "self_attn.v_proj.weight",
    WeightKind.O: "self_attn.o_proj.weight",
    WeightKind.NORM_FFN: "post_attention_layernorm.weight",
    WeightKind.GATE: "mlp.gate_proj.weight",
    WeightKind.UP: "mlp.up_proj.weight",
    WeightKind.DOWN: "mlp.down_proj.weight",
}

GGUF_LAYER_NAMES: Mapping[WeightKind, str] = {
    WeightKind.NORM_ATTN: "attn_norm.weight",
    WeightKind.Q: "attn_q.weight",
    WeightKind.K: "attn_k.weight",
    WeightKind.V: "attn_v.weight",
    WeightKind.O: "attn_output.weight",
    WeightKind.NORM_FFN: "ffn_norm.weight",
    WeightKind.GATE: "ffn_gate.weight",
    WeightKind.UP: "ffn_up.weight",
    WeightKind.DOWN: "ffn_down.weight",
}


def _from_hf(values: Mapping[str, object]) -> ModelConfig:
    fields = Fields(values, "config.json")
    fields.only("attention_bias", False)
    fields.only("sliding_window", None)
    return dense_config_from_hf(values, "llama", attention_bias=False)


def _from_gguf(metadata: Mapping[str, object]) -> ModelConfig:
    # GGUF stores the rows of q and k so that the rotation pairs neighbours; the published checkpoint pairs halves.
    return dense_config_from_gguf(metadata, "llama", attention_bias=False, rope_interleaved=True)


FAMILY = Family(
    name="llama",
    layer_names=LAYER_NAMES,
    config_from_hf=_from_hf,
    gguf_layer_names=GGUF_LAYER_NAMES,
    config_from_gguf=_from_gguf,
)

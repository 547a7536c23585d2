"""cohere2_moe: parallel block, mixture of experts, sliding layers with RoPE and full layers without (North Mini Code).

Where public implementations differ, this file and reference.py choose: RMSNorm when `rms_norm_eps` is set (a
`layer_norm_eps` next to it is unused) and bias-free LayerNorm otherwise; `sliding_window` counts the current key;
sigmoid weights are divided by their sum only under `norm_topk_prob`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ModelError
from .config import Family, LayerSpec, ModelConfig, WeightKind
from .fields import MAX_LAYERS, Fields, hf_rope_theta
from .llama import LAYER_NAMES

DEFAULT_LOGIT_SCALE = 0.0625  # the family's; North Mini Code states 1.0
DEFAULT_NORM_TOPK = True  # the family's; North Mini Code states false
DEFAULT_WINDOW_PATTERN = 4  # every fourth layer of those after the dense prefix sees everything


def _layer_types(fields: Fields, n_layers: int, n_dense: int) -> list[str]:
    if fields.values.get("layer_types") is not None:
        return fields.strings("layer_types", n_layers)
    prefix = fields.count("prefix_dense_sliding_window_pattern", 1)
    rest = fields.count("sliding_window_pattern", DEFAULT_WINDOW_PATTERN)
    periods = [(i, prefix) for i in range(n_dense)] + [(i, rest) for i in range(n_layers - n_dense)]
    return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i, period in periods]


def _mlp_types(fields: Fields, n_layers: int, n_dense: int) -> list[str]:
    if fields.values.get("mlp_layer_types") is not None:
        return fields.strings("mlp_layer_types", n_layers)
    return ["dense"] * n_dense + ["sparse"] * (n_layers - n_dense)


def _layers(fields: Fields) -> tuple[LayerSpec, ...]:
    n_layers, n_dense = fields.count("num_hidden_layers", most=MAX_LAYERS), fields.integer("first_k_dense_replace", 0)
    if not 0 <= n_dense <= n_layers:
        raise ModelError(f"config.json: first_k_dense_replace = {n_dense} of {n_layers} layers")
    layer_types, mlp_types = _layer_types(fields, n_layers, n_dense), _mlp_types(fields, n_layers, n_dense)
    unknown = {*layer_types} - {"full_attention", "sliding_attention"} | {*mlp_types} - {"dense", "sparse"}
    if unknown:
        raise ModelError(f"config.json: layer types {sorted(unknown)} are not implemented")
    expert_width = fields.count("intermediate_size")
    dense_width = fields.count("prefix_dense_intermediate_size", expert_width)
    prefix_rotates = fields.integer("prefix_dense_sliding_window_pattern", 1) == 1
    return tuple(
        LayerSpec(
            rope=attention == "sliding_attention" or (mlp == "dense" and prefix_rotates),
            sliding=attention == "sliding_attention",
            moe=mlp == "sparse",
            intermediate=expert_width if mlp == "sparse" else dense_width,
        )
        for attention, mlp in zip(layer_types, mlp_types, strict=True)
    )


def _from_hf(values: Mapping[str, object]) -> ModelConfig:
    fields = Fields(values, "config.json")
    fields.only("hidden_act", "silu")
    fields.only("attention_bias", False)
    fields.only("num_shared_experts", 0, None)
    fields.only("use_qk_norm", False)
    fields.only("use_parallel_block", True)
    fields.only("expert_selection_fn", "sigmoid", "softmax")
    softmax = values.get("expert_selection_fn", "softmax") == "softmax"
    layers = _layers(fields)
    hidden, n_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    rms = values.get("rms_norm_eps") is not None
    return ModelConfig(
        family="cohere2_moe",
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=fields.count("num_key_value_heads", n_heads),
        head_dim=fields.count("head_dim", 128),
        vocab=fields.count("vocab_size"),
        layers=layers,
        eps=fields.number("rms_norm_eps") if rms else fields.number("layer_norm_eps", 1e-5),
        rope_theta=hf_rope_theta(fields),
        max_positions=fields.count("max_position_embeddings", 8192),
        tied=bool(values.get("tie_word_embeddings", True)),
        n_experts=fields.count("num_experts"),
        top_k=fields.count("num_experts_per_tok"),
        window=fields.count("sliding_window", 4096) if any(s.sliding for s in layers) else 0,
        parallel_block=True,
        rope_interleaved=True,
        layer_norm=not rms,
        # The family's softmax runs over the chosen experts only, which is the softmax over all of them renormalised.
        norm_topk=softmax or bool(values.get("norm_topk_prob", DEFAULT_NORM_TOPK)),
        softmax_router=softmax,
        logit_scale=fields.number("logit_scale", DEFAULT_LOGIT_SCALE),
        eos_ids=fields.ids("eos_token_id"),
    )


FAMILY = Family(
    name="cohere2_moe",
    layer_names={k: name for k, name in LAYER_NAMES.items() if k != WeightKind.NORM_FFN}
    | {WeightKind.ROUTER: "mlp.gate.weight"},
    config_from_hf=_from_hf,
    expert_names={
        WeightKind.EXPERT_GATE: "mlp.experts.{e}.gate_proj.weight",
        WeightKind.EXPERT_UP: "mlp.experts.{e}.up_proj.weight",
        WeightKind.EXPERT_DOWN: "mlp.experts.{e}.down_proj.weight",
    },
    fused_experts=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
)

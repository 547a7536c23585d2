"""Tiny GGUF files written with the `gguf` package from the same random models as tiny_models.py."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch

from .tiny_models import build_reference, write_tokenizer

GgufFamily = Literal["qwen2", "llama"]

_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def make_tiny_gguf(
    family: GgufFamily, path: Path, *, quant: str = "Q8_0", seed: int = 0, **overrides: Any
) -> tuple[Path, Any]:
    """Write a tiny GGUF file; returns it and the transformers model with exactly the rounded weights."""
    reference = build_reference(family, seed=seed, **overrides)
    writer = gguf.GGUFWriter(path, family)
    _write_metadata(writer, family, reference.config)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            stored = _stored_name(name)
            values = parameter.numpy().astype(np.float32)
            if family == "llama" and ("q_proj" in name or "k_proj" in name):
                values = _paired_rows(values, reference.config, "q_proj" in name)
            if values.ndim == 1:
                writer.add_tensor(stored, values)
                continue
            kind = gguf.GGMLQuantizationType[quant]
            raw = gguf.quantize(values, kind)
            writer.add_tensor(stored, raw, raw_dtype=kind)
            rounded = gguf.dequantize(raw, kind).astype(np.float32)
            if family == "llama" and ("q_proj" in name or "k_proj" in name):
                rounded = _halved_rows(rounded, reference.config, "q_proj" in name)
            parameter.copy_(torch.from_numpy(rounded.copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, reference


def _stored_name(name: str) -> str:
    module, _, suffix = name.rpartition(".")
    if module in _GLOBAL:
        return f"{_GLOBAL[module]}.{suffix}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{_LAYER[rest]}.{suffix}"


def _heads(config: Any, is_query: bool) -> int:
    return config.num_attention_heads if is_query else config.num_key_value_heads


def _paired_rows(values: np.ndarray, config: Any, is_query: bool) -> np.ndarray:
    """Rows (half, i) of every head become rows (i, half): what the converter of llama models does."""
    n = _heads(config, is_query)
    return values.reshape(n, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _halved_rows(values: np.ndarray, config: Any, is_query: bool) -> np.ndarray:
    n = _heads(config, is_query)
    return values.reshape(n, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _write_metadata(writer: gguf.GGUFWriter, family: GgufFamily, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if head_dim := getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _write_tokenizer(writer, family, config)


def _write_tokenizer(writer: gguf.GGUFWriter, family: GgufFamily, config: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(family, Path(folder))
        spec = json.loads((Path(folder) / "tokenizer.json").read_text())
        template = (Path(folder) / "chat_template.jinja").read_text()
    vocab = {**spec["model"]["vocab"], **{t["content"]: t["id"] for t in spec["added_tokens"]}}
    special = {t["id"] for t in spec["added_tokens"]}
    by_id = {i: token for token, i in vocab.items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([5 if i not in by_id else 3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]])
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_chat_template(template)

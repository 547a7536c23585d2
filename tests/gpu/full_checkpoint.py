"""A model folder of any cohere2_moe shape with random weights, written as fast as memory takes it.

Every tensor is cut from one block of random values, so nothing is computed per tensor. The layout is the published one:
experts lie apart. A shard holds a layer.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from pointcode_local.engine.models.config import LayerSpec, ModelConfig

from ..engine.tiny_models import write_tokenizer

_BLOCK_BYTES = 256 << 20
_WRITERS = 8
Tensor = tuple[str, tuple[int, ...]]


def write_checkpoint(folder: Path, config: ModelConfig) -> int:
    """Writes config, tokenizer and weights into `folder`; returns the bytes of the weights."""
    write_tokenizer("cohere2_moe", folder)
    (folder / "config.json").write_text(json.dumps(_hf_config(config), indent=1))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shards = dict(_shards(config))
    n_values = min(_BLOCK_BYTES, 4 * max(_n_bytes(tensors) for tensors in shards.values())) // 2
    values = torch.empty(n_values, dtype=torch.bfloat16, device=device).normal_(0.0, 0.03)
    block = values.cpu().view(torch.uint8).numpy().data
    with ThreadPoolExecutor(_WRITERS) as pool:
        written = [pool.submit(_write_shard, folder / shard, tensors, block) for shard, tensors in shards.items()]
        sizes = [size.result() for size in written]
    weight_map = {name: shard for shard, tensors in shards.items() for name, _ in tensors}
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(sizes)


def checkpoint_bytes(config: ModelConfig) -> int:
    """Bytes of all weights."""
    return sum(_n_bytes(tensors) for _, tensors in _shards(config))


def _shards(config: ModelConfig) -> Iterator[tuple[str, list[Tensor]]]:
    """(file, its tensors): the embedding with the last norm, then a layer each."""
    n = config.n_layers + 1
    yield (
        f"model-00001-of-{n:05}.safetensors",
        [("model.embed_tokens.weight", (config.vocab, config.hidden)), ("model.norm.weight", (config.hidden,))],
    )
    for i, spec in enumerate(config.layers):
        tensors = [(f"model.layers.{i}.{name}", shape) for name, shape in _layer(config, spec)]
        yield f"model-{i + 2:05}-of-{n:05}.safetensors", tensors


def _layer(config: ModelConfig, spec: LayerSpec) -> Iterator[Tensor]:
    d, q, kv = config.hidden, config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    yield "input_layernorm.weight", (d,)
    for name, rows, cols in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
        yield f"self_attn.{name}_proj.weight", (rows, cols)
    prefixes = [f"mlp.experts.{e}." for e in range(config.n_experts)] if spec.moe else ["mlp."]
    if spec.moe:
        yield "mlp.gate.weight", (config.n_experts, d)
    for prefix in prefixes:
        for name, rows, cols in (("gate", spec.intermediate, d), ("up", spec.intermediate, d)):
            yield f"{prefix}{name}_proj.weight", (rows, cols)
        yield f"{prefix}down_proj.weight", (d, spec.intermediate)


def _n_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(torch.Size(shape).numel() * 2 for _, shape in tensors)


def _write_shard(path: Path, tensors: Sequence[Tensor], block: memoryview) -> int:
    """Returns the bytes of the tensors."""
    header: dict[str, object] = {}
    at = 0
    for name, shape in tensors:
        end = at + torch.Size(shape).numel() * 2
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    dice = random.Random(path.name)
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = at
        while left:
            begin = dice.randrange(0, len(block) // 2) // 8 * 8
            left -= file.write(block[begin : begin + min(left, len(block) - begin)])
    return at


def _hf_config(config: ModelConfig) -> dict[str, object]:
    dense = [spec.intermediate for spec in config.layers if not spec.moe]
    return {
        "model_type": "cohere2_moe",
        "architectures": ["Cohere2MoeForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": config.hidden,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "num_hidden_layers": config.n_layers,
        "first_k_dense_replace": len(dense),
        "prefix_dense_intermediate_size": dense[0],
        "intermediate_size": next(spec.intermediate for spec in config.layers if spec.moe),
        "layer_types": ["sliding_attention" if spec.sliding else "full_attention" for spec in config.layers],
        "num_experts": config.n_experts,
        "num_experts_per_tok": config.top_k,
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": config.norm_topk,
        "sliding_window": config.window,
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope_theta,
        "logit_scale": config.logit_scale,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tied,
    }

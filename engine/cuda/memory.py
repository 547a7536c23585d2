"""What of the card's memory goes where: weights, workspace, KV pages. Refuses before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BackendError, CapacityError
from ..kv_cache import FULL, GROUPS, PAGE_TOKENS, SLIDING, KvGeometry
from ..models.config import LayerSpec, ModelConfig
from .packing import packed_bytes

RESERVE_BYTES = 1 << 30  # CUDA context, cuBLAS workspaces, fragmentation
MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes per purpose, and the pages of each KV group that fit what is left."""

    total_bytes: int  # free on the card before loading
    weight_bytes: int
    workspace_bytes: int  # decode buffers and prefill scratch
    n_full_pages: int
    n_sliding_pages: int
    kv_bytes: int

    @property
    def kv_tokens(self) -> int:
        """Tokens of full-attention KV that fit."""
        return max(self.n_full_pages, 0) * PAGE_TOKENS

    def describe(self) -> str:
        """One line for people."""
        return (
            f"weights {self.weight_bytes / 1e9:.1f} GB, workspace {self.workspace_bytes / 1e9:.1f} GB, "
            f"KV {self.kv_bytes / 1e9:.1f} GB = {self.n_full_pages} full and {self.n_sliding_pages} sliding pages "
            f"({self.kv_tokens} tokens) of {self.total_bytes / 1e9:.1f} GB free"
        )


def layer_bytes(config: ModelConfig, spec: LayerSpec) -> int:
    """Packed bytes of one layer's matrices and its norm."""
    d, heads = config.hidden, config.n_heads + 2 * config.n_kv_heads
    experts = config.n_experts if spec.moe else 1
    total = packed_bytes(heads * config.head_dim, d) + packed_bytes(d, config.n_heads * config.head_dim)
    total += packed_bytes(2 * spec.intermediate, d, experts) + packed_bytes(d, spec.intermediate, experts)
    if spec.moe:
        total += packed_bytes(config.n_experts, d)
    return total + 4 * d


def weight_bytes(config: ModelConfig) -> int:
    """Packed bytes of the whole model; a tied head is held once."""
    head = packed_bytes(config.vocab, config.hidden) * (1 if config.tied else 2)
    return sum(layer_bytes(config, spec) for spec in config.layers) + head + 4 * config.hidden


def workspace_bytes(config: ModelConfig, chunk_tokens: int) -> int:
    """Decode buffers, one unpacked layer, and the activations of a prefill chunk."""
    largest = max(layer_bytes(config, spec) for spec in config.layers)
    pairs = chunk_tokens * max(config.top_k, 1)
    widest = max(spec.intermediate for spec in config.layers)
    experts = pairs * (2 * config.hidden + 3 * widest) * 2  # gathered input, output; gate/up, hidden
    width = (2 * config.n_heads + 2 * config.n_kv_heads) * config.head_dim
    activations = chunk_tokens * (4 * config.hidden * 4 + 2 * width * 2)
    decode = MAX_ROWS * config.vocab * 4 * 3 + (64 << 20)
    return largest + experts + activations + decode


def plan_memory(
    config: ModelConfig, geometry: KvGeometry, free_bytes: int, *, chunk_tokens: int, kv_limit_bytes: int | None = None
) -> MemoryPlan:
    """Divides `free_bytes`; raises BackendError with the numbers when the model or its smallest cache does not fit."""
    weights, workspace = weight_bytes(config), workspace_bytes(config, chunk_tokens)
    left = free_bytes - weights - workspace - RESERVE_BYTES
    least = sum(geometry.page_bytes(group) for group in GROUPS) * 2
    if left < least:
        raise BackendError(
            f"the model does not fit: {free_bytes / 1e9:.1f} GB of GPU memory are free; weights take "
            f"{weights / 1e9:.1f} GB, workspace {workspace / 1e9:.1f} GB, reserve {RESERVE_BYTES / 1e9:.1f} GB"
        )
    budget = left if kv_limit_bytes is None else min(left, kv_limit_bytes)
    try:
        n_full, n_sliding = geometry.page_counts(budget, MAX_ROWS, chunk_tokens)
    except CapacityError as error:
        raise BackendError(f"no room for KV pages: {error}") from error
    kv = n_full * geometry.page_bytes(FULL) + n_sliding * geometry.page_bytes(SLIDING)
    return MemoryPlan(free_bytes, weights, workspace, n_full, n_sliding, kv)

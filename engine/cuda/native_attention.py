"""Causal attention of a chunk with the native kernel (csrc/prefill_attention.cu), on Hopper.

Letters: T queries, S keys, H query heads, G KV heads, C head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from .. import _native

HEAD_DIM = 128  # as in csrc/prefill_attention.h


@dataclass(frozen=True, slots=True, eq=False)
class GroupedQueries:
    """Queries where they were computed: rows (T, G (H / G + 2) C) bf16 of a grouped QKV product, contiguous, which are
    rotated with (cos, sin) (T, C / 2) fp32, contiguous, when they are read."""

    qkv: torch.Tensor
    rotation: tuple[torch.Tensor, torch.Tensor] | None
    n_heads: int


def split_kv(queries: GroupedQueries, k: torch.Tensor, v: torch.Tensor) -> None:
    """Fills k and v (T, G, C), contiguous, with the keys, rotated, and the values that lie beside the queries."""
    n, groups, _ = k.shape
    _native.split_kv(
        queries.qkv.data_ptr(),
        *_addresses(queries.rotation),
        k.data_ptr(),
        v.data_ptr(),
        n,
        groups,
        queries.n_heads // groups,
        _stream(k.device),
    )


def attend(
    q: torch.Tensor | GroupedQueries, k: torch.Tensor, v: torch.Tensor, *, window: int, scale: float
) -> torch.Tensor:
    """(T, H, C) of q (T, H, C) over k and v (S, G, C), contiguous bf16; `window` as in attention.attend."""
    n_keys, groups, dims = k.shape
    if isinstance(q, GroupedQueries):
        rows, rotation, heads, extra = q.qkv, q.rotation, q.n_heads, 2
    else:
        rows, rotation, heads, extra = q, None, q.shape[1], 0
    out = k.new_empty(rows.shape[0], heads, dims)
    _native.prefill_attention(
        rows.data_ptr(),
        *_addresses(rotation),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        rows.shape[0],
        n_keys,
        heads,
        groups,
        extra,
        window,
        scale,
        _n_sms(k.device),
        _stream(k.device),
    )
    return out


def _addresses(rotation: tuple[torch.Tensor, torch.Tensor] | None) -> tuple[int, int]:
    return (0, 0) if rotation is None else (rotation[0].data_ptr(), rotation[1].data_ptr())


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def is_built() -> bool:
    """Whether the kernel is there at all."""
    return getattr(_native, "HAS_CUDA", False) and hasattr(_native, "prefill_attention")


@lru_cache(maxsize=8)
def _n_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count

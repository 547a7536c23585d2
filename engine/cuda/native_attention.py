"""Causal attention of a chunk with the native kernel (csrc/prefill_attention.cu), on Hopper.

Letters: T queries, S keys, H query heads, G KV heads, C head_dim.
"""

from __future__ import annotations

import torch

from .. import _native
from .card import n_sms

HEAD_DIM = 128  # as in csrc/prefill_attention.h


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int, scale: float) -> torch.Tensor:
    """(T, H, C) of q (T, H, C) over k and v (S, G, C), contiguous bf16; `window` as in attention.attend."""
    n, heads, _ = q.shape
    out = torch.empty_like(q)
    _native.prefill_attention(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        n,
        k.shape[0],
        heads,
        k.shape[1],
        window,
        scale,
        n_sms(q.device),
        torch.cuda.current_stream(q.device).cuda_stream,
    )
    return out


def is_built() -> bool:
    """Whether the kernel is there at all."""
    return getattr(_native, "HAS_CUDA", False) and hasattr(_native, "prefill_attention")

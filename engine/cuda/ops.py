"""The operations of a prefill chunk, in torch; on a GPU the Triton kernels of the same name do them.

Letters: T tokens, D hidden, H query heads, G KV heads, C head_dim, F hidden units of an expert, E experts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..models.config import ModelConfig


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """bf16 of the RMSNorm of x (T, D) fp32."""
    if x.is_cuda:
        from . import triton_kernels

        return triton_kernels.rms_norm(x, weight, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps).to(torch.bfloat16)


def split_qkv(
    qkv: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor] | None, n_heads: int, n_kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q (T, H, C), k and v (T, G, C) of a grouped QKV output (T, (H + 2G) C); rotated with (cos, sin) (T, C/2) fp32."""
    if qkv.is_cuda:
        from . import triton_kernels

        return triton_kernels.split_qkv(qkv, rotation, n_heads, n_kv_heads)
    per_group = n_heads // n_kv_heads
    grouped = qkv.view(qkv.shape[0], n_kv_heads, per_group + 2, -1)
    q, k, v = grouped[:, :, :per_group].flatten(1, 2), grouped[:, :, per_group], grouped[:, :, per_group + 1]
    if rotation is not None:
        q, k = _rotate(q, *rotation), _rotate(k, *rotation)
    return q.contiguous(), k.contiguous(), v.contiguous()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., ::2].float(), x[..., 1::2].float()
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


def silu_up(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """silu(gate) · up · weight (n, F), of x (n, 2F) gates and ups alternating in runs of eight; weight (n,) fp32."""
    if x.is_cuda:
        from . import triton_kernels

        return triton_kernels.silu_up(x, weight)
    gate, up = x.view(x.shape[0], -1, 2, 8).float().unbind(2)
    y = (F.silu(gate) * up).flatten(1)
    return (y if weight is None else y * weight.unsqueeze(1)).to(x.dtype)


def add_parts(x: torch.Tensor, attention: torch.Tensor, parts: torch.Tensor, places: torch.Tensor) -> None:
    """x (T, D) fp32 += attention (T, D) + the sum over slots of parts[places[t]]; places (T, top_k) int64."""
    if x.is_cuda:
        from . import triton_kernels

        triton_kernels.add_parts(x, attention, parts, places)
        return
    x += attention.float() + parts[places].float().sum(1)


def route(h: torch.Tensor, router: torch.Tensor, config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts (T, top_k) int64 and their weights (T, top_k) fp32: largest logits first, ties to the lower id."""
    logits = F.linear(h.float(), router.float())
    top, ids = logits.sort(dim=-1, descending=True, stable=True)
    ids, weights = ids[:, : config.top_k], torch.sigmoid(top[:, : config.top_k])
    return ids, weights / weights.sum(-1, keepdim=True) if config.norm_topk else weights


def rotation_table(positions: torch.Tensor, config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (T, C/2) fp32 of positions (T,)."""
    exponents = torch.arange(config.head_dim // 2, dtype=torch.float32, device=positions.device) * 2 / config.head_dim
    angles = positions.float().unsqueeze(1) * (1.0 / config.rope_theta**exponents)
    return angles.cos(), angles.sin()

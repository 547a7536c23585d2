"""The operations of a prefill chunk, in torch; on a GPU the Triton kernels of the same name do them.

Letters: T tokens, D hidden, H query heads, G KV heads, C head_dim, F hidden units of an expert, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..models.config import ModelConfig


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """A chunk's pairs (token, chosen expert), expert by expert, within an expert in the order of the tokens.

    `source` (T · top_k,) int32 says which token a pair is, `weights` (T · top_k,) fp32 how much its expert counts;
    expert e's pairs end before `ends[e]`, (E,) int32; slot s of token t lies at `places[t, s]`, (T, top_k) int32.
    """

    source: torch.Tensor
    weights: torch.Tensor
    ends: torch.Tensor
    places: torch.Tensor


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """bf16 of the RMSNorm of x (T, D) fp32."""
    if x.is_cuda:
        from . import triton_kernels

        return triton_kernels.rms_norm(x, weight, eps)
    return F.rms_norm(x, x.shape[-1:], weight, eps).to(torch.bfloat16)


def split_qkv(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    n_heads: int,
    k: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor:
    """q (T, H, C) of a grouped QKV output (T, (H + 2G) C), whose K and V go to k and v (T, G, C), contiguous.

    q and k are rotated with (cos, sin) (T, C/2) fp32 when they are given.
    """
    if qkv.is_cuda:
        from . import triton_kernels

        return triton_kernels.split_qkv(qkv, rotation, n_heads, k, v)
    n_kv_heads = k.shape[1]
    per_group = n_heads // n_kv_heads
    grouped = qkv.view(qkv.shape[0], n_kv_heads, per_group + 2, -1)
    q, keys = grouped[:, :, :per_group].flatten(1, 2), grouped[:, :, per_group]
    if rotation is not None:
        q, keys = _rotate(q, *rotation), _rotate(keys, *rotation)
    k.copy_(keys)
    v.copy_(grouped[:, :, per_group + 1])
    return q.contiguous()


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
    """x (T, D) fp32 += attention (T, D) + the sum over slots of parts[places[t]]; places (T, top_k) integers."""
    if x.is_cuda:
        from . import triton_kernels

        triton_kernels.add_parts(x, attention, parts, places)
        return
    x += attention.float() + parts[places].float().sum(1)


def router_logits(h: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
    """(T, E) fp32 of h (T, D) and router (E, D), bf16; products and sums in fp32."""
    if h.is_cuda:
        return torch.mm(h, router.t(), out_dtype=torch.float32)
    return F.linear(h.float(), router.float())


def dispatch(logits: torch.Tensor, top_k: int, *, normalise: bool) -> Pairs:
    """The pairs of a chunk's tokens with the experts that their router logits (T, E) fp32 choose."""
    if logits.is_cuda:
        from . import triton_experts

        return Pairs(*triton_experts.dispatch(logits, top_k, normalise=normalise))
    return by_expert(*route(logits, top_k, normalise=normalise), logits.shape[1])


def route(logits: torch.Tensor, top_k: int, *, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts (T, top_k) int64 and their weights (T, top_k) fp32: largest logits first, ties to the lower id."""
    top, ids = logits.sort(dim=-1, descending=True, stable=True)
    ids, weights = ids[:, :top_k], torch.sigmoid(top[:, :top_k])
    return ids, weights / weights.sum(-1, keepdim=True) if normalise else weights


def by_expert(ids: torch.Tensor, weights: torch.Tensor, n_experts: int) -> Pairs:
    """The pairs of tokens with experts `ids` (T, top_k) and their `weights`."""
    order = ids.flatten().sort(stable=True).indices
    places = torch.empty_like(order, dtype=torch.int32)
    places[order] = torch.arange(order.numel(), dtype=torch.int32, device=ids.device)
    ends = ids.flatten().bincount(minlength=n_experts).cumsum(0).to(torch.int32)
    source = (order // ids.shape[1]).to(torch.int32)
    return Pairs(source, weights.flatten()[order], ends, places.view_as(ids))


def gather(h: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Each pair's row of h (T, D): (T · top_k, D)."""
    if h.is_cuda:
        from . import triton_experts

        return triton_experts.gather(h, pairs.places)
    return h[pairs.source]


def rotation_table(positions: torch.Tensor, config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (T, C/2) fp32 of positions (T,)."""
    exponents = torch.arange(config.head_dim // 2, dtype=torch.float32, device=positions.device) * 2 / config.head_dim
    angles = positions.float().unsqueeze(1) * (1.0 / config.rope_theta**exponents)
    return angles.cos(), angles.sin()

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

    Expert e's pairs are [begins[e], ends[e]), (E,) int32. `source` (P,) int32 says which token a pair is; what it says
    between two experts' pairs means nothing. Slot s of token t lies at `places[t, s]`, (T, top_k) int32, and its expert
    counts `weights[t, s]`, (T, top_k) fp32.
    """

    source: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor
    places: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Summands of tokens: rows places[t] (T, n) int32 of values (P, D), times weights (T, n) fp32 where given."""

    values: torch.Tensor
    places: torch.Tensor
    weights: torch.Tensor | None


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


def silu_up(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up (n, F), of x (n, 2F) gates and ups alternating in runs of eight."""
    if x.is_cuda:
        from . import triton_kernels

        return triton_kernels.silu_up(x)
    gate, up = x.unflatten(1, (-1, 2, 8)).float().unbind(2)
    return (F.silu(gate) * up).flatten(1).to(x.dtype)


def add_parts(x: torch.Tensor, attention: torch.Tensor, parts: Parts, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """x (T, D) fp32 += attention (T, D) + its parts; returns bf16 of x's RMSNorm with the weights `norm` (D,) fp32."""
    if x.is_cuda:
        from . import triton_kernels

        return triton_kernels.add_parts(x, attention, parts.values, parts.places, parts.weights, norm, eps)
    chosen = parts.values[parts.places].float()
    x += attention.float() + (chosen if parts.weights is None else chosen * parts.weights.unsqueeze(2)).sum(1)
    return rms_norm(x, norm, eps)


def router_logits(h: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
    """(T, E) fp32 of h (T, D) and router (E, D), bf16; products and sums in fp32."""
    if h.is_cuda:
        return torch.mm(h, router.t(), out_dtype=torch.float32)
    return F.linear(h.float(), router.float())


def dispatch(logits: torch.Tensor, top_k: int, *, normalise: bool, unit: int = 1) -> Pairs:
    """The pairs of a chunk's tokens with the experts that their router logits (T, E) fp32 choose.

    `unit`: every expert's pairs begin at a multiple (on a GPU only)."""
    if logits.is_cuda:
        from . import triton_experts

        return Pairs(*triton_experts.dispatch(logits, top_k, normalise=normalise, unit=unit))
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
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    return Pairs(source, begins, ends, places.view_as(ids), weights)


def gather(h: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Each pair's row of h (T, D): (P, D)."""
    if h.is_cuda:
        from . import triton_experts

        return triton_experts.gather(h, pairs.places, pairs.source.shape[0])
    return h[pairs.source]


def rotation_table(positions: torch.Tensor, config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin (T, C/2) fp32 of positions (T,)."""
    exponents = torch.arange(config.head_dim // 2, dtype=torch.float32, device=positions.device) * 2 / config.head_dim
    angles = positions.float().unsqueeze(1) * (1.0 / config.rope_theta**exponents)
    return angles.cos(), angles.sin()

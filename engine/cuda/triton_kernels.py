"""Triton kernels of prefill: unpacking of weights, norm, RoPE, SiLU·up, and the sum of the experts' outputs.

Imported only where tensors are on a GPU; `ops.py` holds the same operations in torch, which the tests compare.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportIndexIssue=false, reportMissingImports=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

_K_TILES = 16  # k-tiles that one program unpacks


@triton.jit
def _unpack_kernel(packed, out, packed_tiles, k_tiles, BLOCK: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)  # pairs of values, in packed order: k-tile, g, t, b, hi
    k_tile = tl.program_id(1) * (BLOCK // 128) + at // 128
    pair = at % 128
    row = (pair % 2) * 8 + pair // 16
    column = k_tile * 8 + (pair // 2 % 2) * 4 + pair // 4 % 4
    inside = k_tile < k_tiles
    values = tl.load(packed + tile * packed_tiles * 128 + k_tile * 128 + pair, mask=inside)
    tl.store(out + (tile * 16 + row) * (k_tiles * 8) + column, values, mask=inside)


def unpack_tiles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """Packed (E, M, J, 256) to row-major out (E, rows, K); rows and K multiples of 16."""
    k_tiles = out.shape[2] // 16
    grid = (packed.shape[0] * packed.shape[1], triton.cdiv(k_tiles, _K_TILES))
    _unpack_kernel[grid](
        packed.view(torch.int32), out.view(torch.int32), packed.shape[2], k_tiles, BLOCK=_K_TILES * 128, num_warps=4
    )


@triton.jit
def _rms_norm_kernel(x, weight, out, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    values = tl.load(x + row * hidden + at, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / hidden + eps)
    normed = values * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row * hidden + at, normed.to(tl.bfloat16), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """bf16 of the RMSNorm of x (T, D) fp32."""
    out = torch.empty_like(x, dtype=torch.bfloat16)
    hidden = x.shape[1]
    _rms_norm_kernel[(x.shape[0],)](x, weight, out, hidden, eps, BLOCK=triton.next_power_of_2(hidden), num_warps=8)
    return out


@triton.jit
def _split_qkv_kernel(
    qkv, cos, sin, q, k, v, HEADS: tl.constexpr, SLOTS: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """A token's heads of one group; a word holds two values that are rotated together."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    head = tl.arange(0, SLOTS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = (head < HEADS + 2) & (at < HALF)
    words = tl.load(qkv + ((token * GROUPS + group) * (HEADS + 2) + head) * HALF + at, mask=inside, other=0)
    if ROPE:
        a = (words << 16).to(tl.float32, bitcast=True)
        b = ((words >> 16) << 16).to(tl.float32, bitcast=True)
        c = tl.load(cos + token * HALF + at)
        s = tl.load(sin + token * HALF + at)
        low = (a * c - b * s).to(tl.bfloat16).to(tl.uint16, bitcast=True).to(tl.int32)
        high = (b * c + a * s).to(tl.bfloat16).to(tl.uint16, bitcast=True).to(tl.int32)
        words = tl.where(head <= HEADS, low | (high << 16), words)
    kv = (token * GROUPS + group) * HALF + at
    tl.store(q + ((token * GROUPS + group) * HEADS + head) * HALF + at, words, mask=inside & (head < HEADS))
    tl.store(k + kv + head * 0, words, mask=inside & (head == HEADS))
    tl.store(v + kv + head * 0, words, mask=inside & (head == HEADS + 1))


def split_qkv(
    qkv: torch.Tensor,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    n_heads: int,
    k: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor:
    """q (T, H, C) of a grouped QKV output (T, (H + 2G) C); fills k and v (T, G, C), contiguous. See ops."""
    n, n_kv_heads, dims = k.shape
    per_group = n_heads // n_kv_heads
    q = qkv.new_empty(n, n_heads, dims)
    cos, sin = rotation if rotation is not None else (qkv, qkv)
    words = (t.view(torch.int32) for t in (q, k, v))
    _split_qkv_kernel[(n, n_kv_heads)](
        qkv.view(torch.int32), cos, sin, *words, HEADS=per_group, SLOTS=triton.next_power_of_2(per_group + 2),
        HALF=dims // 2, ROPE=rotation is not None, GROUPS=n_kv_heads, num_warps=2,
    )  # fmt: skip
    return q


@triton.jit
def _silu_up_kernel(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    source = x + row * 2 * width + at // 8 * 16 + at % 8
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + 8, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, y.to(tl.bfloat16), mask=inside)


def silu_up(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up, (n, F), of x (n, 2F) whose gates and ups alternate in runs of eight."""
    n, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(n, width)
    block = min(1024, triton.next_power_of_2(width))
    _silu_up_kernel[(n, triton.cdiv(width, block))](x, out, width, BLOCK=block)
    return out


@triton.jit
def _add_parts_kernel(
    x, attention, parts, places, weights, norm, out, hidden, eps, PARTS: tl.constexpr, WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    here = token * hidden + at
    total = tl.load(x + here, mask=inside, other=0.0) + tl.load(attention + here, mask=inside, other=0.0).to(tl.float32)
    for slot in tl.static_range(PARTS):
        place = tl.load(places + token * PARTS + slot).to(tl.int64)
        part = tl.load(parts + place * hidden + at, mask=inside, other=0.0).to(tl.float32)
        if WEIGHTED:
            part *= tl.load(weights + token * PARTS + slot)
        total += part
    tl.store(x + here, total, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, 0) / hidden + eps)
    normed = total * scale * tl.load(norm + at, mask=inside, other=0.0)
    tl.store(out + here, normed.to(tl.bfloat16), mask=inside)


def add_parts(
    x: torch.Tensor,
    attention: torch.Tensor,
    parts: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor | None,
    norm: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """x (T, D) fp32 += attention (T, D) + the sum of parts[places[t]] (P, D), places (T, n) int32, times weights (T, n)
    fp32 where given; returns bf16 of its RMSNorm."""
    n, hidden = x.shape
    out = torch.empty_like(x, dtype=torch.bfloat16)
    _add_parts_kernel[(n,)](
        x, attention, parts, places, norm if weights is None else weights, norm, out, hidden, eps,
        PARTS=places.shape[1], WEIGHTED=weights is not None, BLOCK=triton.next_power_of_2(hidden), num_warps=8,
    )  # fmt: skip
    return out

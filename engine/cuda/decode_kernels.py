"""Triton kernels of the torch backend's decode step: RoPE with KV write, paged attention, expert products.

One kernel per operation, as an engine without a megakernel runs them. Letters: B rows, H query heads, G KV heads, N
query heads of a KV head, C head_dim, S attention splits, K experts a token, F hidden units, D hidden.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportIndexIssue=false, reportMissingImports=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LOG2E = 1.4426950408889634


@triton.jit
def _add_norm_kernel(x, attention, ffn, weight, out, hidden, eps, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    values = tl.load(x + row * hidden + at, mask=inside, other=0.0)
    if PARTS > 0:
        values += tl.load(attention + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
        for part in range(PARTS):
            values += tl.load(ffn + (row * PARTS + part) * hidden + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + row * hidden + at, values, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / hidden + eps)
    normed = values * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row * hidden + at, normed.to(tl.bfloat16), mask=inside)


def add_norm(
    x: torch.Tensor, attention: torch.Tensor | None, ffn: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """x (B, D) fp32 += attention (B, D) + the sum of ffn (B, parts, D); returns bf16 of its RMSNorm."""
    n, hidden = x.shape
    out = torch.empty_like(x, dtype=torch.bfloat16)
    parts = 0 if ffn is None else ffn.shape[1]
    _add_norm_kernel[(n,)](
        x,
        x if attention is None else attention,
        x if ffn is None else ffn,
        weight,
        out,
        hidden,
        eps,
        PARTS=parts,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=8,
    )
    return out


@triton.jit
def _rope_write_kernel(
    qkv, frequencies, positions, table, k_pool, v_pool, q, max_pages,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIMS: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    group = tl.program_id(1)
    head = tl.program_id(2)
    HALF: tl.constexpr = DIMS // 2
    at = tl.arange(0, HALF)
    position = tl.load(positions + row)
    source = qkv + ((row * GROUPS + group) * (HEADS + 2) + head) * DIMS
    a = tl.load(source + 2 * at).to(tl.float32)
    b = tl.load(source + 2 * at + 1).to(tl.float32)
    if ROPE:
        angle = position.to(tl.float32) * tl.load(frequencies + at)
        angle = tl.where(head <= HEADS, angle, 0.0)  # values are not turned
        c = tl.cos(angle)
        s = tl.sin(angle)
        rotated = a * c - b * s
        b = b * c + a * s
        a = rotated
    page = tl.load(table + row * max_pages + position // 64).to(tl.int64)
    slot = ((page * GROUPS + group) * 64 + position % 64) * DIMS
    if head < HEADS:
        target = q + ((row * GROUPS + group) * HEADS + head) * DIMS
    elif head == HEADS:
        target = k_pool + slot
    else:
        target = v_pool + slot
    tl.store(target + 2 * at, a.to(tl.bfloat16))
    tl.store(target + 2 * at + 1, b.to(tl.bfloat16))


def rope_write(
    qkv: torch.Tensor,
    frequencies: torch.Tensor | None,
    positions: torch.Tensor,
    table: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    n_heads: int,
) -> torch.Tensor:
    """Writes the rows' K and V to their pages (P, G, 64, C); returns q (B, H, C). table (B, max_pages) int32."""
    groups, dims = pools[0].shape[1], pools[0].shape[3]
    per_group, n = n_heads // groups, qkv.shape[0]
    q = qkv.new_empty(n, n_heads, dims)
    _rope_write_kernel[(n, groups, per_group + 2)](
        qkv, qkv if frequencies is None else frequencies, positions, table, *pools, q, table.shape[1],
        HEADS=per_group, GROUPS=groups, DIMS=dims, ROPE=frequencies is not None, num_warps=1,
    )  # fmt: skip
    return q


@triton.jit
def _attention_kernel(
    q, k_pool, v_pool, positions, table, parts, sums, max_pages, window, scale,
    HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, GROUPS: tl.constexpr, DIMS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    group = tl.program_id(1)
    split = tl.program_id(2)
    position = tl.load(positions + row)
    first = tl.maximum(position - window + 1, 0)
    first_page = first // 64
    n_pages = position // 64 - first_page + 1
    begin = first_page + n_pages * split // SPLITS
    end = first_page + n_pages * (split + 1) // SPLITS
    head = tl.arange(0, HEADS_PADDED)
    dim = tl.arange(0, DIMS)
    token = tl.arange(0, 64)
    live = head < HEADS
    here = ((row * GROUPS + group) * HEADS + head) * DIMS
    queries = tl.load(q + here[:, None] + dim[None, :], mask=live[:, None], other=0.0)
    top = tl.full([HEADS_PADDED], -1e30, tl.float32)
    total = tl.zeros([HEADS_PADDED], tl.float32)
    out = tl.zeros([HEADS_PADDED, DIMS], tl.float32)
    for page in range(begin, end):
        physical = tl.load(table + row * max_pages + page).to(tl.int64)
        block = (physical * GROUPS + group) * 64 * DIMS
        keys = tl.load(k_pool + block + token[None, :] * DIMS + dim[:, None])
        scores = tl.dot(queries, keys) * scale
        at = page * 64 + token
        seen = (at >= first) & (at <= position)
        scores = tl.where(seen[None, :], scores, -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1))
        probabilities = tl.exp2(scores - new_top[:, None])
        probabilities = tl.where(seen[None, :], probabilities, 0.0)
        correction = tl.exp2(top - new_top)
        total = total * correction + tl.sum(probabilities, 1)
        values = tl.load(v_pool + block + token[:, None] * DIMS + dim[None, :], mask=seen[:, None], other=0.0)
        out = out * correction[:, None] + tl.dot(probabilities.to(values.dtype), values)
        top = new_top
    at = ((row * GROUPS + group) * SPLITS + split) * HEADS + head
    tl.store(parts + at[:, None] * DIMS + dim[None, :], out, mask=live[:, None])
    tl.store(sums + at * 2, top, mask=live)
    tl.store(sums + at * 2 + 1, total, mask=live)


@triton.jit
def _merge_kernel(
    parts, sums, out, HEADS: tl.constexpr, DIMS: tl.constexpr, SPLITS: tl.constexpr, SPLITS_PADDED: tl.constexpr
):
    item = tl.program_id(0)  # (row, group)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS_PADDED)
    dim = tl.arange(0, DIMS)
    live = split < SPLITS
    at = (item * SPLITS + split) * HEADS + head
    top = tl.load(sums + at * 2, mask=live, other=-1e30)
    total = tl.load(sums + at * 2 + 1, mask=live, other=0.0)
    weight = tl.where(live, tl.exp2(top - tl.max(top, 0)), 0.0)
    values = tl.load(parts + at[:, None] * DIMS + dim[None, :], mask=live[:, None], other=0.0)
    result = tl.sum(values * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + (item * HEADS + head) * DIMS + dim, result.to(tl.bfloat16))


def paged_attention(
    q: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    table: torch.Tensor,
    *,
    window: int,
    scale: float,
    n_splits: int,
) -> torch.Tensor:
    """Attention (B, H C) of one query per row over its pages, the row's own token included. window: 0 or keys."""
    n, n_heads, dims = q.shape
    groups = pools[0].shape[1]
    per_group = n_heads // groups
    parts = torch.empty(n, groups, n_splits, per_group, dims, dtype=torch.float32, device=q.device)
    sums = torch.empty(n, groups, n_splits, per_group, 2, dtype=torch.float32, device=q.device)
    _attention_kernel[(n, groups, n_splits)](
        q, *pools, positions, table, parts, sums, table.shape[1], window or 1 << 30, scale * _LOG2E,
        HEADS=per_group, HEADS_PADDED=max(16, triton.next_power_of_2(per_group)), GROUPS=groups, DIMS=dims,
        SPLITS=n_splits, num_warps=4, num_stages=2,
    )  # fmt: skip
    out = torch.empty(n, n_heads * dims, dtype=torch.bfloat16, device=q.device)
    _merge_kernel[(n * groups, per_group)](
        parts, sums, out, HEADS=per_group, DIMS=dims, SPLITS=n_splits,
        SPLITS_PADDED=triton.next_power_of_2(n_splits), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _route_kernel(logits, ids, weights, n_experts, TOP_K: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(logits + row * n_experts + at, mask=at < n_experts, other=-float("inf")).to(tl.float32)
    slot = tl.arange(0, 16)
    chosen = tl.zeros([16], tl.int32)
    weight = tl.zeros([16], tl.float32)
    for k in range(TOP_K):
        top = tl.max(values, 0)
        best = tl.min(tl.where(values == top, at, BLOCK), 0)
        chosen = tl.where(slot == k, best, chosen)
        weight = tl.where(slot == k, 1.0 / (1.0 + tl.exp(-top)), weight)
        values = tl.where(at == best, -float("inf"), values)
    if NORM:
        weight = weight / tl.sum(weight, 0)
    tl.store(ids + row * TOP_K + slot, chosen, mask=slot < TOP_K)
    tl.store(weights + row * TOP_K + slot, weight, mask=slot < TOP_K)


def route(logits: torch.Tensor, top_k: int, *, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts (B, K) int32 and weights (B, K) fp32 of router logits (B, E); ties to the lower id."""
    n, n_experts = logits.shape
    ids = torch.empty(n, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(n, top_k, dtype=torch.float32, device=logits.device)
    block = triton.next_power_of_2(n_experts)
    _route_kernel[(n,)](logits, ids, weights, n_experts, TOP_K=top_k, NORM=normalise, BLOCK=block, num_warps=1)
    return ids, weights


@triton.jit
def _expert_up_kernel(
    h, bank, ids, weights, out, hidden, width, TOP_K: tl.constexpr, UNITS: tl.constexpr, BLOCK_K: tl.constexpr
):
    pair = tl.program_id(1)
    expert = tl.load(ids + pair).to(tl.int64)
    row = pair // TOP_K
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    gate_rows = expert * 2 * width + unit // 8 * 16 + unit % 8
    at = tl.arange(0, BLOCK_K)
    gate = tl.zeros([UNITS, BLOCK_K], tl.float32)
    up = tl.zeros([UNITS, BLOCK_K], tl.float32)
    for k in range(0, hidden, BLOCK_K):
        inside = k + at < hidden
        x = tl.load(h + row * hidden + k + at, mask=inside, other=0.0).to(tl.float32)
        source = bank + gate_rows[:, None] * hidden + k + at[None, :]
        gate += tl.load(source, mask=inside[None, :], other=0.0).to(tl.float32) * x[None, :]
        up += tl.load(source + 8 * hidden, mask=inside[None, :], other=0.0).to(tl.float32) * x[None, :]
    g = tl.sum(gate, 1)
    y = g / (1.0 + tl.exp(-g)) * tl.sum(up, 1) * tl.load(weights + pair)
    tl.store(out + pair * width + unit, y.to(tl.bfloat16))


@triton.jit
def _expert_down_kernel(x, bank, ids, out, hidden, width, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    pair = tl.program_id(1)
    expert = tl.load(ids + pair).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK_K)
    total = tl.zeros([ROWS, BLOCK_K], tl.float32)
    for k in range(0, width, BLOCK_K):
        inside = k + at < width
        values = tl.load(x + pair * width + k + at, mask=inside, other=0.0).to(tl.float32)
        source = bank + (expert * hidden + row[:, None]) * width + k + at[None, :]
        total += tl.load(source, mask=inside[None, :], other=0.0).to(tl.float32) * values[None, :]
    tl.store(out + pair * hidden + row, tl.sum(total, 1).to(tl.bfloat16))


def experts(
    h: torch.Tensor, upgate: torch.Tensor, down: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Outputs (B, K, D) of the chosen experts for h (B, D); banks (E, 2F, D) with alternating runs, and (E, D, F)."""
    n, top_k = ids.shape
    hidden, width = down.shape[1], down.shape[2]
    middle = h.new_empty(n * top_k, width)
    out = h.new_empty(n, top_k, hidden)
    block_k = min(512, triton.next_power_of_2(hidden))
    _expert_up_kernel[(width // 8, n * top_k)](
        h, upgate, ids, weights, middle, hidden, width, TOP_K=top_k, UNITS=8, BLOCK_K=block_k, num_warps=4
    )
    block_k = min(256, triton.next_power_of_2(width))
    _expert_down_kernel[(hidden // 16, n * top_k)](
        middle, down, ids, out, hidden, width, ROWS=16, BLOCK_K=block_k, num_warps=4
    )
    return out

"""Causal attention of a chunk as a Triton kernel: grouped heads, a window, keys before the chunk; no block that a
query cannot see is read. Imported only where tensors are on a GPU; `attention.attend_in_blocks` is its twin.

Letters: T queries, S keys, H query heads, G KV heads, C head_dim.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportIndexIssue=false, reportMissingImports=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

HIDDEN = tl.constexpr(-1.0e6)  # a score that no visible key has; finite, so that a row of them gives no NaN


@dataclass(frozen=True, slots=True)
class Tiling:
    """Queries and keys of a block, and how the compiler spreads them."""

    queries: int
    keys: int
    warps: int
    stages: int


EVERYTHING, WINDOW = Tiling(128, 64, 4, 2), Tiling(64, 64, 4, 2)  # the fastest of six on an H200


@triton.jit
def _over_keys(
    acc, total, top, q, k_rows, v_rows, column, begin, end, rows, window, scale, KEYS: tl.constexpr,
    DIMS: tl.constexpr, MASKED: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Softmax statistics (in units of log 2) and the weighted sum over keys [begin, end)."""
    for first in tl.range(begin, end, KEYS):
        k = k_rows.load([first, column])
        scores = tl.dot(q, k.T)
        if MASKED:
            keys = first + tl.arange(0, KEYS)
            visible = keys[None, :] <= rows[:, None]
            if WINDOWED:
                visible = visible & (keys[None, :] > rows[:, None] - window)
            scores = tl.where(visible, scores * scale, HIDDEN)
            higher = tl.maximum(top, tl.max(scores, 1))
            p = tl.exp2(scores - higher[:, None])
        else:
            higher = tl.maximum(top, tl.max(scores, 1) * scale)
            p = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        v = v_rows.load([first, column])
        acc = tl.dot(p.to(v.dtype), v, acc)
        top = higher
    return acc, total, top


@triton.jit
def _attention_kernel(
    q_rows, k_rows, v_rows, out, n, lead, window, scale, HEADS: tl.constexpr, PER_GROUP: tl.constexpr,
    DIMS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) % HEADS
    block = tl.num_programs(0) // HEADS - 1 - tl.program_id(0) // HEADS  # the longest first
    start = block * QUERIES
    column = head // PER_GROUP * DIMS
    q = q_rows.load([start, head * DIMS])
    rows = lead + start + tl.arange(0, QUERIES)
    end = lead + tl.minimum(start + QUERIES, n)
    whole = (lead + start + 1) // KEYS * KEYS  # keys before it are none of a row's future
    low = 0
    seen_by_all = 0
    if WINDOWED:
        low = tl.maximum(0, lead + start - window + 1) // KEYS * KEYS
        seen_by_all = (tl.maximum(0, lead + start + QUERIES - window) + KEYS - 1) // KEYS * KEYS
        seen_by_all = tl.minimum(tl.maximum(seen_by_all, low), whole)
    acc = tl.zeros([QUERIES, DIMS], dtype=tl.float32)
    total = tl.zeros([QUERIES], dtype=tl.float32)
    top = tl.zeros([QUERIES], dtype=tl.float32) + HIDDEN
    if WINDOWED:
        acc, total, top = _over_keys(
            acc, total, top, q, k_rows, v_rows, column, low, seen_by_all, rows, window, scale, KEYS, DIMS, True, True
        )
    acc, total, top = _over_keys(
        acc, total, top, q, k_rows, v_rows, column, seen_by_all, whole, rows, window, scale, KEYS, DIMS, False, WINDOWED
    )
    acc, total, top = _over_keys(
        acc, total, top, q, k_rows, v_rows, column, whole, end, rows, window, scale, KEYS, DIMS, True, WINDOWED
    )
    token = (start + tl.arange(0, QUERIES)).to(tl.int64)
    at = out + (token[:, None] * HEADS + head) * DIMS + tl.arange(0, DIMS)[None, :]
    tl.store(at, (acc / total[:, None]).to(out.dtype.element_ty), mask=(token < n)[:, None])


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int, scale: float) -> torch.Tensor:
    """(T, H, C) of q (T, H, C) over k and v (S, G, C), contiguous bf16; `window` as in attention.attend."""
    n, heads, dims = q.shape
    tiling = WINDOW if window else EVERYTHING
    groups = k.shape[1]
    out = torch.empty_like(q)
    queries, keys = [tiling.queries, dims], [tiling.keys, dims]
    _attention_kernel[(triton.cdiv(n, tiling.queries) * heads,)](
        TensorDescriptor.from_tensor(q.view(n, heads * dims), queries),
        TensorDescriptor.from_tensor(k.view(-1, groups * dims), keys),
        TensorDescriptor.from_tensor(v.view(-1, groups * dims), keys),
        out, n, k.shape[0] - n, window, scale * math.log2(math.e), HEADS=heads, PER_GROUP=heads // groups, DIMS=dims,
        QUERIES=tiling.queries, KEYS=tiling.keys, WINDOWED=window > 0, num_warps=tiling.warps,
        num_stages=tiling.stages,
    )  # fmt: skip
    return out

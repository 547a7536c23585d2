"""Triton kernels that choose each token's experts and lay the pairs (token, expert) out expert by expert.

Imported only where tensors are on a GPU; `ops.route` and `ops.by_expert` are their twins.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportIndexIssue=false, reportMissingImports=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TOKENS = 32  # of one routing program
_PAIRS = 512  # that one program gives places
_BLOCKS = 64  # programs whose counts are added up at once


@triton.jit
def _route_kernel(
    logits, ids, weights, ranks, counts, n_tokens, n_experts, TOP_K: tl.constexpr, SLOTS: tl.constexpr,
    EXPERTS: tl.constexpr, TOKENS: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    """A block of tokens: their experts and weights, each pair's rank among the block's pairs of its expert, and how
    many pairs each expert has in the block."""
    block = tl.program_id(0)
    token = block * TOKENS + tl.arange(0, TOKENS)
    real = token < n_tokens
    expert = tl.arange(0, EXPERTS)[None, :]
    slot_of = tl.arange(0, SLOTS)[None, :]
    at = token.to(tl.int64)[:, None] * n_experts + expert
    left = tl.load(logits + at, mask=real[:, None] & (expert < n_experts), other=float("-inf"))
    chosen = tl.zeros([TOKENS, EXPERTS], dtype=tl.int32)
    all_ids = tl.zeros([TOKENS, SLOTS], dtype=tl.int32)
    all_weights = tl.zeros([TOKENS, SLOTS], dtype=tl.float32)
    for slot in range(TOP_K):
        largest = tl.max(left, 1)
        best = tl.minimum(tl.argmax(left, 1), n_experts - 1)  # the lowest of equals; inside also for NaNs
        hit = expert == best[:, None]
        all_ids = tl.where(slot_of == slot, best[:, None], all_ids)
        all_weights = tl.where(slot_of == slot, (1.0 / (1.0 + tl.exp(-largest)))[:, None], all_weights)
        chosen += hit.to(tl.int32)
        left = tl.where(hit, float("-inf"), left)
    if NORMALISE:
        all_weights = all_weights / tl.sum(all_weights, 1)[:, None]
    chosen = tl.where(real[:, None], chosen, 0)
    before = tl.cumsum(chosen, 0) - chosen
    all_ranks = tl.zeros([TOKENS, SLOTS], dtype=tl.int32)
    for slot in range(TOP_K):
        best = tl.sum(tl.where(slot_of == slot, all_ids, 0), 1)
        rank = tl.sum(tl.where(expert == best[:, None], before, 0), 1)
        all_ranks = tl.where(slot_of == slot, rank[:, None], all_ranks)
    pair = token[:, None] * TOP_K + slot_of
    inside = real[:, None] & (slot_of < TOP_K)
    tl.store(ids + pair, all_ids, mask=inside)
    tl.store(weights + pair, all_weights, mask=inside)
    tl.store(ranks + pair, all_ranks, mask=inside)
    tl.store(counts + block * EXPERTS + tl.arange(0, EXPERTS), tl.sum(chosen, 0))


@triton.jit
def _starts_kernel(
    counts, bases, begins, ends, n_blocks, n_experts, EXPERTS: tl.constexpr, BLOCKS: tl.constexpr, UNIT: tl.constexpr
):  # fmt: skip
    """counts (n_blocks, EXPERTS) to the pairs before each block, and where each expert's pairs begin and end."""
    expert = tl.arange(0, EXPERTS)
    so_far = tl.zeros([EXPERTS], dtype=tl.int32)
    for first in range(0, n_blocks, BLOCKS):
        block = first + tl.arange(0, BLOCKS)[:, None]
        at = block * EXPERTS + expert[None, :]
        count = tl.load(counts + at, mask=block < n_blocks, other=0)
        tl.store(bases + at, so_far[None, :] + tl.cumsum(count, 0) - count, mask=block < n_blocks)
        so_far += tl.sum(count, 0)
    whole = (so_far + UNIT - 1) // UNIT * UNIT
    begin = tl.cumsum(whole, 0) - whole
    tl.store(begins + expert, begin, mask=expert < n_experts)
    tl.store(ends + expert, begin + so_far, mask=expert < n_experts)


@triton.jit
def _lay_out_kernel(
    ids, ranks, bases, begins, source, places, n_pairs, TOP_K: tl.constexpr, EXPERTS: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gives every pair its place."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < n_pairs
    token = pair // TOP_K
    expert = tl.load(ids + pair, mask=inside, other=0)
    place = tl.load(begins + expert, mask=inside, other=0)
    place += tl.load(bases + token // TOKENS * EXPERTS + expert, mask=inside, other=0)
    place += tl.load(ranks + pair, mask=inside, other=0)
    tl.store(places + pair, place, mask=inside)
    tl.store(source + place, token, mask=inside)


@triton.jit
def _gather_kernel(h, places, x, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Copies a token's row to the place of each of its pairs."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    row = tl.load(h + token * hidden + at, mask=at < hidden, other=0.0)
    for slot in tl.static_range(TOP_K):
        place = tl.load(places + token * TOP_K + slot).to(tl.int64)
        tl.store(x + place * hidden + at, row, mask=at < hidden)


def dispatch(
    logits: torch.Tensor, top_k: int, *, normalise: bool, unit: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The fields of ops.Pairs in order, of logits (T, E) fp32; every expert's pairs begin at a multiple of `unit`."""
    n, n_experts = logits.shape
    experts, pairs = triton.next_power_of_2(n_experts), n * top_k
    n_blocks = triton.cdiv(n, _TOKENS)
    room = (pairs + n_experts * (unit - 1) + unit - 1) // unit * unit

    def integers(*shape: int) -> torch.Tensor:
        return logits.new_empty(shape, dtype=torch.int32)

    counts, bases = integers(2, n_blocks, experts).unbind(0)
    ids, ranks, places = integers(3, n, top_k).unbind(0)
    begins, ends = integers(2, n_experts).unbind(0)
    weights, source = logits.new_empty(n, top_k), integers(room)
    _route_kernel[(n_blocks,)](
        logits, ids, weights, ranks, counts, n, n_experts, TOP_K=top_k, SLOTS=triton.next_power_of_2(top_k),
        EXPERTS=experts, TOKENS=_TOKENS, NORMALISE=normalise, num_warps=8,
    )  # fmt: skip
    _starts_kernel[(1,)](
        counts, bases, begins, ends, n_blocks, n_experts, EXPERTS=experts, BLOCKS=_BLOCKS, UNIT=unit, num_warps=8
    )
    _lay_out_kernel[(triton.cdiv(pairs, _PAIRS),)](
        ids, ranks, bases, begins, source, places, pairs, TOP_K=top_k, EXPERTS=experts, TOKENS=_TOKENS, BLOCK=_PAIRS,
        num_warps=4,
    )  # fmt: skip
    return source, begins, ends, places, weights


def gather(h: torch.Tensor, places: torch.Tensor, n_pairs: int) -> torch.Tensor:
    """(n_pairs, D): row t of h (T, D) at each of places[t]; places (T, top_k) int32."""
    n, hidden = h.shape
    x = h.new_empty(n_pairs, hidden)
    _gather_kernel[(n,)](h, places, x, hidden, TOP_K=places.shape[1], BLOCK=triton.next_power_of_2(hidden), num_warps=4)
    return x

"""Triton kernels that move a chunk's keys and values between rows (T, G, C) and KV pages.

Imported only where tensors are on a GPU; `pages.py` holds the same in torch, which the tests compare.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportIndexIssue=false, reportMissingImports=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..kv_cache import PAGE_TOKENS

_WARPS = 8


@triton.jit
def _write_page(
    values, pool, pages, lead, n_tokens, groups, TOKENS: tl.constexpr, DIMS: tl.constexpr,
    FRAGMENT: tl.constexpr, IS_VALUE: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    at = tl.arange(0, TOKENS * DIMS)  # a page's values as they are stored
    if FRAGMENT:
        K_TILES: tl.constexpr = (TOKENS if IS_VALUE else DIMS) // 16
        tile = at // 256
        row = tile // K_TILES * 16 + at // 2 % 2 * 8 + at // 32 % 8
        column = tile % K_TILES * 16 + at // 4 % 2 * 8 + at // 8 % 4 * 2 + at % 2
        token, dim = (column, row) if IS_VALUE else (row, column)
    else:
        token, dim = at // DIMS, at % DIMS
    source = (tl.program_id(0) * TOKENS + token - lead).to(tl.int64)
    inside = (source >= 0) & (source < n_tokens)
    new = tl.load(values + (source * groups + group) * DIMS + dim, mask=inside, other=0.0)
    page = tl.load(pages + tl.program_id(0)).to(tl.int64)
    tl.store(pool + (page * groups + group) * (TOKENS * DIMS) + at, new, mask=source >= 0)


@triton.jit
def _write_kernel(
    k, v, k_pool, v_pool, pages, lead, n_tokens, groups, TOKENS: tl.constexpr, DIMS: tl.constexpr,
    FRAGMENT: tl.constexpr,
):  # fmt: skip
    if tl.program_id(2) == 0:
        _write_page(k, k_pool, pages, lead, n_tokens, groups, TOKENS, DIMS, FRAGMENT, False)
    else:
        _write_page(v, v_pool, pages, lead, n_tokens, groups, TOKENS, DIMS, FRAGMENT, True)


@triton.jit
def _read_kernel(
    out, pool, pages, lead, n_tokens, groups, TOKENS: tl.constexpr, DIMS: tl.constexpr,
    FRAGMENT: tl.constexpr, IS_VALUE: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    at = tl.arange(0, TOKENS * DIMS)  # a page's values as rows of tokens
    token, dim = at // DIMS, at % DIMS
    if FRAGMENT:
        K_TILES: tl.constexpr = (TOKENS if IS_VALUE else DIMS) // 16
        row, column = (dim, token) if IS_VALUE else (token, dim)
        tile = row // 16 * K_TILES + column // 16
        stored = tile * 256 + row % 8 * 32 + column // 2 % 4 * 8 + column // 8 % 2 * 4 + row // 8 % 2 * 2 + column % 2
    else:
        stored = at
    target = (tl.program_id(0) * TOKENS + token - lead).to(tl.int64)
    inside = (target >= 0) & (target < n_tokens)
    page = tl.load(pages + tl.program_id(0)).to(tl.int64)
    values = tl.load(pool + (page * groups + group) * (TOKENS * DIMS) + stored, mask=inside, other=0.0)
    tl.store(out + (target * groups + group) * DIMS + dim, values, mask=inside)


def write_pages(
    keys: torch.Tensor,
    values: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    pages: torch.Tensor,
    lead: int,
    *,
    fragment: bool,
) -> None:
    """Writes keys and values (T, G, C) contiguous to `pages` (n,) int32 of their pools (P, G, 64, C), after the first
    page's first `lead` tokens, which stay; what is left of the last page becomes zero."""
    n, groups, dims = values.shape
    _write_kernel[(len(pages), groups, 2)](
        keys, values, *pools, pages, lead, n, groups, TOKENS=PAGE_TOKENS, DIMS=dims, FRAGMENT=fragment,
        num_warps=_WARPS,
    )  # fmt: skip


def read_pages(
    out: torch.Tensor, pool: torch.Tensor, pages: torch.Tensor, lead: int, *, fragment: bool, is_value: bool
) -> None:
    """Fills out (T, G, C) contiguous with the tokens that follow the first `lead` of `pages` (n,) int32."""
    n, groups, dims = out.shape
    _read_kernel[(len(pages), groups)](
        out, pool, pages, lead, n, groups, TOKENS=PAGE_TOKENS, DIMS=dims, FRAGMENT=fragment, IS_VALUE=is_value,
        num_warps=_WARPS,
    )  # fmt: skip

"""KV pages on the GPU: how a (page, KV head) block of 64 tokens x head_dim bf16 values is laid out.

`FragmentPages` is the megakernel's order (`fragment_offset` in csrc/mk_common.cuh): 16 x 16 tiles in the order of an
mma A fragment; K has tokens as rows, V has dims as rows. `PlainPages` is (64, head_dim), for the other backends.

Letters: P pages, n pages of a run, G KV heads, C head_dim, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..kv_cache import NO_PAGE, PAGE_TOKENS

PageTable = Sequence[int] | torch.Tensor  # physical pages of a sequence; (n,) int32 where they lie on the device


class PageLayout(Protocol):
    """Conversions between pages as they are stored and (n, 64, G, C) values."""

    @property
    def fragment(self) -> bool:
        """True for the order of mma fragments, which the Triton kernels need to know."""
        ...

    def store(self, pool: torch.Tensor, pages: torch.Tensor, values: torch.Tensor, *, is_value: bool) -> None:
        """Writes values (n, 64, G, C) to `pages` (n,) integers of a layer's pool (P, G, 64, C)."""
        ...

    def load(self, pool: torch.Tensor, pages: torch.Tensor, *, is_value: bool) -> torch.Tensor:
        """Values (n, 64, G, C) of `pages` (n,) integers."""
        ...


class PlainPages:
    """Pages as (64, C) blocks."""

    fragment = False

    def store(self, pool: torch.Tensor, pages: torch.Tensor, values: torch.Tensor, *, is_value: bool) -> None:
        """See PageLayout."""
        del is_value
        pool[pages] = values.transpose(1, 2)

    def load(self, pool: torch.Tensor, pages: torch.Tensor, *, is_value: bool) -> torch.Tensor:
        """See PageLayout."""
        del is_value
        return pool[pages].transpose(1, 2)


class FragmentPages:
    """Pages in the order that the megakernel's tensor-core instructions read."""

    fragment = True

    def store(self, pool: torch.Tensor, pages: torch.Tensor, values: torch.Tensor, *, is_value: bool) -> None:
        """See PageLayout."""
        n, tokens, groups, dims = values.shape
        # n G row_tile hi g k_tile b t e; K: rows are tokens, V: rows are dims
        matrices = values.permute(0, 2, 3, 1) if is_value else values.transpose(1, 2)
        rows, k = (dims, tokens) if is_value else (tokens, dims)
        tiles = matrices.reshape(n, groups, rows // 16, 2, 8, k // 16, 2, 4, 2)
        pool.view(pool.shape[0], groups, -1)[pages] = tiles.permute(0, 1, 2, 5, 4, 7, 6, 3, 8).reshape(n, groups, -1)

    def load(self, pool: torch.Tensor, pages: torch.Tensor, *, is_value: bool) -> torch.Tensor:
        """See PageLayout."""
        groups, tokens, dims = pool.shape[1:]
        rows, k = (dims, tokens) if is_value else (tokens, dims)
        tiles = pool[pages].view(
            len(pages), groups, rows // 16, k // 16, 8, 4, 2, 2, 2
        )  # n G row_tile k_tile g t b hi e
        matrices = tiles.permute(0, 1, 2, 7, 4, 3, 6, 5, 8).reshape(len(pages), groups, rows, k)
        return matrices.permute(0, 3, 1, 2) if is_value else matrices.transpose(1, 2)


FRAGMENT_PAGES = FragmentPages()
PLAIN_PAGES = PlainPages()


def write_tokens(
    layout: PageLayout,
    pools: tuple[torch.Tensor, torch.Tensor],
    table: PageTable,
    begin: int,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Writes keys and values (T, G, C) of the tokens from position `begin` on to a layer's pools of them; `table` maps
    logical to physical pages.

    Tokens of the first page before `begin` stay as they are; those of the last page after the run become zero.
    """
    first, lead = divmod(begin, PAGE_TOKENS)
    end = begin + values.shape[0]
    pages = page_index(table[first : -(-end // PAGE_TOKENS)], values.device)
    if values.is_cuda:
        from .triton_pages import write_pages

        write_pages(keys, values, pools, pages, lead, fragment=layout.fragment)
        return
    for pool, run, is_value in zip(pools, (keys, values), (False, True), strict=True):
        block = torch.zeros(len(pages) * PAGE_TOKENS, *run.shape[1:], dtype=pool.dtype, device=pool.device)
        if lead:
            block[:PAGE_TOKENS] = layout.load(pool, pages[:1], is_value=is_value)[0]
        block[lead : lead + run.shape[0]] = run
        layout.store(pool, pages, block.unflatten(0, (-1, PAGE_TOKENS)), is_value=is_value)


def read_tokens(
    layout: PageLayout,
    pool: torch.Tensor,
    table: PageTable,
    begin: int,
    end: int,
    *,
    is_value: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values (end - begin, G, C) of positions [begin, end), in `out` (contiguous) when it is given."""
    first, lead = divmod(begin, PAGE_TOKENS)
    pages = table[first : -(-end // PAGE_TOKENS)]
    if not isinstance(pages, torch.Tensor) and NO_PAGE in pages:
        raise AssertionError(f"tokens [{begin}, {end}) are read, of which some have left the window")
    if out is None:
        out = pool.new_empty(end - begin, pool.shape[1], pool.shape[3])
    index = page_index(pages, pool.device)
    if pool.is_cuda:
        from .triton_pages import read_pages

        read_pages(out, pool, index, lead, fragment=layout.fragment, is_value=is_value)
        return out
    return out.copy_(layout.load(pool, index, is_value=is_value).flatten(0, 1)[lead : lead + end - begin])


def page_index(pages: PageTable, device: torch.device) -> torch.Tensor:
    """(n,) int32 on the device; an index that lies there already is returned as it is."""
    if isinstance(pages, torch.Tensor):
        return pages
    return torch.tensor(pages, dtype=torch.int32).to(device, non_blocking=True)

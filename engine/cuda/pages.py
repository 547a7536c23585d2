"""KV pages on the GPU: how a (page, KV head) block of 64 tokens x head_dim bf16 values is laid out.

`FragmentPages` is the megakernel's order (`fragment_offset` in csrc/mk_storer.cuh): 16 x 16 tiles in the order of an
mma A fragment; K has tokens as rows, V has dims as rows. `PlainPages` is (64, head_dim), for the other backends.

Letters: P pages, n pages of a run, G KV heads, C head_dim, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..kv_cache import NO_PAGE, PAGE_TOKENS


class PageLayout(Protocol):
    """Conversions between pages as they are stored and (n, 64, G, C) values."""

    def store(self, pool: torch.Tensor, pages: torch.Tensor, values: torch.Tensor, *, is_value: bool) -> None:
        """Writes values (n, 64, G, C) to `pages` (n,) int64 of a layer's pool (P, G, 64, C)."""
        ...

    def load(self, pool: torch.Tensor, pages: torch.Tensor, *, is_value: bool) -> torch.Tensor:
        """Values (n, 64, G, C) of `pages` (n,) int64."""
        ...


class PlainPages:
    """Pages as (64, C) blocks."""

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
    layout: PageLayout, pool: torch.Tensor, table: Sequence[int], begin: int, values: torch.Tensor, *, is_value: bool
) -> None:
    """Writes values (T, G, C) of the tokens from position `begin` on; `table` maps logical to physical pages.

    Tokens of the first page before `begin` stay as they are; those of the last page after the run become zero.
    """
    first, lead = divmod(begin, PAGE_TOKENS)
    end = begin + values.shape[0]
    pages = _index(table[first : -(-end // PAGE_TOKENS)], pool.device)
    block = torch.zeros(len(pages) * PAGE_TOKENS, *values.shape[1:], dtype=pool.dtype, device=pool.device)
    if lead:
        block[:PAGE_TOKENS] = layout.load(pool, pages[:1], is_value=is_value)[0]
    block[lead : lead + values.shape[0]] = values
    layout.store(pool, pages, block.unflatten(0, (-1, PAGE_TOKENS)), is_value=is_value)


def read_tokens(
    layout: PageLayout, pool: torch.Tensor, table: Sequence[int], begin: int, end: int, *, is_value: bool
) -> torch.Tensor:
    """Values (end - begin, G, C) of positions [begin, end)."""
    first = begin // PAGE_TOKENS
    pages = table[first : -(-end // PAGE_TOKENS)]
    if NO_PAGE in pages:
        raise AssertionError(f"tokens [{begin}, {end}) are read, of which some have left the window")
    values = layout.load(pool, _index(pages, pool.device), is_value=is_value).flatten(0, 1)
    return values[begin - first * PAGE_TOKENS : end - first * PAGE_TOKENS]


def _index(pages: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(pages, dtype=torch.int64).to(device, non_blocking=True)

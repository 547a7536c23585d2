"""The paged KV cache: page pools per layer group, reference counts, and the page tables of one sequence.

Letters: L layers of the group, P pages, G KV heads, T = 64 tokens of a page, C head_dim. Group 0 holds the layers with
full attention, group 1 those with a sliding window. Everything here belongs to the control thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import CapacityError
from .kv_pages import DevicePages, HostPages

if TYPE_CHECKING:
    import torch

PAGE_TOKENS = 64
FULL, SLIDING = 0, 1
GROUPS = (FULL, SLIDING)
NO_PAGE = -1


def pages_for(n_tokens: int) -> int:
    """Pages that hold `n_tokens` tokens."""
    return -(-n_tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """What of a model decides the cache's shape. `window` counts the current token; 0 when no layer slides."""

    sliding_layers: tuple[bool, ...]
    n_kv_heads: int
    head_dim: int
    window: int = 0
    element_bytes: int = 4

    def n_layers(self, group: int) -> int:
        """Layers of the group."""
        return sum(sliding == (group == SLIDING) for sliding in self.sliding_layers)

    def slot_of(self, layer: int) -> tuple[int, int]:
        """(group, index in the group) of a layer."""
        sliding = self.sliding_layers[layer]
        return (SLIDING if sliding else FULL), sum(s == sliding for s in self.sliding_layers[:layer])

    def page_bytes(self, group: int) -> int:
        """Bytes of one page, K and V of all the group's layers."""
        return self.n_layers(group) * self.n_kv_heads * PAGE_TOKENS * self.head_dim * 2 * self.element_bytes

    def first_visible_page(self, position: int) -> int:
        """The first page that a sliding layer reads for a query at `position`."""
        return max(0, position - self.window + 1) // PAGE_TOKENS

    def page_counts(self, budget_bytes: int, max_rows: int, chunk_tokens: int) -> tuple[int, int]:
        """Pages per group that fit the budget: the sliding group gets what the rows' windows need and a quarter more.

        Raises CapacityError when not even two pages fit.
        """
        per_row = pages_for(self.window + chunk_tokens) + 2

        def sliding_pages(n_full: int) -> int:
            return min(n_full, max_rows * per_row + n_full // 4) if self.n_layers(SLIDING) else 0

        def cost(n: int) -> int:
            full_bytes = n * self.page_bytes(FULL) if self.n_layers(FULL) else 0
            return full_bytes + sliding_pages(n) * self.page_bytes(SLIDING)

        smallest = self.page_bytes(FULL) + self.page_bytes(SLIDING)
        low, high = 0, budget_bytes // min(b for b in (self.page_bytes(FULL), self.page_bytes(SLIDING)) if b) + 1
        if not self.n_layers(FULL):
            return 0, budget_bytes // self.page_bytes(SLIDING)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cost(middle) <= budget_bytes else (low, middle)
        if low < 2:
            raise CapacityError(
                f"the KV budget of {budget_bytes} bytes is too small: two pages take {2 * smallest} bytes"
            )
        return low, sliding_pages(low)


@dataclass(frozen=True, slots=True)
class PageCounts:
    """How a pool's pages are divided; `free + cached + used == total`."""

    free: int
    cached: int
    used: int
    total: int


class PagePool:
    """The pages of one group: *used* while references are held, *cached* while only the prefix cache knows them."""

    def __init__(
        self, n_layers: int, n_pages: int, n_kv_heads: int, head_dim: int, device: torch.device | None = None
    ) -> None:
        shape = (n_layers, n_pages if n_layers else 0, n_kv_heads, PAGE_TOKENS, head_dim)
        self.memory = HostPages(shape) if device is None else DevicePages(shape, device)
        self.n_pages = shape[1]
        self._references = [0] * self.n_pages
        self._is_cached = bytearray(self.n_pages)
        self._free = list(range(self.n_pages - 1, -1, -1))

    @property
    def k(self) -> torch.Tensor:
        """The keys of all pages, (L, P, G, T, C)."""
        return self.memory.tensors[0]

    @property
    def v(self) -> torch.Tensor:
        """The values of all pages, (L, P, G, T, C)."""
        return self.memory.tensors[1]

    def take(self) -> int | None:
        """A free page with one reference, or None."""
        if not self._free:
            return None
        page = self._free.pop()
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Adds a reference."""
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drops a reference; the last one frees the page unless the prefix cache keeps it."""
        if self._references[page] <= 0:
            raise AssertionError(f"page {page} was released more often than it was retained")
        self._references[page] -= 1
        self._free_if_unneeded(page)

    def keep_cached(self, page: int) -> None:
        """The prefix cache takes note of a page that is in use."""
        self._is_cached[page] = 1

    def drop_cached(self, page: int) -> None:
        """The prefix cache forgets the page; it is freed when nobody uses it."""
        if not self._is_cached[page]:
            raise AssertionError(f"page {page} is not in the prefix cache")
        self._is_cached[page] = 0
        self._free_if_unneeded(page)

    def is_used(self, page: int) -> bool:
        """True while a sequence holds the page."""
        return self._references[page] > 0

    def is_cached(self, page: int) -> bool:
        """True while the prefix cache knows the page."""
        return bool(self._is_cached[page])

    def counts(self) -> PageCounts:
        """The present division of the pages."""
        used = sum(n > 0 for n in self._references)
        cached = sum(n == 0 and bool(c) for n, c in zip(self._references, self._is_cached, strict=True))
        return PageCounts(len(self._free), cached, used, self.n_pages)

    def check(self) -> None:
        """Raises AssertionError unless free + cached + used = total and the free list is consistent."""
        counts = self.counts()
        if counts.free + counts.cached + counts.used != counts.total:
            raise AssertionError(f"pages leaked or shared: {counts}")
        if len(set(self._free)) != len(self._free) or any(
            self._references[p] or self._is_cached[p] for p in self._free
        ):
            raise AssertionError("the free list holds a page twice, or one that is in use")

    def _free_if_unneeded(self, page: int) -> None:
        if not self._references[page] and not self._is_cached[page]:
            self._free.append(page)


class KvCache:
    """The two pools of a model and the allocation rule: a free page, else the least recently used cached one."""

    def __init__(
        self, geometry: KvGeometry, n_full_pages: int, n_sliding_pages: int, device: torch.device | None = None
    ) -> None:
        self.geometry = geometry
        counts = (n_full_pages, n_sliding_pages)
        self.pools = tuple(
            PagePool(geometry.n_layers(g), counts[g], geometry.n_kv_heads, geometry.head_dim, device) for g in GROUPS
        )
        self.groups = tuple(g for g in GROUPS if geometry.n_layers(g))
        self._slots = tuple(geometry.slot_of(layer) for layer in range(len(geometry.sliding_layers)))
        self.evict: Callable[[int], bool] = lambda _group: False  # set by the prefix cache: frees one page of the group

    @property
    def max_tokens(self) -> int:
        """Longest sequence that the empty cache holds (the sliding group never limits it by itself)."""
        return self.pools[self.groups[0]].n_pages * PAGE_TOKENS

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V pages of one layer, each (P, G, T, C): fp32, or on a device bf16 in the backend's own order."""
        group, index = self._slots[layer]
        k, v = self.pools[group].memory.tensors
        return k[index], v[index]

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where K and V pages of one layer begin in memory."""
        group, index = self._slots[layer]
        return self.pools[group].memory.addresses(index)

    def group_of(self, layer: int) -> int:
        """The layer's group."""
        return self._slots[layer][0]

    def take(self, group: int) -> int:
        """A page with one reference; raises CapacityError when all are in use."""
        pool = self.pools[group]
        page = pool.take()
        while page is None and self.evict(group):
            page = pool.take()
        if page is None:
            raise CapacityError(f"all {pool.n_pages} KV pages are in use")
        return page

    def check(self) -> None:
        """Raises AssertionError when a pool's books do not balance."""
        for pool in self.pools:
            pool.check()


class SequencePages:
    """The pages of one sequence: per group, logical page i -> physical page (NO_PAGE where it left the window)."""

    def __init__(self, kv: KvCache) -> None:
        self.kv = kv
        self.tables: tuple[list[int], list[int]] = ([], [])
        self.keys: list[bytes] = []  # chained hashes of the full pages, filled by the prefix cache
        self.n_registered = 0  # pages the prefix cache has seen
        self.n_valid = 0  # tokens that were there at the start

    @property
    def n_pages(self) -> int:
        """Logical pages covered."""
        return len(self.tables[self.kv.groups[0]])

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The page tables of both groups as the native side takes them."""
        return np.asarray(self.tables[FULL], np.int32), np.asarray(self.tables[SLIDING], np.int32)

    def adopt(self, group: int, pages: Sequence[int]) -> None:
        """Appends pages that others hold too, taking a reference of each (NO_PAGE is allowed)."""
        for page in pages:
            if page != NO_PAGE:
                self.kv.pools[group].retain(page)
            self.tables[group].append(page)

    def grow(self, n_tokens: int) -> None:
        """Covers `n_tokens` tokens; on CapacityError the sequence keeps what it had."""
        wanted = pages_for(n_tokens)
        before = self.n_pages
        try:
            for group in self.kv.groups:
                while len(self.tables[group]) < wanted:
                    self.tables[group].append(self.kv.take(group))
        except CapacityError:
            self._shrink(before)
            raise

    def slide(self, position: int) -> None:
        """Gives back the sliding pages that no query at `position` or later reads."""
        table = self.tables[SLIDING]
        for i in range(min(self.kv.geometry.first_visible_page(position), len(table)) - 1, -1, -1):
            if table[i] == NO_PAGE:
                return
            self.kv.pools[SLIDING].release(table[i])
            table[i] = NO_PAGE

    def release(self) -> None:
        """Gives everything back."""
        self._shrink(0)

    def _shrink(self, n_pages: int) -> None:
        for group in self.kv.groups:
            table = self.tables[group]
            while len(table) > n_pages:
                page = table.pop()
                if page != NO_PAGE:
                    self.kv.pools[group].release(page)

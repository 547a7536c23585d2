"""Reuse of computed pages between requests that begin with the same tokens.

A page is known by the chained hash of its tokens and all before them; the tokens themselves are compared on a hit.
Pages enter after they were computed: full ones, and the last one of a request that ended. A hit on n pages needs each
page of the full group and, of the sliding group, those that a query at token 64·n still reads. Behind the shared pages
a sequence gets a copy of the page that goes on with the most equal tokens.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from .errors import CapacityError
from .kv_cache import FULL, NO_PAGE, PAGE_TOKENS, SLIDING, KvCache, SequencePages
from .kv_store import CachedPage, KvStore, StoredPage

MIN_COPIED_TOKENS = 8  # a page is not copied for less


def _as_bytes(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, np.int32).tobytes()


def _n_equal(a: bytes, b: bytes) -> int:
    """How many tokens both begin with."""
    n = min(len(a), len(b)) // 4
    differs = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differs.argmax()) if differs.any() else n


def page_tokens(ids: Sequence[int], n_pages: int) -> list[bytes]:
    """The first `n_pages` pages of ids as int32 bytes."""
    data = _as_bytes(ids[: n_pages * PAGE_TOKENS])
    size = PAGE_TOKENS * 4
    return [data[i * size : (i + 1) * size] for i in range(n_pages)]


class PrefixCache:
    """Known pages in the order of their last use; roots are always newer than what hangs on them."""

    def __init__(self, kv: KvCache, salt: bytes = b"", store: KvStore | None = None) -> None:
        self._kv = kv
        self._root = hashlib.blake2b(salt, digest_size=16).digest()
        self._entries: OrderedDict[bytes, CachedPage] = OrderedDict()
        self._children: dict[bytes, list[CachedPage]] = {}  # by parent
        self._store = store
        self._n_new = 0
        kv.evict = self._evict

    def __len__(self) -> int:
        return len(self._entries)

    def attach(self, ids: Sequence[int]) -> SequencePages:
        """A sequence that begins with the longest known prefix of `ids`; at least one token is left to compute.

        `sequence.n_valid` tokens are there: whole pages that are shared, and the beginning of a page that was copied.
        """
        sequence = SequencePages(self._kv)
        chain = self._chain(page_tokens(ids, (len(ids) - 1) // PAGE_TOKENS))
        hits = self._usable(chain)
        first_sliding = self._kv.geometry.first_visible_page(len(hits) * PAGE_TOKENS)
        for group in self._kv.groups:
            first = first_sliding if group == SLIDING else 0
            sequence.adopt(group, [NO_PAGE if i < first else hit.pages[group] for i, hit in enumerate(hits)])
        sequence.keys.extend(hit.key for hit in hits)
        sequence.n_registered = len(hits)
        self._touch(sequence.keys)
        done = len(hits) * PAGE_TOKENS
        sequence.n_valid = done + self._copy_rest(
            sequence, _as_bytes(ids[done : min(done + PAGE_TOKENS, len(ids) - 1)])
        )
        return sequence

    def register(self, ids: Sequence[int], sequence: SequencePages, n_computed: int) -> None:
        """Makes the sequence's full pages among its first `n_computed` tokens known. Call before `slide`."""
        n_pages = min(n_computed, len(ids)) // PAGE_TOKENS
        if n_pages <= sequence.n_registered:
            return
        first = sequence.n_registered
        tokens = page_tokens(ids[first * PAGE_TOKENS :], n_pages - first)
        for i, page in enumerate(tokens, first):
            parent = sequence.keys[i - 1] if i else self._root
            key = _key(parent, page)
            sequence.keys.append(key)
            self._remember(CachedPage(key, parent, page, [self._page_of(sequence, g, i) for g in (FULL, SLIDING)]))
        sequence.n_registered = n_pages
        self._touch(sequence.keys)

    def register_rest(self, ids: Sequence[int], sequence: SequencePages, n_computed: int) -> None:
        """Makes the tokens behind the registered pages known, for copying; nobody may write to their page any more."""
        first = sequence.n_registered * PAGE_TOKENS
        n = min(n_computed, len(ids)) - first
        if not MIN_COPIED_TOKENS <= n < PAGE_TOKENS:
            return
        tokens, parent = _as_bytes(ids[first : first + n]), self._last_key(sequence)
        if any(sibling.tokens.startswith(tokens) for sibling in self._children.get(parent, ())):
            return
        key = _key(parent, tokens)
        pages = [self._page_of(sequence, group, sequence.n_registered) for group in (FULL, SLIDING)]
        self._remember(CachedPage(key, parent, tokens, pages))
        self._touch([*sequence.keys, key])

    def forget(self, sequence: SequencePages) -> None:
        """Drops the pages of a sequence that turned out to be bad."""
        for key in sequence.keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove(entry)

    def clear(self) -> None:
        """Drops every page."""
        for entry in list(self._entries.values()):
            self._remove(entry)

    @property
    def n_unsaved(self) -> int:
        """Pages that became known since the last save."""
        return self._n_new

    def save(self) -> bool:
        """Writes the most recently used pages to the store; False when there is no store or nothing new."""
        if self._store is None or not self._n_new:
            return False
        self._store.save(self._kv, self._newest_first())
        self._n_new = 0
        return True

    def check(self) -> None:
        """Raises AssertionError unless every known page is marked in its pool, once, and no other is."""
        self._kv.check()
        for group in self._kv.groups:
            known = [e.pages[group] for e in self._entries.values() if e.pages[group] != NO_PAGE]
            pool = self._kv.pools[group]
            marked = {p for p in range(pool.n_pages) if pool.is_cached(p)}
            if len(known) != len(set(known)) or set(known) != marked:
                raise AssertionError(f"group {group}: the cache knows {sorted(known)}, the pool marks {sorted(marked)}")

    # ------------------------------------------------------------------ lookup
    def _chain(self, pages: Sequence[bytes]) -> list[CachedPage]:
        """Known entries for the pages in order, up to the first unknown; pages on disk are brought in."""
        chain: list[CachedPage] = []
        key = self._root
        for tokens in pages:
            key = _key(key, tokens)
            entry = self._entries.get(key) or self._restore(key, tokens)
            if entry is None or entry.tokens != tokens:
                break
            chain.append(entry)
        return chain

    def _usable(self, chain: list[CachedPage]) -> list[CachedPage]:
        """The longest beginning of the chain whose pages are all there."""
        alive = len(chain)
        for i, entry in enumerate(chain):  # restoring a later page may have evicted an earlier one
            if self._entries.get(entry.key) is not entry:
                alive = i
                break
        if SLIDING not in self._kv.groups:
            return chain[:alive]
        run = [0] * (alive + 1)  # run[n]: sliding pages in a row that end before page n
        for i in range(alive):
            run[i + 1] = run[i] + 1 if chain[i].pages[SLIDING] != NO_PAGE else 0
        for n in range(alive, 0, -1):
            if run[n] >= n - self._kv.geometry.first_visible_page(n * PAGE_TOKENS):
                return chain[:n]
        return []

    def _touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self._entries:
                self._entries.move_to_end(key)

    # ------------------------------------------------------------------ a copied page
    def _copy_rest(self, sequence: SequencePages, wanted: bytes) -> int:
        """Appends a copy of the page that begins with most of the wanted tokens; returns how many."""
        parent = self._last_key(sequence)
        known = [e for e in self._children.get(parent, ()) if all(e.pages[g] != NO_PAGE for g in self._kv.groups)]
        stored = [] if self._store is None else self._store.children(parent)
        stored = [page for page in stored if all(group in page.blobs for group in self._kv.groups)]
        source = max((*known, *stored), key=lambda page: _n_equal(page.tokens, wanted), default=None)
        n = 0 if source is None else _n_equal(source.tokens, wanted)
        if source is None or n < MIN_COPIED_TOKENS:
            return 0
        taken = self._take_copies(source)
        for group, page in taken:
            sequence.tables[group].append(page)
        return n if taken else 0

    def _take_copies(self, source: CachedPage | StoredPage) -> list[tuple[int, int]]:
        """(group, page) of fresh pages with the source's content; empty when no page is free or it is damaged."""
        pools, taken = self._kv.pools, list[tuple[int, int]]()
        held = [(g, source.pages[g]) for g in self._kv.groups] if isinstance(source, CachedPage) else []
        for group, page in held:  # taking a page may evict one
            pools[group].retain(page)
        try:
            for group in self._kv.groups:
                taken.append((group, self._kv.take(group)))
            complete = self._fill(source, taken)
        except CapacityError:
            complete = False
        for group, page in [*held, *(() if complete else taken)]:
            pools[group].release(page)
        return taken if complete else []

    def _fill(self, source: CachedPage | StoredPage, targets: list[tuple[int, int]]) -> bool:
        if isinstance(source, CachedPage):
            for group, page in targets:
                self._kv.pools[group].memory.copy(source.pages[group], page)
            return True
        return self._store is not None and self._store.read(source, self._kv, targets)

    def _last_key(self, sequence: SequencePages) -> bytes:
        return sequence.keys[sequence.n_registered - 1] if sequence.n_registered else self._root

    # ------------------------------------------------------------------ change
    def _page_of(self, sequence: SequencePages, group: int, i: int) -> int:
        return sequence.tables[group][i] if group in self._kv.groups else NO_PAGE

    def _remember(self, new: CachedPage) -> None:
        known = self._entries.get(new.key)
        if known is None:
            known = CachedPage(new.key, new.parent, new.tokens, [NO_PAGE, NO_PAGE])
            for sibling in tuple(self._children.get(new.parent, ())):  # beginnings of it are of no more use
                if len(sibling.tokens) < len(new.tokens) and new.tokens.startswith(sibling.tokens):
                    self._remove(sibling)
            self._add(known)
            self._n_new += 1
        if known.tokens != new.tokens:
            return
        for group in self._kv.groups:
            page, pool = new.pages[group], self._kv.pools[group]
            if known.pages[group] == NO_PAGE and page != NO_PAGE and not pool.is_cached(page):
                known.pages[group] = page
                pool.keep_cached(page)

    def _evict(self, group: int) -> bool:
        """Frees one page of the group: the least recently used that no sequence holds."""
        pool = self._kv.pools[group]
        for entry in self._entries.values():
            page = entry.pages[group]
            if page == NO_PAGE or pool.is_used(page):
                continue
            if group == self._kv.groups[0]:
                self._remove(entry)
            else:
                entry.pages[group] = NO_PAGE
                pool.drop_cached(page)
            return True
        return False

    def _add(self, entry: CachedPage) -> None:
        self._entries[entry.key] = entry
        self._children.setdefault(entry.parent, []).append(entry)

    def _remove(self, entry: CachedPage) -> None:
        del self._entries[entry.key]
        siblings = self._children[entry.parent]
        siblings.remove(entry)
        if not siblings:
            del self._children[entry.parent]
        for group in self._kv.groups:
            if entry.pages[group] != NO_PAGE:
                self._kv.pools[group].drop_cached(entry.pages[group])

    # ------------------------------------------------------------------ disk
    def _restore(self, key: bytes, tokens: bytes) -> CachedPage | None:
        """Brings a page from disk into memory; None when it is not there, damaged, or no page is free for it."""
        stored = self._store.find(key) if self._store else None
        if self._store is None or stored is None or stored.tokens != tokens:
            return None
        taken: list[tuple[int, int]] = []
        try:
            for group in self._kv.groups:
                if group in stored.blobs:
                    taken.append((group, self._kv.take(group)))
        except CapacityError:
            pass
        complete = len(taken) == len(stored.blobs) and self._store.read(stored, self._kv, taken)
        entry = CachedPage(key, stored.parent, tokens, [NO_PAGE, NO_PAGE])
        for group, page in taken:
            if complete:
                entry.pages[group] = page
                self._kv.pools[group].keep_cached(page)
            self._kv.pools[group].release(page)
        if not complete:
            return None
        self._add(entry)
        return entry

    def _newest_first(self) -> Iterator[StoredPage | tuple[CachedPage, dict[int, int]]]:
        for entry in reversed(self._entries.values()):
            yield entry, {g: entry.pages[g] for g in self._kv.groups if entry.pages[g] != NO_PAGE}
        if self._store is not None:
            yield from (page for page in self._store.pages() if page.key not in self._entries)


def _key(parent: bytes, tokens: bytes) -> bytes:
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()

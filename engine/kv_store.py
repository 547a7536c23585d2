"""KV pages on disk, one folder per model and one file per page: the system prompt is computed once in a machine's life.

File: magic (8 bytes), header length (u64, little endian), header (JSON), blake2b-128 of the header, then the blobs, one
per group: K (L, G, T, C) then V, as they lie in the pool. The header names model, hash, parent and tokens, and per
group where the blob lies and its checksum. Saving writes what is new and removes what was unused longest; the time of a
file is its last use. A damaged file is dropped, never used: the cache is only an optimisation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from .kv_cache import KvCache

_MAGIC = b"PCKV0002"
_DIGEST_BYTES = 16
_MAX_HEADER_BYTES = 1 << 16
_PAGE, _PARTIAL = ".page", ".partial"
_OLD_PARTIAL_S = 3600.0  # what a killed process left
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Blob:
    """Where a page of one group lies in its file."""

    offset: int
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page on disk."""

    key: bytes
    parent: bytes
    tokens: bytes  # (n,) int32, n <= 64
    blobs: dict[int, Blob]


@dataclass(slots=True)
class CachedPage:
    """A page that the prefix cache knows; `pages[group]` is the physical page or NO_PAGE."""

    key: bytes
    parent: bytes
    tokens: bytes  # (n,) int32, n <= 64: a shorter one is only ever copied
    pages: list[int]


class KvStore:
    """One model's folder. `identity` names model and geometry; files of another identity are ignored."""

    def __init__(self, folder: Path, identity: str, limit_bytes: int) -> None:
        self.folder = folder
        self._identity = identity
        self._limit_bytes = limit_bytes
        self._pages: dict[bytes, StoredPage] = {}  # the most recently used first
        self._children: dict[bytes, list[StoredPage]] = {}  # by parent
        for page in self._found():
            self._add(page)

    def find(self, key: bytes) -> StoredPage | None:
        """The page with this chained hash, if it is on disk."""
        return self._pages.get(key)

    def children(self, parent: bytes) -> list[StoredPage]:
        """The pages that follow the one with this chained hash."""
        return list(self._children.get(parent, ()))

    def pages(self) -> Iterator[StoredPage]:
        """All pages, most recently used first."""
        return iter(tuple(self._pages.values()))

    def read(self, page: StoredPage, kv: KvCache, targets: Sequence[tuple[int, int]]) -> bool:
        """Copies the page's blobs into (group, physical page) targets; False, and the page is dropped, when damaged."""
        blobs = self._blobs(page, [group for group, _ in targets])
        if blobs is None:
            _LOG.info("dropped the page %s: damaged, or removed by another process", self._path(page.key))
            self._drop(page)
            return False
        for (group, target), data in zip(targets, blobs, strict=True):
            kv.pools[group].memory.write(target, data)
        return True

    def save(self, kv: KvCache, newest_first: Iterable[StoredPage | tuple[CachedPage, dict[int, int]]]) -> None:
        """Makes the folder hold the given pages, as many as the size limit allows; each file appears as a whole."""
        try:
            self._save(kv, newest_first)
        except OSError as error:  # a full disk, a folder that may not be written
            _LOG.warning("computed prompts could not be kept in %s: %s", self.folder, error.strerror)

    def _save(self, kv: KvCache, newest_first: Iterable[StoredPage | tuple[CachedPage, dict[int, int]]]) -> None:
        if self.folder.is_file():  # of an earlier version
            self.folder.unlink()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept: list[StoredPage] = []
        used_bytes, now_ns = 0, time.time_ns()
        for page in newest_first:
            used_bytes += sum(map(kv.geometry.page_bytes, page.blobs if isinstance(page, StoredPage) else page[1]))
            if used_bytes > self._limit_bytes:
                break
            stored = page if isinstance(page, StoredPage) else self._stored(kv, *page)
            with suppress(OSError):  # another process may have removed it
                used_ns = now_ns - 1000 * len(kept)
                os.utime(self._path(stored.key), ns=(used_ns, used_ns))
            kept.append(stored)
        dropped = self._pages.keys() - {page.key for page in kept}
        for key in dropped:
            self._path(key).unlink(missing_ok=True)
        self._pages, self._children = {}, {}
        for page in kept:
            self._add(page)

    # ------------------------------------------------------------------ parts
    def _path(self, key: bytes) -> Path:
        return self.folder / (key.hex() + _PAGE)

    def _add(self, page: StoredPage) -> None:
        self._pages[page.key] = page
        self._children.setdefault(page.parent, []).append(page)

    def _drop(self, page: StoredPage) -> None:
        if self._pages.pop(page.key, None) is not None:
            self._children[page.parent].remove(page)
        with suppress(OSError):
            self._path(page.key).unlink(missing_ok=True)

    def _stored(self, kv: KvCache, page: CachedPage, where: dict[int, int]) -> StoredPage:
        """The page as it is on disk; written where it was not, or with fewer groups."""
        known = self._pages.get(page.key)
        if known is not None and known.blobs.keys() >= where.keys():
            return known
        data = {group: kv.pools[group].memory.read(index) for group, index in where.items()}
        blobs: dict[int, Blob] = {}
        offset = 0
        for group, blob in data.items():
            blobs[group] = Blob(offset, len(blob), _digest(blob))
            offset += len(blob)
        stored = StoredPage(page.key, page.parent, page.tokens, blobs)
        self._write(stored, data.values())
        return stored

    def _write(self, page: StoredPage, blobs: Iterable[bytes]) -> None:
        header = json.dumps(
            {
                "identity": self._identity,
                "key": page.key.hex(),
                "parent": page.parent.hex(),
                "tokens": base64.b64encode(page.tokens).decode(),
                "blobs": {str(g): [b.offset, b.size, b.digest.hex()] for g, b in page.blobs.items()},
            }
        ).encode()
        path = self._path(page.key)
        partial = path.with_suffix(f".{os.getpid()}{_PARTIAL}")
        try:
            with partial.open("wb") as file:
                file.write(_MAGIC + len(header).to_bytes(8, "little") + header + _digest(header))
                file.writelines(blobs)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _found(self) -> list[StoredPage]:
        """The pages in the folder, most recently used first."""
        try:
            with os.scandir(self.folder) as entries:
                found = [used for entry in entries if (used := self._looked_at(entry)) is not None]
        except OSError:
            return []
        return [page for _, page in sorted(found, key=lambda item: -item[0])]

    def _looked_at(self, entry: os.DirEntry[str]) -> tuple[int, StoredPage] | None:
        """When a page was used (ns), and the page; None for all else, of which writes that broke off are removed."""
        try:
            used_ns = entry.stat(follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:  # another process renamed or removed it
            return None
        if entry.name.endswith(_PARTIAL) and used_ns < (time.time() - _OLD_PARTIAL_S) * 1e9:
            Path(entry.path).unlink(missing_ok=True)
        page = self._described(Path(entry.path)) if entry.name.endswith(_PAGE) else None
        return (used_ns, page) if page is not None else None

    def _described(self, path: Path) -> StoredPage | None:
        try:
            with path.open("rb") as file:
                header = _read_header(file)
            if header is None or (header["identity"], header["key"]) != (self._identity, path.stem):
                return None
            blobs = {int(g): Blob(at, size, bytes.fromhex(d)) for g, (at, size, d) in header["blobs"].items()}
            parent, tokens = bytes.fromhex(header["parent"]), base64.b64decode(header["tokens"])
            return StoredPage(bytes.fromhex(path.stem), parent, tokens, blobs)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _blobs(self, page: StoredPage, groups: Sequence[int]) -> list[bytes] | None:
        """The chosen blobs of a page; None when they are not what was written."""
        try:
            with self._path(page.key).open("rb") as file:
                if _read_header(file) is None:
                    return None
                start, found = file.tell(), list[bytes]()
                for blob in (page.blobs[group] for group in groups):
                    file.seek(start + blob.offset)
                    found.append(file.read(blob.size))
                    if _digest(found[-1]) != blob.digest:
                        return None
                return found
        except (OSError, ValueError):
            return None


def _read_header(file: BinaryIO) -> dict[str, Any] | None:
    if file.read(len(_MAGIC)) != _MAGIC:
        return None
    size = int.from_bytes(file.read(8), "little")
    if size > _MAX_HEADER_BYTES:
        return None
    header = file.read(size)
    if _digest(header) != file.read(_DIGEST_BYTES):
        return None
    return cast("dict[str, Any]", json.loads(header))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()

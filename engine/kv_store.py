"""KV pages on disk, one file per model: the system prompt is computed once in a machine's life.

File: magic (8 bytes), header length (u64, little endian), header (JSON), blake2b-256 of the header, then the blobs. A
blob is one page of one group: K (L, G, T, C) then V, as they lie in the pool. The header lists each page's
hash, parent, tokens and, per group, where its blob lies and the checksum of the blob. A damaged file or blob is
dropped, never used: the cache is only an optimisation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from .kv_cache import KvCache

if TYPE_CHECKING:
    from .prefix_cache import CachedPage

_MAGIC = b"PCKV0001"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Blob:
    """Where a page of one group lies in the file."""

    offset: int
    size: int
    digest: bytes  # blake2b, 16 bytes


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page on disk."""

    key: bytes
    parent: bytes
    tokens: bytes  # (n,) int32, n <= 64
    blobs: dict[int, Blob]


class KvStore:
    """One model's file. `identity` names model and geometry; a file of another identity is ignored."""

    def __init__(self, path: Path, identity: str, limit_bytes: int) -> None:
        self.path = path
        self._identity = identity
        self._limit_bytes = limit_bytes
        self._file: BinaryIO | None = None
        self._pages: dict[bytes, StoredPage] = {}
        self._children: dict[bytes, list[StoredPage]] = {}  # by parent
        self._open()

    def find(self, key: bytes) -> StoredPage | None:
        """The page with this chained hash, if it is on disk."""
        return self._pages.get(key)

    def children(self, parent: bytes) -> list[StoredPage]:
        """The pages that follow the one with this chained hash."""
        return [page for page in self._children.get(parent, ()) if page.key in self._pages]

    def pages(self) -> Iterator[StoredPage]:
        """All pages, most recently used first."""
        return iter(tuple(self._pages.values()))

    def read(self, page: StoredPage, kv: KvCache, targets: Sequence[tuple[int, int]]) -> bool:
        """Copies the page's blobs into (group, physical page) targets; False, and the page is dropped, when damaged."""
        blobs = [(group, target, self._blob(page.blobs[group])) for group, target in targets]
        if any(data is None for _, _, data in blobs):
            _LOG.warning("dropped a damaged page of %s", self.path)
            self._pages.pop(page.key, None)
            return False
        for group, target, data in blobs:
            kv.pools[group].memory.write(target, data or b"")
        return True

    def save(self, kv: KvCache, newest_first: Iterable[StoredPage | tuple[CachedPage, dict[int, int]]]) -> None:
        """Replaces the file by the given pages, as many as the size limit allows. Atomic."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        entries: list[dict[str, Any]] = []
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=self.path.name, delete=False) as body:
            temporary = Path(body.name)
            try:
                used = 0
                for page in newest_first:
                    entry, blobs = self._describe(page, kv, used)
                    size = sum(len(b) for b in blobs)
                    if not blobs or used + size > self._limit_bytes:
                        break
                    body.writelines(blobs)
                    entries.append(entry)
                    used += size
                body.flush()
                self._write(temporary, entries)
            finally:
                temporary.unlink(missing_ok=True)
        self._open()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # ------------------------------------------------------------------ parts
    def _describe(
        self, page: StoredPage | tuple[CachedPage, dict[int, int]], kv: KvCache, offset: int
    ) -> tuple[dict[str, Any], list[bytes]]:
        if isinstance(page, StoredPage):
            read = {group: self._blob(blob) for group, blob in page.blobs.items()}
            data = {group: blob for group, blob in read.items() if blob is not None}
            key, parent, tokens = page.key, page.parent, page.tokens
        else:
            entry, where = page
            data = {group: kv.pools[group].memory.read(index) for group, index in where.items()}
            key, parent, tokens = entry.key, entry.parent, entry.tokens
        blobs: dict[str, list[object]] = {}
        for group, blob in data.items():
            blobs[str(group)] = [offset, len(blob), _digest(blob).hex()]
            offset += len(blob)
        described = {
            "key": key.hex(),
            "parent": parent.hex(),
            "tokens": base64.b64encode(tokens).decode(),
            "blobs": blobs,
        }
        return described, list(data.values())

    def _write(self, body: Path, entries: list[dict[str, Any]]) -> None:
        header = json.dumps({"identity": self._identity, "pages": entries}).encode()
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=self.path.name, delete=False) as file:
            file.write(
                _MAGIC + len(header).to_bytes(8, "little") + header + hashlib.blake2b(header, digest_size=32).digest()
            )
            with body.open("rb") as source:
                while block := source.read(1 << 22):
                    file.write(block)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(self.path)

    def _open(self) -> None:
        self.close()
        self._pages, self._children = {}, {}
        try:
            file = self.path.open("rb")
        except OSError:
            return
        header = _read_header(file)
        if header is None or header.get("identity") != self._identity:
            file.close()
            _LOG.info("ignored the KV file %s: damaged or of another model", self.path)
            return
        start = file.tell()
        self._file = file
        for page in (_parse(entry, start) for entry in header["pages"]):
            self._pages[page.key] = page
            self._children.setdefault(page.parent, []).append(page)

    def _blob(self, blob: Blob) -> bytes | None:
        if self._file is None:
            return None
        self._file.seek(blob.offset)
        data = self._file.read(blob.size)
        return data if _digest(data) == blob.digest else None


def _read_header(file: BinaryIO) -> dict[str, Any] | None:
    if file.read(8) != _MAGIC:
        return None
    size = int.from_bytes(file.read(8), "little")
    if size > os.fstat(file.fileno()).st_size:
        return None
    header = file.read(size)
    if hashlib.blake2b(header, digest_size=32).digest() != file.read(32):
        return None
    return cast("dict[str, Any]", json.loads(header))


def _parse(entry: dict[str, Any], start: int) -> StoredPage:
    blobs = {int(g): Blob(start + offset, size, bytes.fromhex(d)) for g, (offset, size, d) in entry["blobs"].items()}
    return StoredPage(
        bytes.fromhex(entry["key"]), bytes.fromhex(entry["parent"]), base64.b64decode(entry["tokens"]), blobs
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()

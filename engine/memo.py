"""What an earlier start found out and this one need not do again, in files that may be lost or damaged at any time.

Every file ends with a checksum of the rest; one that does not fit is as good as none. Nothing here decides what is
true: a key holds all that the answer depends on.
"""

from __future__ import annotations

import hashlib
import marshal
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_DIGEST_BYTES = 16
_MAX_PROOFS = 512


def digest(*parts: bytes) -> bytes:
    """A checksum of the parts and of where one ends and the next begins."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def source_digest(*modules: str) -> bytes:
    """Of the source of modules (their `__file__`): what another version of them found out is not known here."""
    try:
        return digest(*(Path(name).read_bytes() for name in modules))
    except OSError:  # installed without sources: nothing is known
        return os.urandom(_DIGEST_BYTES)


def file_key(path: Path, source: str) -> str:
    """A name for what the module with this `__file__` knows of this very file: after a change of either, another."""
    found = path.stat()
    identity = (str(path.resolve()), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return digest(source_digest(source), repr((marshal.version, identity)).encode()).hex()


def recall(path: Path) -> object:
    """The value that was kept; None when there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[:-_DIGEST_BYTES]
    if not body or digest(body) != data[-_DIGEST_BYTES:]:
        return None
    with suppress(ValueError, EOFError, TypeError):
        return marshal.loads(body)
    return None


def keep(path: Path, value: Any) -> None:
    """Keeps a value of plain types. A full disk or a folder that may not be written is no fault: it is lost."""
    body = marshal.dumps(value)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            partial.write_bytes(body + digest(body))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def forget_old(folder: Path, prefix: str, n_kept: int) -> None:
    """Removes the oldest files whose names begin with `prefix`: earlier models and versions left them."""
    with suppress(OSError):
        by_age = sorted(folder.glob(f"{prefix}*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in by_age[n_kept:]:
            path.unlink()


class Proofs:
    """Digests of what was proved once, in one file; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = recall(path) if path is not None else None
        self._known: list[object] = list(known) if isinstance(known, list) else []

    @classmethod
    def of(cls, cache_dir: Path | None) -> Proofs:
        """Those of the folder where an engine keeps such things."""
        return cls(cache_dir / "proved-schedules" if cache_dir is not None else None)

    def has(self, key: bytes) -> bool:
        """Was this proved?"""
        return key in self._known

    def add(self, keys: Iterable[bytes]) -> None:
        """These were proved just now."""
        fresh = [key for key in keys if key not in self._known]
        if self._path is not None and fresh:
            self._known = [*self._known, *fresh][-_MAX_PROOFS:]
            keep(self._path, self._known)

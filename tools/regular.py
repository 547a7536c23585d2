"""Files that somebody else laid out: read without waiting for a pipe, no device, no more than was asked for; found
under their names in whatever form of Unicode."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from contextlib import suppress
from pathlib import Path

# Larger files are not changed by tools: their bytes could not be kept for undo.
MAX_CHANGED_BYTES = 64 << 20


def read_regular(path: Path | str, max_bytes: int | None = None) -> bytes:
    """The (first `max_bytes`) bytes of a regular file, links followed.

    Raises OSError, also for what is no regular file. It is looked at before it is opened, since opening can do
    something to a device, and again after, since it may be another one by then; opening never waits for a pipe.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - the path may be a string on a hot path
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        return file.read() if max_bytes is None else file.read(max_bytes)


def as_on_disk(path: str) -> str:
    """The path with the names that are there, where it differs from them only in how characters are composed."""
    if path.isascii() or os.path.lexists(path):
        return path
    found = ""
    for part in path.split("/"):
        if not part.isascii() and not os.path.lexists(found + part):
            wanted = unicodedata.normalize("NFC", part)
            with suppress(OSError):
                same = [p.name for p in Path(found or ".").iterdir() if unicodedata.normalize("NFC", p.name) == wanted]
                part = same[0] if len(same) == 1 else part
        found += part + "/"
    return found[:-1]

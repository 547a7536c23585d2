"""Changing files: each file is replaced in one step, and a list of changes is made whole or not at all.

A new file is written beside the old one, synced and renamed over it, so a reader sees the old or the new bytes and a
crash leaves one of them. Mode, owner and extended attributes are kept; a symlink stays and its target is changed. A
hard link is broken: the other names keep the old bytes (a package store linked into a project is not damaged).
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .base import FileChange, ToolError
from .regular import MAX_CHANGED_BYTES


class Files(Protocol):
    """Where the bytes of files come from and go to: the disk, or an editor that holds unsaved changes."""

    def read(self, path: Path) -> bytes | None:
        """The file's bytes; None when there is no such file."""
        ...

    def apply(self, changes: tuple[FileChange, ...]) -> None:
        """Make the changes, all or none; raises ToolError or OSError."""
        ...


class DiskFiles:
    """The files on disk."""

    def read(self, path: Path) -> bytes | None:
        """The bytes on disk."""
        return read_bytes_or_none(path)

    def apply(self, changes: tuple[FileChange, ...]) -> None:
        """See `apply_changes`."""
        apply_changes(changes)


@dataclass(slots=True)
class _Staged:
    change: FileChange
    temporary: Path | None = None
    done: bool = False


def apply_changes(changes: Iterable[FileChange]) -> None:
    """Make all changes or none; raises ToolError or OSError with every file as it was.

    Paths are absolute with links resolved. `before` must be the present bytes (checked again here).
    """
    staged = [_Staged(change) for change in changes]
    made: list[Path] = []
    try:
        for item in staged:
            _stage(item, made)
        for item in staged:
            _commit(item)
    except BaseException:
        _roll_back(staged, made)
        raise


def read_bytes_or_none(path: Path) -> bytes | None:
    """The file's bytes; None when there is no such file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def require_writable(path: Path) -> None:
    """Raise ToolError unless `path` is absent or a regular file with a write permission."""
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(info.st_mode):
        raise ToolError(f"{path} is a folder")
    if not stat.S_ISREG(info.st_mode):
        raise ToolError(f"{path} is not a regular file")
    if info.st_size > MAX_CHANGED_BYTES:
        raise ToolError(f"{path} has {info.st_size:,} bytes, too large to be changed by a tool; use shell")
    if not info.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise ToolError(f"{path} is read-only (mode {stat.S_IMODE(info.st_mode):04o}); it was not changed")


def _stage(item: _Staged, made: list[Path]) -> None:
    path = item.change.path
    require_writable(path)
    if read_bytes_or_none(path) != item.change.before:
        raise ToolError(f"{path} was changed by someone else meanwhile; read it again")
    if item.change.after is None:
        return
    _make_parents(path.parent, made)
    item.temporary = _write_beside(path, item.change.after, item.change.like)


def _make_parents(folder: Path, made: list[Path]) -> None:
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir()
        made.append(each)


def _write_beside(path: Path, data: bytes, like: Path | None = None) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=".pointcode-", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _copy_metadata(like or path, file.fileno())
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _copy_metadata(path: Path, descriptor: int) -> None:
    try:
        info = path.stat()
    except OSError:
        os.fchmod(descriptor, 0o666 & ~_umask())
        return
    if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, info.st_uid, info.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(info.st_mode))
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        for attribute in os.listxattr(path):
            os.setxattr(descriptor, attribute, os.getxattr(path, attribute))


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _commit(item: _Staged) -> None:
    path = item.change.path
    if item.temporary is not None:
        item.temporary.replace(path)
        item.temporary = None
    elif item.change.before is not None:
        path.unlink()
    item.done = True
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _roll_back(staged: list[_Staged], made: list[Path]) -> None:
    for item in staged:
        if item.temporary is not None:
            item.temporary.unlink(missing_ok=True)
        if item.done:
            _restore(item.change)
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _restore(change: FileChange) -> None:
    if change.before is None:
        change.path.unlink(missing_ok=True)
    else:
        _write_beside(change.path, change.before).replace(change.path)

"""Changing files: each file is replaced in one step, and a list of changes is made whole or not at all.

A new file is written beside the old one, synced and renamed over it, so a reader sees the old or the new bytes and a
crash leaves one of them. Mode, owner and extended attributes are kept; a symlink stays and its target is changed. A
hard link is broken: the other names keep the old bytes (a package store linked into a project is not damaged). No link
is followed: one that came to be since the path was resolved ends the change with an error (see folders.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .base import FileChange, ToolError
from .folders import Folder, open_folder
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
    folder: Folder
    temporary: str = ""  # a name in the folder
    link: str = ""  # where the link leads that is to be removed
    done: bool = False

    @property
    def name(self) -> str:
        return self.change.path.name


def apply_changes(changes: Iterable[FileChange]) -> None:
    """Make all changes or none; raises ToolError or OSError with every file as it was.

    Paths are absolute with links resolved; only the last name of one that goes may be a link. `before` must be the
    present bytes (checked again here).
    """
    staged: list[_Staged] = []
    made: list[Path] = []
    try:
        for change in changes:
            _stage(change, staged, made)
        for item in staged:
            _commit(item)
    except BaseException:
        _roll_back(staged, made)
        raise
    finally:
        for item in staged:
            item.folder.close()


def read_bytes_or_none(path: Path) -> bytes | None:
    """The file's bytes; None when there is no such file. The path's links are resolved."""
    try:
        with open_folder(path.parent) as folder:
            return folder.read(path.name)
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


def _stage(change: FileChange, staged: list[_Staged], made: list[Path]) -> None:
    path = change.path
    require_writable(path)
    folder = open_folder(path.parent, None if change.after is None else made.append)
    item = _Staged(change, folder)
    staged.append(item)
    if change.after is None and folder.is_link(path.name):
        item.link = os.readlink(path.name, dir_fd=folder.descriptor)
        present = path.read_bytes()
    else:
        present = folder.read(path.name)
    if present != change.before:
        raise ToolError(f"{path} was changed by someone else meanwhile; read it again")
    if change.after is not None:
        item.temporary = _write_beside(folder, path.name, change.after, change.like)


def _write_beside(folder: Folder, name: str, data: bytes, like: Path | None = None) -> str:
    """A new file with the metadata of `name` (or of `like`) in the same folder; its name."""
    temporary = f".pointcode-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder.descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _copy_metadata(folder, name, like, file.fileno())
            os.fsync(file.fileno())
    except BaseException:
        _remove(folder, temporary)
        raise
    return temporary


def _copy_metadata(folder: Folder, name: str, like: Path | None, target: int) -> None:
    try:
        if like is not None:
            with open_folder(like.parent) as source:
                model = source.open_file(like.name)
        else:
            model = folder.open_file(name)
    except OSError:
        os.fchmod(target, 0o666 & ~_umask())
        return
    try:
        info = os.fstat(model)
        if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
            with contextlib.suppress(OSError):
                os.fchown(target, info.st_uid, info.st_gid)
        os.fchmod(target, stat.S_IMODE(info.st_mode))
        if not hasattr(os, "listxattr"):
            return
        with contextlib.suppress(OSError):
            for attribute in os.listxattr(model):
                os.setxattr(target, attribute, os.getxattr(model, attribute))
    finally:
        os.close(model)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _commit(item: _Staged) -> None:
    if item.temporary:
        _replace(item.folder, item.temporary, item.name)
        item.temporary = ""
    elif item.change.before is not None:
        os.unlink(item.name, dir_fd=item.folder.descriptor)
    item.done = True
    with contextlib.suppress(OSError):
        item.folder.sync()


def _replace(folder: Folder, old: str, new: str) -> None:
    os.replace(old, new, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)


def _remove(folder: Folder, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder.descriptor)


def _roll_back(staged: list[_Staged], made: list[Path]) -> None:
    for item in staged:
        if item.temporary:
            _remove(item.folder, item.temporary)
        if item.done:
            _restore(item)
    for path in reversed(made):
        with contextlib.suppress(OSError), open_folder(path.parent) as folder:
            os.rmdir(path.name, dir_fd=folder.descriptor)


def _restore(item: _Staged) -> None:
    if item.change.before is None:
        _remove(item.folder, item.name)
    elif item.link:
        os.symlink(item.link, item.name, dir_fd=item.folder.descriptor)
    else:
        _replace(item.folder, _write_beside(item.folder, item.name, item.change.before), item.name)

"""Changing files: each file is replaced in one step, and a list of changes is made whole or not at all.

A new file is written beside the old one, synced and renamed over it, so a reader sees the old or the new bytes and a
crash leaves one of them. Mode, owner and extended attributes are kept; a symlink stays and its target is changed. A
hard link is broken: the other names keep the old bytes (a package store linked into a project is not damaged). No link
is followed: one that came to be since the path was resolved ends the change with an error (see folders.py). What
somebody else saves while the new files are written is not overwritten: each file is looked at again just before it is
replaced, and a new one takes its name only where that is free.
"""

from __future__ import annotations

import contextlib
import errno
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

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
_ACCESS_LIST = "system.posix_acl_access"


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
    seen: tuple[int, ...] | None = None  # how the file looked whose bytes are `before`
    aside: str = ""  # a second name of the old file, until all is done
    done: bool = False

    @property
    def name(self) -> str:
        return self.change.path.name


def apply_changes(changes: Iterable[FileChange], *, even_read_only: bool = False) -> None:
    """Make all changes or none; raises ToolError or OSError with every file as it was.

    Paths are absolute with links resolved; only the last name of one that goes may be a link. `before` must be the
    present bytes (checked again here). A file without write permission is an error, or not with `even_read_only`.
    """
    staged: list[_Staged] = []
    made: list[Path] = []
    try:
        for change in changes:
            if not even_read_only:
                require_writable(change.path)
            _stage(change, staged, made)
        for item in staged:
            _commit(item, may_go_back=len(staged) > 1)
    except BaseException as error:
        if left := _roll_back(staged, made):
            raise ToolError(f"{error}; these could not be put back as they were: {', '.join(left)}") from error
        raise
    finally:
        for item in staged:
            if item.aside:
                _remove(item.folder, item.aside)
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
    folder = open_folder(path.parent, None if change.after is None else made.append)
    item = _Staged(change, folder, seen=_look(folder, path.name))
    staged.append(item)
    if change.after is None and folder.is_link(path.name):
        item.link = os.readlink(path.name, dir_fd=folder.descriptor)
        present = path.read_bytes()
    else:
        present = folder.read(path.name)
    if present != change.before:
        raise _changed(path)
    if change.after is not None:
        item.temporary = _write_beside(folder, path.name, change.after, change.like)


def _write_beside(folder: Folder, name: str, data: bytes, like: Path | None = None) -> str:
    """A new file with the metadata of `name` (or of `like`) in the same folder; its name."""
    temporary = _new_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    model = _open_model(folder, name, like)
    try:
        descriptor = os.open(temporary, flags, 0o666 if model is None else 0o600, dir_fd=folder.descriptor)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if model is not None:
                _copy_metadata(model, file.fileno())
            os.fsync(file.fileno())
    except OSError as error:
        _remove(folder, temporary)
        raise OSError(error.errno, error.strerror, os.fspath(folder.path / name)) from error
    except BaseException:
        _remove(folder, temporary)
        raise
    finally:
        if model is not None:
            os.close(model)
    return temporary


def _new_name() -> str:
    return f".pointcode-{secrets.token_hex(8)}.tmp"


def _open_model(folder: Folder, name: str, like: Path | None) -> int | None:
    """A descriptor of the file whose metadata a new one gets; None when it is to be like any other new file."""
    try:
        if like is None:
            return folder.open_file(name)
        with open_folder(like.parent) as source:
            return source.open_file(like.name)
    except FileNotFoundError:
        return None


def _copy_metadata(model: int, target: int) -> None:
    """Owner and group as far as that is allowed, mode, and every extended attribute that can be set."""
    info = os.fstat(model)
    with contextlib.suppress(OSError):
        os.fchown(target, -1, info.st_gid)
    with contextlib.suppress(OSError):
        os.fchown(target, info.st_uid, -1)
    if hasattr(os, "listxattr"):
        _copy_attributes(model, target)
    os.fchmod(target, stat.S_IMODE(info.st_mode))


def _copy_attributes(model: int, target: int) -> None:
    with contextlib.suppress(OSError):  # a file system without them
        wanted = os.listxattr(model)
        if _ACCESS_LIST not in wanted and _ACCESS_LIST in os.listxattr(target):
            os.removexattr(target, _ACCESS_LIST)  # the folder gave one, which would let others in
        for attribute in wanted:
            with contextlib.suppress(OSError):  # one that only the system sets
                os.setxattr(target, attribute, os.getxattr(model, attribute))


def _look(folder: Folder, name: str) -> tuple[int, ...] | None:
    info = folder.info(name)
    return info and (info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns)


def _changed(path: Path) -> ToolError:
    return ToolError(f"{path} was changed by someone else meanwhile; read it again")


def _commit(item: _Staged, *, may_go_back: bool) -> None:
    if _look(item.folder, item.name) != item.seen:
        raise _changed(item.change.path)
    if may_go_back and item.change.before is not None and not item.link:
        item.aside = _second_name(item)
    if item.temporary and item.change.before is None:
        _take_name(item)
        item.temporary = ""
    elif item.temporary:
        _replace(item.folder, item.temporary, item.name)
        item.temporary = ""
    elif item.change.before is not None:
        os.unlink(item.name, dir_fd=item.folder.descriptor)
    item.done = True
    with contextlib.suppress(OSError):
        item.folder.sync()


def _second_name(item: _Staged) -> str:
    """Another name of the file that is to go, so that it can come back just as it was; "" where links cannot be."""
    name = _new_name()
    try:
        _link(item.folder, item.name, name)
    except OSError:
        return ""
    return name


def _link(folder: Folder, old: str, new: str) -> None:
    os.link(old, new, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor, follow_symlinks=False)


def _take_name(item: _Staged) -> None:
    """Give the new file its name if that is free, in one step where the file system can do that."""
    folder = item.folder
    try:
        _link(folder, item.temporary, item.name)
    except FileExistsError as error:
        raise _changed(item.change.path) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _replace(folder, item.temporary, item.name)
    else:
        _remove(folder, item.temporary)


def _replace(folder: Folder, old: str, new: str) -> None:
    os.replace(old, new, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)


def _remove(folder: Folder, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder.descriptor)


def _roll_back(staged: list[_Staged], made: list[Path]) -> list[str]:
    """Put everything back; what could not be, with the reason."""
    left: list[str] = []
    for item in staged:
        if item.temporary:  # first of all: they take up room
            _remove(item.folder, item.temporary)
    for item in staged:
        if item.done:
            try:
                _restore(item)
            except (OSError, ToolError) as error:
                left.append(f"{item.change.path} ({error})")
    for path in reversed(made):
        with contextlib.suppress(OSError), open_folder(path.parent) as folder:
            os.rmdir(path.name, dir_fd=folder.descriptor)
    return left


def _restore(item: _Staged) -> None:
    if item.folder.read(item.name) != item.change.after:
        raise _changed(item.change.path)
    if item.aside:
        _replace(item.folder, item.aside, item.name)
        item.aside = ""
    elif item.change.before is None:
        _remove(item.folder, item.name)
    elif item.link:
        os.symlink(item.link, item.name, dir_fd=item.folder.descriptor)
    else:
        temporary = _write_beside(item.folder, item.name, item.change.before)
        if item.seen is not None:
            os.chmod(temporary, stat.S_IMODE(item.seen[2]), dir_fd=item.folder.descriptor)
        _replace(item.folder, temporary, item.name)

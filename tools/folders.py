"""Folders held open by a descriptor: what is done in one happens there, also when a link takes its place meanwhile.

A path whose links are resolved is walked name by name, and no name may be a link: whoever swaps one in after the
path was judged makes the walk fail. (Linux: what openat2 calls RESOLVE_NO_SYMLINKS, on every kernel.)
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_PATH = getattr(os, "O_PATH", 0)  # needs no right to read the folder
_FOLDER = (_PATH or os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Folder:
    """An open folder; names in it are taken as they are, links not followed. Closed by `close` or after a `with`."""

    __slots__ = ("descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def folder(self, name: str) -> Folder:
        """A folder in this one; raises OSError, FileNotFoundError where there is none."""
        path = self.path / name
        try:
            return Folder(path, os.open(name, _FOLDER, dir_fd=self.descriptor))
        except OSError as error:
            if self.is_link(name):
                raise OSError(errno.ELOOP, "a link came to be on the way", os.fspath(path)) from error
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error

    def info(self, name: str) -> os.stat_result | None:
        """What stands under a name; None when nothing does."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_link(self, name: str) -> bool:
        """Is there a link of this name?"""
        info = self.info(name)
        return info is not None and stat.S_ISLNK(info.st_mode)

    def open_file(self, name: str) -> int:
        """A descriptor of a regular file for reading; raises OSError for anything else, and never waits for a pipe."""
        path = os.fspath(self.path / name)
        if self.is_link(name):
            raise OSError(errno.ELOOP, "a link came to be there", path)
        try:
            descriptor = os.open(name, _FILE, dir_fd=self.descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor

    def read(self, name: str) -> bytes | None:
        """The bytes of a regular file; None when there is none."""
        try:
            descriptor = self.open_file(name)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def sync(self) -> None:
        """Bring the names to the disk."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_folder(path: Path, on_made: Callable[[Path], None] | None = None) -> Folder:
    """Open an absolute path without links. With `on_made`, folders that are missing are made and told."""
    here = Folder(Path(path.anchor), os.open(path.anchor, _FOLDER))
    for name in path.parts[1:]:
        with here:
            here = _next(here, name, on_made)
    return here


def _next(here: Folder, name: str, on_made: Callable[[Path], None] | None) -> Folder:
    try:
        return here.folder(name)
    except FileNotFoundError:
        if on_made is None:
            raise
    except PermissionError:
        if _PATH:
            raise
        # A folder that may be passed and not read, where that cannot be told to the system.
        return Folder(here.path / name, os.open(here.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    os.mkdir(name, dir_fd=here.descriptor)
    on_made(here.path / name)
    return here.folder(name)

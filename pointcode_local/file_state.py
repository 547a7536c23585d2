"""What undo keeps of a file: its bytes and mode; of a symbolic link where it leads."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pointcode_local.tools.folders import open_folder
from pointcode_local.tools.regular import MAX_CHANGED_BYTES

MAX_HOLLOW = 1000  # empty folders that are looked through
LINK_MODE = stat.S_IFLNK | 0o777


@dataclass(frozen=True, slots=True)
class FileState:
    """`mode`: the permission bits, or LINK_MODE. `data`: the bytes, or where the link leads."""

    data: bytes
    mode: int

    @property
    def is_link(self) -> bool:
        """Is it a symbolic link?"""
        return is_link_mode(self.mode)


def is_link_mode(mode: int) -> bool:
    """Is this the mode of a symbolic link?"""
    return stat.S_ISLNK(mode)


def digest(state: FileState | None) -> str:
    """What tells contents apart; "" for no file. A link never counts as the file that holds the same text."""
    if state is None:
        return ""
    return hashlib.sha256(b"link\0" + state.data if state.is_link else state.data).hexdigest()


def state_at(path: Path) -> FileState | None:
    """What is at a path whose folders are no links; None for nothing. Raises OSError for what is neither file nor link,
    or is too large."""
    try:
        with open_folder(path.parent) as folder:
            info = folder.info(path.name)
            if info is None:
                return None
            if stat.S_ISLNK(info.st_mode):
                return FileState(os.fsencode(os.readlink(path.name, dir_fd=folder.descriptor)), LINK_MODE)
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_CHANGED_BYTES:
                raise OSError(errno.EINVAL, "not a file that can be kept", os.fspath(path))
            return FileState(folder.read(path.name) or b"", stat.S_IMODE(info.st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_hollow(path: Path) -> bool:
    """Is it a folder with nothing in it but such folders?"""
    if path.is_symlink() or not path.is_dir():
        return False
    for n_folders, (where, folders, files) in enumerate(os.walk(path)):
        if files or n_folders >= MAX_HOLLOW or any(Path(where, folder).is_symlink() for folder in folders):
            return False
    return True


def remove_hollow(path: Path) -> None:
    """Take such a folder away; raises OSError when something is in it by now."""
    for where, _, _ in os.walk(path, topdown=False):
        Path(where).rmdir()


def remove_link(path: Path) -> None:
    """Take a link away; raises OSError where there is none any more."""
    with open_folder(path.parent) as folder:
        if not folder.is_link(path.name):
            raise OSError(errno.EINVAL, "no link any more", os.fspath(path))
        os.unlink(path.name, dir_fd=folder.descriptor)


def make_link(path: Path, target: bytes) -> None:
    """Make a link, and the folders above it; raises OSError where something is."""
    with open_folder(path.parent, lambda _: None) as folder:
        os.symlink(target, os.fsencode(path.name), dir_fd=folder.descriptor)


def set_mode(path: Path, mode: int) -> None:
    """Give a file its mode; raises OSError."""
    with open_folder(path.parent) as folder:
        os.chmod(path.name, mode, dir_fd=folder.descriptor)

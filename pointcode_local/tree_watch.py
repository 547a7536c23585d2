"""What a command changed in the workspace: its files and links are looked over before and after, so that it can be
undone.

Before a command, the bytes of files that are new or other than last time are put into one unnamed temporary file; after
it, files that differ are compared with those bytes. A folder that is too large for this, or a slow one, or the home
folder, where other programs write, is left alone. What git ignores, and caches, are not looked at. What somebody else
saves while a command runs counts as the command's.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pointcode_local.file_state import LINK_MODE, FileState, is_link_mode
from pointcode_local.tools.regular import read_regular
from pointcode_local.tools.walk import ALWAYS_SKIPPED, walk

MAX_FILES = 20_000
MAX_FILE_BYTES = 1 << 20  # of a larger file a change is not undone
MAX_KEPT_BYTES = 128 << 20
MAX_CHANGES = 500  # a command that changes more unpacked or installed something
MAX_LOOK_S = 2.0
MAX_FAILURES = 3  # then the folder is taken for too large; the first looks may only have met a cold disk
CACHES = ALWAYS_SKIPPED | {
    "node_modules",
    "__pycache__",
    ".venv",
    "venv",
    ".tox",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}


@dataclass(frozen=True, slots=True)
class TreeChange:
    """A file or link that a command changed: what it was before and after (None: there was none, or it is gone)."""

    path: Path
    before: FileState | None
    after: FileState | None
    n_folders: int = 0  # folders above it that were not there before


@dataclass(frozen=True, slots=True)
class TreeChanges:
    """What a command changed; not `is_whole`: more than that, or it cannot be said."""

    files: tuple[TreeChange, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _State:
    """What tells one content of a file from the next without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int


class _TooMuchError(Exception):
    """The folder cannot be looked over in the time and space that there is for it."""


class TreeWatch:
    """Looks over one workspace. Not for two commands at a time."""

    def __init__(self, root: Path, excluded: Iterable[Path] = ()) -> None:
        """`excluded`: folders that change by themselves, such as those of this program's own files."""
        self._root = root
        self._excluded = tuple(f"{os.path.realpath(path)}/" for path in excluded)
        self._kept: dict[str, tuple[_State, int]] = {}  # by path: where its bytes begin in the pack, -1 for nowhere
        self._folders: set[str] = set()  # of the last look
        self._folders_before: set[str] = set()  # of the one before
        self._pack: BinaryIO | None = None
        self._used_bytes = 0
        home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - Path raises without a home
        self._n_failures = MAX_FAILURES if home.is_relative_to(root) else 0
        self._is_ready = False
        self._lock = threading.Lock()  # a look that was cancelled may still be under way

    def before(self) -> bool:
        """Look before a command; False when its changes will not be known."""
        with self._lock:
            self._is_ready = False
            if self._n_failures >= MAX_FAILURES:
                return False
            until_s = time.monotonic() + MAX_LOOK_S
            try:
                present = self._look(until_s)
                if self._used_bytes > MAX_KEPT_BYTES:  # most of it is of earlier contents
                    self.close()
                for path in self._kept.keys() - present.keys():
                    del self._kept[path]
                for path, state in present.items():
                    self._keep(path, state, until_s)
            except (_TooMuchError, OSError):
                self._n_failures += 1
                return False
            self._is_ready = True
            return True

    def after(self) -> TreeChanges:
        """Look after it: what changed since `before`."""
        with self._lock:
            if not self._is_ready:
                return TreeChanges((), is_whole=False)
            try:
                present = self._look(time.monotonic() + MAX_LOOK_S)
                differ = [path for path in {**self._kept, **present} if self._differs(path, present)]
                if len(differ) > MAX_CHANGES:
                    return TreeChanges((), is_whole=False)
                changes = [self._change(path, present.get(path)) for path in sorted(differ)]
            except (_TooMuchError, OSError):
                return TreeChanges((), is_whole=False)
            known = tuple(change for change in changes if change is not None and change.before != change.after)
            return TreeChanges(known, is_whole=None not in changes)

    def close(self) -> None:
        """Forget everything."""
        if self._pack is not None:
            self._pack.close()
        self._kept, self._pack, self._used_bytes = {}, None, 0

    def _look(self, until_s: float) -> Mapping[str, _State]:
        found: dict[str, _State] = {}
        self._folders, self._folders_before = {os.fspath(self._root)}, self._folders
        for entry in walk(self._root, self._root, skipped=CACHES):
            if entry.is_folder:
                self._folders.add(os.fspath(entry.path))
                continue
            try:
                info = os.lstat(entry.path)
            except OSError:
                continue
            path = os.fspath(entry.path)
            is_link = stat.S_ISLNK(info.st_mode)
            if (is_link or stat.S_ISREG(info.st_mode)) and not path.startswith(self._excluded):
                mode = LINK_MODE if is_link else stat.S_IMODE(info.st_mode)
                found[path] = _State(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, mode)
            if len(found) > MAX_FILES or time.monotonic() > until_s:
                raise _TooMuchError
        return found

    def _keep(self, path: str, state: _State, until_s: float) -> None:
        """Have the bytes of a file in the pack, if it is not too large and nobody writes it just now."""
        known = self._kept.get(path)
        if known is not None and known[0] == state:
            return
        self._kept[path] = state, -1
        if state.size > MAX_FILE_BYTES:
            return
        if time.monotonic() > until_s or self._used_bytes + state.size > 2 * MAX_KEPT_BYTES:
            del self._kept[path]
            raise _TooMuchError
        try:
            data = _data(path, state)
        except OSError:
            return
        if len(data) != state.size:
            return
        if self._pack is None:
            self._pack = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the watch
        at = self._pack.seek(0, os.SEEK_END)
        self._pack.write(data)
        self._used_bytes += len(data)
        self._kept[path] = state, at

    def _differs(self, path: str, present: Mapping[str, _State]) -> bool:
        known = self._kept.get(path)
        return known is None or present.get(path) != known[0]

    def _change(self, path: str, now: _State | None) -> TreeChange | None:
        """The change of one file; None where its bytes are not known."""
        before: FileState | None = None
        if (known := self._kept.get(path)) is not None:
            state, at = known
            if at < 0 or self._pack is None:
                return None
            self._pack.seek(at)
            before = FileState(self._pack.read(state.size), state.mode)
        if now is None:
            return TreeChange(Path(path), before, None)
        if now.size > MAX_FILE_BYTES:
            return None
        return TreeChange(Path(path), before, FileState(_data(path, now), now.mode), self._n_new_folders(path))

    def _n_new_folders(self, path: str) -> int:
        above = (os.fspath(folder) for folder in Path(path).parents)
        return next((n for n, folder in enumerate(above) if folder in self._folders_before), 0)


def _data(path: str, state: _State) -> bytes:
    """The bytes of a file, or where a link leads; raises OSError."""
    if is_link_mode(state.mode):
        return os.fsencode(Path(path).readlink())
    return read_regular(path, MAX_FILE_BYTES)

"""The folder a session works in: where paths lead, what is guarded, and which bytes the model last saw of a file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .atomic import DiskFiles, Files
from .base import FileChange, ToolError
from .regular import as_on_disk
from .secrets import is_secret

MAX_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path as the model wrote it leads.

    `path` has every link resolved; `lexical` only `..` and `.`; `name` is how to show it: relative inside,
    else absolute.
    """

    text: str
    path: Path
    lexical: Path
    inside: bool
    name: str


@dataclass(slots=True)
class _Stamp:
    digest: bytes
    ranges: list[tuple[int, int]]  # 1-based lines seen, end exclusive, merged and ascending
    n_lines: int


class Workspace:
    """Paths, stamps and locks of one session. `unreadable` says which relative names a rule forbids to read."""

    def __init__(self, root: Path | str, *, unreadable: Callable[[str], bool] | None = None) -> None:
        self.root = Path(os.path.realpath(root))
        self.unreadable: Callable[[str], bool] = unreadable or (lambda _: False)
        self.files: Files = DiskFiles()
        self._stamps: dict[Path, _Stamp] = {}
        self._locks: dict[Path, asyncio.Lock] = {}
        self._log_folder: tempfile.TemporaryDirectory[str] | None = None

    def resolve(self, text: str, cwd: Path | None = None) -> Place:
        """Follow a path: relative to the workspace (or `cwd`), absolute, or `~/…`. Where no such name is, one that is
        the same text in another form of Unicode is meant: models write é as one character, some disks as two.

        Raises ToolError for one that cannot be.
        """
        if not text or "\x00" in text:
            raise ToolError("the path is empty" if not text else "the path holds a NUL character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError as error:
            raise ToolError("the path holds characters that no file name can have") from error
        expanded = str(Path(text).expanduser()) if text == "~" or text.startswith("~/") else text
        joined = as_on_disk(os.path.join(cwd or self.root, expanded))  # noqa: PTH118 - Path drops a final slash and "./"
        real = Path(os.path.realpath(joined))
        lexical = Path(os.path.normpath(joined))
        inside = self.contains(real)
        return Place(text, real, lexical, inside, self.display(real))

    def contains(self, real: Path) -> bool:
        """Is a resolved path the workspace or in it? Compares whole components, so `/a/proj-x` is not in `/a/proj`."""
        return real == self.root or self.root in real.parents

    def display(self, real: Path) -> str:
        """A resolved path relative to the workspace when inside, else absolute."""
        return str(real.relative_to(self.root)) if self.contains(real) else str(real)

    def is_guarded(self, real: Path) -> bool:
        """A secret, or a file that a rule forbids to read: searches pass over it."""
        return is_secret(real) or self.unreadable(self.display(real))

    # ------------------------------------------------------------------------------------------- reading
    def read_file(self, place: Place) -> bytes:
        """The bytes of a regular file; raises ToolError with a cure for anything else."""
        try:
            info = place.path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ToolError(f"{place.text} does not exist{self._similar(place)}") from error
        if stat.S_ISDIR(info.st_mode):
            raise ToolError(f"{place.text} is a folder; use list")
        if not stat.S_ISREG(info.st_mode):
            raise ToolError(f"{place.text} is not a regular file")
        if info.st_size > MAX_FILE_BYTES:
            raise ToolError(f"{place.text} has {info.st_size:,} bytes, too large to open; use grep or shell")
        data = self.files.read(place.path)
        if data is None:
            raise ToolError(f"{place.text} does not exist")
        return data

    def _similar(self, place: Place) -> str:
        """Names in the same folder that differ in case or ending only, as a hint."""
        folder, stem = place.path.parent, place.path.stem.casefold()
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if Path(entry.name).stem.casefold() == stem)
        except OSError:
            return ""
        return f"; did you mean {', '.join(names[:3])}?" if names else ""

    # ------------------------------------------------------------------------------------------- stamps
    def note_seen(self, path: Path, data: bytes, first: int | None = None, end: int | None = None) -> None:
        """Remember that the model saw lines [first, end) of these bytes (all of them when left out)."""
        digest = _digest(data)
        n_lines = data.count(b"\n") + 1
        seen = (1, n_lines + 1) if first is None or end is None else (first, end)
        known = self._stamps.get(path)
        if known is None or known.digest != digest:
            known = self._stamps[path] = _Stamp(digest, [], n_lines)
        known.ranges = _merged([*known.ranges, seen])

    def forget(self, path: Path) -> None:
        """The model no longer knows this file: what it was told about it did not come to be."""
        self._stamps.pop(path, None)

    def note_cut(self, path: Path) -> None:
        """Of what was read of this file the model got a part only, and nobody knows which lines."""
        if (known := self._stamps.get(path)) is not None:
            known.ranges = []

    def forget_all(self) -> None:
        """The model no longer has what it read: its conversation was shortened."""
        self._stamps.clear()

    def unseen_reason(self, path: Path, data: bytes) -> str | None:
        """Why the model does not know these bytes well enough to replace them; None when it does."""
        known = self._stamps.get(path)
        if not data:
            return None
        if known is None:
            return "it exists and was not read; read it first, or use edit"
        if known.digest != _digest(data):
            return "it was changed since it was last read; read it again"
        first_gap = known.ranges[0][1] if known.ranges and known.ranges[0][0] == 1 else 1
        last = data.count(b"\n") + (0 if data.endswith(b"\n") else 1)
        return (
            None
            if first_gap > last
            else f"it was read only in part (line {first_gap} on is unseen); read the rest, or use edit"
        )

    # ------------------------------------------------------------------------------------------- changing
    @asynccontextmanager
    async def locked(self, *paths: Path):
        """Hold the locks of these files, taken in one fixed order."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):
                await stack.enter_async_context(self._locks.setdefault(path, asyncio.Lock()))
            yield

    def commit(self, changes: tuple[FileChange, ...]) -> None:
        """Make the changes, all or none; the model has then seen the new bytes of files it knew before."""
        self.files.apply(changes)
        for change in changes:
            known = self._stamps.pop(change.path, None)
            if change.after is None:
                continue
            whole = change.before is None or (known is not None and self._was_whole(known, change.before))
            if whole:
                self.note_seen(change.path, change.after)

    @staticmethod
    def _was_whole(stamp: _Stamp, data: bytes) -> bool:
        last = data.count(b"\n") + (0 if data.endswith(b"\n") else 1)
        return (
            stamp.digest == _digest(data)
            and bool(stamp.ranges)
            and stamp.ranges[0][0] == 1
            and stamp.ranges[0][1] > last
        )

    # ------------------------------------------------------------------------------------------- logs
    @property
    def log_folder(self) -> Path:
        """A private folder for full command output, made on first use and removed by `close`."""
        if self._log_folder is None:
            self._log_folder = tempfile.TemporaryDirectory(prefix="pointcode-logs-", ignore_cleanup_errors=True)
        return Path(os.path.realpath(self._log_folder.name))

    def is_log(self, real: Path) -> bool:
        """Does a resolved path lie in the folder of command logs?"""
        return self._log_folder is not None and self.log_folder in real.parents

    def close(self) -> None:
        """Remove the logs."""
        if self._log_folder is not None:
            self._log_folder.cleanup()
            self._log_folder = None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((first, end))
    return out

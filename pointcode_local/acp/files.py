"""Files as the editor holds them: what is read has its unsaved changes, what is written goes through it.

Permission was given before any of this, on our side and for the resolved path; only that path is ever named to the
editor, and only inside the workspace. What the editor cannot hold as text (other encodings, deletions) stays on disk.
The editor opens a path as it likes: that no link came to be on it is looked at just before it writes and again after.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pointcode_local.acp.editor import ASK_FAILED
from pointcode_local.acp.stand_in import StandIn
from pointcode_local.tools.atomic import DiskFiles
from pointcode_local.tools.base import FileChange, Tool, ToolContext, ToolError, ToolResult
from pointcode_local.tools.folders import open_folder
from pointcode_local.tools.workspace import Workspace

log = logging.getLogger(__name__)
MAX_BUFFER_BYTES = 16 << 20
READ_TIMEOUT_S = 10.0  # for one file; then it is read from disk
BOM = "\ufeff"
Read = Callable[[Path], Awaitable[str]]
Write = Callable[[Path, str], Awaitable[None]]


def as_bytes(content: str, disk: bytes) -> bytes:
    """The bytes of a buffer whose file has these bytes on disk.

    Editors hand out text with their own line ends and without the byte order mark: where that is all that differs, the
    file is as it is on disk; otherwise the file's own form is kept.
    """
    text = disk.decode("utf-8")
    if _plain(content) == _plain(text):
        return disk
    if "\r\n" in text and "\n" not in text.replace("\r\n", "") and "\r" not in content:
        content = content.replace("\n", "\r\n")
    if text.startswith(BOM) and not content.startswith(BOM):
        content = BOM + content
    return content.encode("utf-8", "replace")


def _plain(text: str) -> str:
    return text.removeprefix(BOM).replace("\r\n", "\n").replace("\r", "\n")


class EditorFiles:
    """A workspace's files with the editor's changes. Tools read and apply at once, between `fetch` and `flush`."""

    def __init__(self, root: Path, read: Read | None, write: Write | None) -> None:
        self._root = root
        self._read_text = read
        self._write_text = write
        self._disk = DiskFiles()
        self._buffers: dict[Path, bytes] = {}
        self._pending: list[FileChange] = []
        self._done_on_disk: list[FileChange] = []

    # ------------------------------------------------------------------------------------------- tools' side
    def read(self, path: Path) -> bytes | None:
        """The bytes that were fetched, else those on disk."""
        return self._buffers[path] if path in self._buffers else self._disk.read(path)

    def apply(self, changes: tuple[FileChange, ...]) -> None:
        """Make the changes that the editor cannot make; keep the others for `flush`. All or none so far."""
        through = [change for change in changes if self._is_for_editor(change)]
        for change in through:
            if self.read(change.path) != change.before:
                raise ToolError(f"{change.path} was changed by someone else meanwhile; read it again")
        rest = tuple(change for change in changes if change not in through)
        for change in rest:
            self._refuse_unsaved(change)
        self._disk.apply(rest)
        self._pending += through
        self._done_on_disk += rest

    def _is_for_editor(self, change: FileChange) -> bool:
        if self._write_text is None or change.after is None or self._root not in change.path.parents:
            return False
        return _is_text(change.after) and (change.before is None or _is_text(change.before))

    def _refuse_unsaved(self, change: FileChange) -> None:
        if change.path in self._buffers and self._disk.read(change.path) != change.before:
            raise ToolError(f"{change.path} has unsaved changes in the editor; ask the user to save it first")

    # ------------------------------------------------------------------------------------------- editor's side
    async def fetch(self, paths: Iterable[Path]) -> None:
        """Get what the editor holds of these files (resolved paths)."""
        for path in paths:
            self._buffers.pop(path, None)
            if self._read_text is None or self._root not in path.parents:
                continue
            disk = _text_on_disk(path)
            if disk is None:
                continue
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    content = await self._read_text(path)
            except (*ASK_FAILED, TimeoutError) as error:
                log.warning("the editor did not give %s, it is read from disk: %s", path, error)
                continue
            self._buffers[path] = as_bytes(content, disk)

    def unsaved(self, path: Path) -> str | None:
        """The text of a fetched file that is not on disk like this; None when it is."""
        data = self._buffers.get(path)
        return None if data is None or data == self._disk.read(path) else data.decode("utf-8", "replace")

    async def flush(self) -> None:
        """Hand the changes that wait to the editor. Raises ToolError, with everything put back, when it refuses one."""
        pending, self._pending = self._pending, []
        on_disk, self._done_on_disk = self._done_on_disk, []
        made: list[FileChange] = []
        for change in pending:
            try:
                await self._write(change.path, change.after or b"")
            except (*ASK_FAILED, OSError) as error:
                await self._put_back(made, on_disk)
                raise ToolError(f"the editor did not write {change.path}: {error}; nothing was changed") from error
            try:
                _require_no_link(change.path)
            except OSError as error:
                await self._put_back(made, on_disk)
                where = _end_of(change.path)
                raise ToolError(f"{error} while the editor wrote; it may have written to {where}") from error
            made.append(change)

    def drop(self) -> None:
        """Forget changes of a call that did not get to its end."""
        self._pending, self._done_on_disk = [], []

    async def _write(self, path: Path, data: bytes) -> None:
        assert self._write_text is not None
        _require_no_link(path, make_folders=True)
        await self._write_text(path, data.decode("utf-8"))
        self._buffers[path] = data

    async def _put_back(self, made: list[FileChange], on_disk: list[FileChange]) -> None:
        for change in made:
            try:
                if change.before is None:
                    self._buffers.pop(change.path, None)
                    self._disk.apply((FileChange(change.path, self._disk.read(change.path), None),))
                else:
                    await self._write(change.path, change.before)
            except (*ASK_FAILED, OSError, ToolError) as error:
                log.warning("%s could not be put back: %s", change.path, error)
        self._disk.apply(tuple(replace(c, before=c.after, after=c.before, like=None) for c in on_disk))


def _end_of(path: Path) -> str:
    return os.path.realpath(path)


def _require_no_link(path: Path, *, make_folders: bool = False) -> None:
    """Raise OSError when a link is on a path that was resolved."""
    with open_folder(path.parent, (lambda _: None) if make_folders else None) as folder:
        if folder.is_link(path.name):
            raise OSError(errno.ELOOP, "a link came to be there", os.fspath(path))


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(data) <= MAX_BUFFER_BYTES


def _text_on_disk(path: Path) -> bytes | None:
    """The bytes of a regular file of text; None for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BUFFER_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return data if _is_text(data) else None


class EditorFileTool(StandIn):
    """A tool that works on the editor's files: fetches before it runs, and hands over its changes after it.

    A preview is against what was fetched last.
    """

    def __init__(self, own: Tool, files: EditorFiles) -> None:
        super().__init__(own)
        self._files = files

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Do it. A path that leads elsewhere after the editor was asked is read from disk, where the tool guards it."""
        workspace: Workspace = context.workspace
        await self._files.fetch(resolved(self._own, arguments, workspace))
        try:
            result = await self._own.run(context, arguments)
        except BaseException:
            self._files.drop()
            raise
        try:
            await self._files.flush()
        except ToolError as error:
            for change in result.changes:
                workspace.forget(change.path)
            return ToolResult(str(error), is_error=True)
        return result


def resolved(tool: Tool, arguments: Mapping[str, Any], workspace: Workspace) -> list[Path]:
    """Where the paths of a call lead; those that lead nowhere are left to the tool."""
    found: list[Path] = []
    for text in tool.paths(arguments):
        try:
            found.append(workspace.resolve(text).path)
        except ToolError:
            continue
    return found

"""Puts the editor's files and terminals in the place of our own, as far as it offers them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pointcode_local.acp.editor import Editor
from pointcode_local.acp.files import EditorFiles, EditorFileTool, resolved
from pointcode_local.acp.terminal import TerminalShell
from pointcode_local.acp.updates import Translator
from pointcode_local.tools.base import Tool, ToolError
from pointcode_local.tools.workspace import Workspace

FILE_TOOLS = frozenset({"read", "outline", "write", "edit", "patch", "replace_symbol"})


class EditorAdapter:
    """The tools of one session (a `frontend.ToolAdapter`); `session_id` is known when a tool runs."""

    def __init__(self, editor: Editor, translator: Translator) -> None:
        self._editor = editor
        self._translator = translator
        self._files: EditorFiles | None = None
        self._workspace: Workspace | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.session_id = ""

    def adapt(self, tools: Mapping[str, Any], workspace: Any) -> Mapping[str, Any]:
        """File tools over the editor's files, the shell in its terminals."""
        adapted: dict[str, Any] = dict(tools)
        if self._editor.reads_files or self._editor.writes_files:
            self._workspace = workspace
            self._files = workspace.files = self._editor_files(workspace.root)
            adapted |= {n: EditorFileTool(t, self._files) for n, t in tools.items() if n in FILE_TOOLS}
        if self._editor.has_terminals and "shell" in tools:
            adapted["shell"] = TerminalShell(tools["shell"], self._editor, lambda: self.session_id, self._shows)
        return adapted

    async def prepare(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Fetch the files of a call that will change them, for its preview and its checkpoint."""
        changes_files = tool.name in FILE_TOOLS and tool.access == "write"
        if self._files is not None and self._workspace is not None and changes_files:
            await self._files.fetch(resolved(tool, arguments, self._workspace))

    async def unsaved(self, path: Path) -> str | None:
        """What the editor holds of a file, when it is not what is on disk."""
        if self._files is None or self._workspace is None:
            return None
        try:
            resolved_path = self._workspace.resolve(str(path)).path
        except ToolError:
            return None
        await self._files.fetch([resolved_path])
        return self._files.unsaved(resolved_path)

    def _editor_files(self, root: Path) -> EditorFiles:
        client = self._editor.client

        async def read(path: Path) -> str:
            return (await client.read_text_file(self.session_id, str(path))).content

        async def write(path: Path, content: str) -> None:
            await client.write_text_file(self.session_id, str(path), content)

        return EditorFiles(
            root, read if self._editor.reads_files else None, write if self._editor.writes_files else None
        )

    def _shows(self, call_id: str, terminal_id: str) -> None:
        update = self._translator.shown_in(call_id, terminal_id)
        task = asyncio.create_task(self._editor.update(self.session_id, update), name=f"terminal of {call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

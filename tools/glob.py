"""The `glob` tool: files by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .base import Access, BaseTool, ToolContext, ToolError, ToolResult, object_schema
from .filetext import show_name
from .globbing import compile_glob, fixed_part
from .walk import files
from .workspace import Place, Workspace

MAX_SHOWN = 500


class GlobTool(BaseTool):
    """Lists files whose path matches, sorted by path."""

    name = "glob"
    access: Access = "read"
    description = (
        "Find files by name pattern, e.g. `**/*.py`, `src/*.{ts,tsx}`. A pattern without `/` matches at any depth. "
        "Hidden files are found; files ignored by .gitignore are not."
    )
    parameters = object_schema(
        {"pattern": {"type": "string"}, "path": {"type": "string", "default": "."}}, ("pattern",)
    )

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`glob PATTERN`, with the folder when it is not the workspace."""
        path = arguments.get("path", ".")
        return f"glob {arguments.get('pattern', '')}" + (f" in {path}" if path != "." else "")

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The searched folder, with the pattern's own leading folders."""
        pattern, path = str(arguments.get("pattern", "")), str(arguments.get("path", "."))
        return tuple(dict.fromkeys((path, _joined(path, fixed_part(pattern)[0]), *_literal_candidates(path, pattern))))

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        return await asyncio.to_thread(_search, context.workspace, arguments["pattern"], arguments.get("path", "."))


def _literal_candidates(path: str, pattern: str) -> tuple[str, ...]:
    return (_joined(path, pattern),) if ".." in pattern.split("/") or pattern.startswith(("/", "~")) else ()


def _joined(path: str, more: str) -> str:
    if not more:
        return path
    return more if path == "." or more.startswith(("/", "~/")) else f"{path.rstrip('/')}/{more}"


def _search(workspace: Workspace, pattern: str, path: str) -> ToolResult:
    if not pattern:
        raise ToolError("pattern is empty; `**` finds every file")
    if (literal := _literal(workspace, _joined(path, pattern))) is not None:
        return ToolResult(literal + "\n")
    base_text, rest = fixed_part(pattern)
    base = workspace.resolve(_joined(path, base_text))
    require_folder(base)
    anchored = compile_glob(rest if not base_text or "/" in rest else f"/{rest}")
    names: list[str] = []
    total = 0
    for entry in files(base.path, workspace.root):
        if anchored.fullmatch(entry.name):
            total += 1
            if total <= MAX_SHOWN:
                names.append(show_name(shown_path(base, entry.name)))
    if not names:
        return ToolResult(f"No files match {pattern} in {path}.")
    notice = f"[showing {MAX_SHOWN} of {total:,} files; narrow the pattern]\n" if total > MAX_SHOWN else ""
    return ToolResult("\n".join(names) + "\n" + notice)


def _literal(workspace: Workspace, text: str) -> str | None:
    """A file that has exactly this name, wildcards and all."""
    if not any(char in text for char in "[]{}()*?"):
        return None
    place = workspace.resolve(text)
    return show_name(place.name) if place.path.is_file() and ".git" not in place.path.parts else None


def require_folder(place: Place) -> None:
    """Raise ToolError unless the place is a folder."""
    if not place.path.exists():
        raise ToolError(f"{place.text} does not exist")
    if not place.path.is_dir():
        raise ToolError(f"{place.text} is not a folder")


def shown_path(base: Place, name: str) -> str:
    """How an entry below `base` is shown: relative to the workspace when inside it."""
    return name if base.name == "." else str(Path(base.name) / name)

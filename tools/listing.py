"""The `list` tool: a folder as a tree."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from .base import Access, BaseTool, ToolContext, ToolError, ToolResult, object_schema
from .filetext import show_name
from .glob import require_folder
from .walk import Entry, walk
from .workspace import Workspace

MAX_ENTRIES = 500
MAX_PER_FOLDER = 100


class ListTool(BaseTool):
    """Shows what is in a folder, `depth` levels deep."""

    name = "list"
    access: Access = "read"
    description = "List a folder as a tree, `depth` levels deep. Ignored folders are named but not opened."
    parameters = object_schema({"path": {"type": "string", "default": "."}, "depth": {"type": "integer", "default": 2}})

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The folder."""
        return (str(arguments.get("path", ".")),)

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        depth = arguments.get("depth", 2)
        if depth < 1:
            raise ToolError("depth must be at least 1")
        return await asyncio.to_thread(_list, context.workspace, arguments.get("path", "."), depth)


def _list(workspace: Workspace, path: str, depth: int) -> ToolResult:
    place = workspace.resolve(path)
    require_folder(place)
    os.scandir(place.path).close()  # a folder that cannot be read is an error, not an empty one
    lines: list[str] = []
    left_out: set[str] = set()
    counts: dict[str, int] = {}
    hidden = 0
    for entry in walk(place.path, workspace.root, max_depth=depth, with_ignored=True):
        parent = entry.name.rpartition("/")[0]
        counts[parent] = counts.get(parent, 0) + 1
        if counts[parent] > MAX_PER_FOLDER or len(lines) >= MAX_ENTRIES or parent in left_out:
            hidden += 1
            if entry.is_folder:
                left_out.add(entry.name)
            continue
        lines.append(_line(entry))
    if not lines:
        return ToolResult(f"{path} is empty.")
    notice = f"[{hidden:,} more entries not shown; list a folder inside, or use glob]\n" if hidden else ""
    return ToolResult("\n".join(lines) + "\n" + notice)


def _line(entry: Entry) -> str:
    level, name = entry.name.count("/"), entry.name.rpartition("/")[2]
    text = "  " * level + show_name(name) + ("/" if entry.is_folder else "")
    if entry.is_link:
        text += f" -> {show_name(_target(entry))}"
    return text + (" (ignored)" if entry.ignored else "")


def _target(entry: Entry) -> str:
    try:
        return str(entry.path.readlink())
    except OSError:
        return "?"

"""A workspace in a temporary folder and the real tools on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pointcode_local.tools.arguments import find_tool, validate
from pointcode_local.tools.base import ToolContext, ToolResult
from pointcode_local.tools.registry import ToolBox, build_tools
from pointcode_local.tools.workspace import Workspace


class Bench:
    """Calls tools by name as the agent does: arguments are validated first."""

    def __init__(self, root: Path, environment: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.workspace = Workspace(root)
        self.box: ToolBox = build_tools(environment=environment)
        self.heard: list[str] = []
        self.context = ToolContext(self.workspace, on_output=self.heard.append)

    def put(self, name: str, data: bytes | str, mode: int | None = None) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        if mode is not None:
            path.chmod(mode)
        return path

    def get(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    async def acall(self, tool: str, /, **arguments: Any) -> ToolResult:
        found = find_tool(self.box.tools, tool)
        assert not isinstance(found, str), found
        checked = validate(found, arguments)
        assert not isinstance(checked, str), checked
        return await found.run(self.context, checked)

    def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        return asyncio.run(self.acall(tool, **arguments))

    def ok(self, tool: str, /, **arguments: Any) -> str:
        result = self.call(tool, **arguments)
        assert not result.is_error, result.text
        return result.text

    def refused(self, tool: str, /, **arguments: Any) -> str:
        result = self.call(tool, **arguments)
        assert result.is_error, result.text
        return result.text

    def edit(self, path: str, *pairs: tuple[str, str], **extra: Any) -> ToolResult:
        return self.call("edit", path=path, edits=[{"old": old, "new": new, **extra} for old, new in pairs])


def envelope(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"]) + "\n"


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}

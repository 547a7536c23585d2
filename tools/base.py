"""What a tool is: a name, a JSON schema, and an async `run` over a workspace.

A tool returns a `ToolResult` for everything a model can cause (bad path, no match, failing command); it raises only on
bugs and on cancellation. Adding one: a file here, its test, one line in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Access = Literal["read", "write", "execute", "none"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """Bytes of one file before and after; None: did not exist, or is gone. `path` is absolute, links resolved."""

    path: Path
    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told, and what was changed."""

    text: str
    is_error: bool = False
    changes: tuple[FileChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running call may use: the workspace, and a callback for live output (already cleaned)."""

    workspace: Any  # tools.workspace.Workspace
    call_id: str = ""
    on_output: Callable[[str], None] = field(default=lambda text: None)


class Tool(Protocol):
    """One tool. `access` and `paths` are what permission decisions rest on; `preview` must not change anything."""

    name: str
    description: str
    parameters: Mapping[str, object]
    access: Access

    def title(self, arguments: Mapping[str, Any]) -> str:
        """One line for people, e.g. `edit src/app.py`."""
        ...

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The paths this call touches, as written by the model."""
        ...

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """What the call would change, for the permission dialog; () when unknown or nothing."""
        ...

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Do it. Cancelling the task stops everything the call started within 2 s."""
        ...

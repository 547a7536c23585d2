"""What a tool is: a name, a JSON schema, and an async `run` over a workspace.

A tool returns a `ToolResult` for everything a model can cause (bad path, no match, failing command); it raises only on
bugs and on cancellation. Adding one: a file here, its test, one line in `registry.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Access = Literal["read", "write", "execute", "none"]
NO_OUTPUT = "[no output]"  # of a command or a server: nobody can mistake it for what was printed


@dataclass(frozen=True, slots=True)
class FileChange:
    """Bytes of one file before and after; None: did not exist, or is gone. `path` is absolute, links resolved.

    `like` is the file whose mode a new one takes (the source of a move).
    """

    path: Path
    before: bytes | None
    after: bytes | None
    like: Path | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told, and what was changed."""

    text: str
    is_error: bool = False
    changes: tuple[FileChange, ...] = ()


class ToolError(Exception):
    """A failure the model can cause; its text is the error result, and says the cure."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running call may use: the workspace, and callbacks.

    `on_output` gets live output (already cleaned). `ask` puts a question with options to the person and waits for the
    answer; None when nobody can be asked (scripted runs). `on_todo` gets the whole plan as (text, status) pairs.
    `sandbox` is the tools.sandbox.SandboxPolicy that commands run under; None: no sandbox. `reveal`: the person
    was asked about this very call, in words that name the guarded files, and agreed: its output is not blanked.
    `judged`: where the call's paths led, links resolved, when it was judged; None: not known.
    """

    workspace: Any  # tools.workspace.Workspace
    call_id: str = ""
    on_output: Callable[[str], None] = field(default=lambda text: None)
    ask: Callable[[str, tuple[str, ...]], Awaitable[str]] | None = None
    on_todo: Callable[[tuple[tuple[str, str], ...]], None] = field(default=lambda items: None)
    sandbox: Any = None  # tools.sandbox.SandboxPolicy | None
    reveal: bool = False
    judged: frozenset[Path] | None = None

    def place(self, path: str) -> Any:
        """Where a path of the call leads (tools.workspace.Place); raises ToolError when that was not judged."""
        place = self.workspace.resolve(path)
        if self.judged is not None and place.path not in self.judged:
            raise ToolError(f"{path} leads elsewhere now than when the call was judged ({place.path}); call again")
        return place


class Tool(Protocol):
    """One tool. `access` and `paths` are what permission decisions rest on; `preview` must not change anything."""

    @property
    def name(self) -> str:
        """Its name for the model."""
        ...

    @property
    def description(self) -> str:
        """What the model reads of it."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """JSON schema of the arguments."""
        ...

    @property
    def access(self) -> Access:
        """What it does to files: decides whether a call is asked about."""
        ...

    def title(self, arguments: Mapping[str, Any]) -> str:
        """One line for people, e.g. `edit src/app.py`."""
        ...

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The paths this call touches, as written by the model."""
        ...

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """What the call would change, for the permission dialog; () when unknown or nothing. Raises ToolError when
        the call would fail with it."""
        ...

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Do it. Cancelling the task stops everything the call started within 2 s."""
        ...


class BaseTool:
    """Common ground of the built-in tools: subclasses give `execute`; ToolError and OSError become error results."""

    name: str = ""
    description: str = ""
    parameters: Mapping[str, object] = {}
    access: Access = "none"

    def title(self, arguments: Mapping[str, Any]) -> str:
        """The tool's name and the paths it touches."""
        return " ".join([self.name, *self.paths(arguments)])

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The `path` argument; the workspace itself when it may be left out and is."""
        path = arguments.get("path")
        return (path,) if isinstance(path, str) else ()

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """Nothing, unless a tool knows better."""
        return ()

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Run `execute`; expected failures come back as error results."""
        try:
            return await self.execute(context, arguments)
        except ToolError as error:
            return ToolResult(str(error), is_error=True)
        except OSError as error:
            return ToolResult(describe_os_error(error), is_error=True)

    @abstractmethod
    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Do the work; raise ToolError for what the model did wrong."""
        raise NotImplementedError


def describe_os_error(error: OSError) -> str:
    """The system's reason with the file's name, without Python's wording."""
    reason = error.strerror or str(error)
    return f"{reason}: {error.filename}" if error.filename else reason


def object_schema(properties: Mapping[str, object], required: tuple[str, ...] = ()) -> dict[str, object]:
    """A JSON schema of an object whose parameters are `properties`."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}

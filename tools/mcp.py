"""Tools of MCP servers: programs on stdio, which run in the sandbox, and servers over HTTP.

Needs the package `mcp`, an optional extra that is imported with the first server. A server's tools are named
`mcp__SERVER__TOOL`, and each call is judged by the permission rules like any command: what a server says of its tools
(that they only read, for example) is not believed. Results are text and nothing more. A server that has ended is an
error result; the next call starts it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .base import NO_OUTPUT, Access, BaseTool, Tool, ToolContext, ToolError, ToolResult, object_schema
from .environment import command_environment
from .mcp_schema import short, simplified
from .mcp_server import McpServer
from .reaper import Reaper
from .reaper_exec import MARK
from .redact import Redactor
from .sandbox import default_policy, wrapped
from .workspace import Workspace

if TYPE_CHECKING:
    from mcp import Client

    from .mcp_stdio import StdioServer

START_S = 20.0  # for a server to start and name its tools
STOP_S = 6.0
MAX_TOOLS = 64  # of one server
MAX_RESULT_CHARS = 200_000
_LAST_BYTES = 4096  # of what a server wrote on stderr, looked at for why it ended
# What the client says itself of an end (a server may use the codes too), the second of one over HTTP that forgot us.
ENDS = ((-32000, "Connection closed"), (-32600, "Session terminated"))
MISSING = "the package mcp is not installed: pip install 'pointcode-local[mcp]'"


class Connection:
    """One server. A task of its own opens and closes it; calls may come from any task of the same loop."""

    def __init__(self, server: McpServer, workspace: Workspace) -> None:
        self.server = server
        self._workspace = workspace
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._opening = asyncio.Lock()
        self._redactor = Redactor({**os.environ, **dict(server.env)})
        self._program: StdioServer | None = None  # the one that runs, or ran last
        self.state = "not started"

    async def tools(self) -> list[Tool]:
        """Start the server and take its tools, in its order; raises ToolError saying why there are none."""
        client = await self._opened()
        with _as_tool_error(self.server.name):
            async with asyncio.timeout(START_S):
                listed = await _all_tools(client)
        found: dict[str, Tool] = {}
        for tool in listed:
            made = McpTool(self, tool.name, short(tool.description or tool.title), simplified(tool.input_schema))
            found.setdefault(made.name, cast(Tool, made))
        self.state = f"running, {len(found)} tools"
        return list(found.values())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool; raises ToolError when the server does not answer."""
        client = await self._opened()
        try:
            with _as_tool_error(self.server.name):
                async with asyncio.timeout(self.server.timeout_s):
                    result = await client.call_tool(tool, dict(arguments))
        except ToolError as error:
            if _is_end(error.__cause__) and self._client is client:  # no other call has started it again
                await self.close()  # the next call does
                if fault := self._fault():
                    raise self._failed(fault) from error
            raise
        text = as_text(cast(Sequence[Any], result.content), result.structured_content)
        await asyncio.to_thread(self._redactor.refresh, self._workspace)
        text = self._redactor.output(self._workspace)(text)
        return ToolResult(text, is_error=bool(result.is_error))

    async def close(self) -> None:
        """End the server; it is killed when it does not end by itself."""
        task, self._task = self._task, None
        self._stop.set()
        if task is not None:
            await asyncio.wait({task}, timeout=STOP_S)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _opened(self) -> Client:
        async with self._opening:
            return await self._open()

    async def _open(self) -> Client:
        if self._client is not None and self._task is not None and not self._task.done():
            return self._client
        await self.close()
        self._stop = asyncio.Event()
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(opened, self._stop), name=f"mcp {self.server.name}")
        try:
            async with asyncio.timeout(START_S):
                client = await asyncio.shield(opened)
        except TimeoutError as error:
            await self.close()
            raise self._failed(f"gave no answer within {START_S:.0f} s") from error
        except _Ended as error:
            raise self._failed(str(error)) from error
        self._client = client
        return client

    def _fault(self) -> str:
        """What the program did that ended the connection; "" for an end of another kind."""
        return self._program.fault if self._program is not None else ""

    async def _last_words(self) -> str:
        """The last line of what the program wrote on stderr, blanked, behind a semicolon; "" when it wrote nothing."""
        try:
            written = _end_of(self._log) if self._program is not None else b""
        except OSError:
            return ""
        lines = written.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if not last:
            return ""
        await asyncio.to_thread(self._redactor.refresh, self._workspace)
        return f"; it wrote: {short(self._redactor.output(self._workspace)(last), 200)}"

    @property
    def _log(self) -> Path:
        return self._workspace.log_folder / f"mcp-{self.server.name}.log"

    def _failed(self, reason: str) -> ToolError:
        self.state = reason
        return ToolError(f"the MCP server {self.server.name!r} {reason}")

    async def _run(self, opened: asyncio.Future[Client], stop: asyncio.Event) -> None:
        """Hold the connection open until `stop`."""
        try:
            async with self._connected() as client:
                opened.set_result(client)
                await stop.wait()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - part of the tool runner: a server's package may raise anything
            reason = self._fault() or _reason(error) + await self._last_words()
            self.state = f"failed: {reason}"
            if not opened.done():
                opened.set_exception(_Ended(f"could not be started: {reason}"))
        finally:
            self._client = None
            if not opened.done():
                opened.set_exception(_Ended("was stopped"))
            opened.exception()  # somebody has seen it

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Client]:
        try:
            from mcp import Client
        except ImportError as error:
            raise _Ended(MISSING) from error
        logging.getLogger("mcp").setLevel(logging.CRITICAL)  # it logs what the server writes wrongly
        async with AsyncExitStack() as stack:
            transport = await self._http(stack) if self.server.url else self._stdio(stack)
            yield await stack.enter_async_context(Client(transport, mode="legacy", client_info=_ourselves()))

    async def _http(self, stack: AsyncExitStack) -> Any:
        from mcp.client.streamable_http import streamable_http_client

        from .mcp_http import limited_client

        http = await stack.enter_async_context(limited_client(dict(self.server.headers)))
        return streamable_http_client(self.server.url, http_client=http)

    def _stdio(self, stack: AsyncExitStack) -> Any:
        from mcp.client.stdio import get_default_environment

        from .mcp_stdio import StdioServer

        root = self._workspace.root
        path = command_environment(os.environ, root).get("PATH", os.defpath)
        program = shutil.which(self.server.command, path=path)
        if program is None:
            raise _Ended(f"needs the program {self.server.command!r}, which is not on PATH")
        more = [Path(folder).expanduser().absolute() for folder in self.server.writable]
        policy = default_policy(root, network=self.server.network, more=more)
        line = wrapped([program, *self.server.args], policy)
        errors = stack.enter_context(self._log.open("w", encoding="utf-8"))
        reaper = stack.enter_context(Reaper())
        reaper.start()
        environment = get_default_environment() | {"PATH": path, **dict(self.server.env), MARK: f"{reaper.mark}.mcp"}
        self._program = StdioServer(line, root, environment, errors)
        return self._program.streams()


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
        return file.read(_LAST_BYTES)


class _Ended(Exception):
    """A server that cannot be used; the text says why."""


class _as_tool_error:
    """Turns whatever the client raises for a server that fails into a ToolError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise ToolError(f"the MCP server {self._name!r} took too long to answer") from error
        if isinstance(error, Exception):
            raise ToolError(f"the MCP server {self._name!r} failed: {_reason(error)}") from error


async def _all_tools(client: Client) -> list[Any]:
    """The first MAX_TOOLS that a server names, page by page."""
    page = await client.list_tools()
    found = list[Any](page.tools)
    while page.next_cursor and len(found) < MAX_TOOLS:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found[:MAX_TOOLS]


def _is_end(error: BaseException | None) -> bool:
    """Has the connection ended? An error with another code or text, or an answer that does not fit the protocol, comes
    from a server that goes on."""
    if isinstance(error, TimeoutError | ValueError):
        return False
    return not hasattr(error, "code") or (getattr(error, "code", 0), getattr(error, "message", "")) in ENDS


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: the client's task groups wrap what went wrong."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return short(str(error) or type(error).__name__)


def _ourselves() -> Any:
    from mcp.types import Implementation

    return Implementation(name="pointcode", version="1")


class McpTool(BaseTool):
    """One tool of a server."""

    access: Access = "execute"

    def __init__(self, connection: Connection, remote: str, description: str, parameters: dict[str, object]) -> None:
        self._connection = connection
        self._remote = remote
        self.name = tool_name(connection.server.name, remote)
        self.description = description or f"The tool {remote} of the MCP server {connection.server.name}."
        self.parameters = parameters or object_schema({})

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`SERVER: TOOL {arguments}`."""
        written = json.dumps(dict(arguments), ensure_ascii=False, default=str)
        return f"{self._connection.server.name}: {short(self._remote)} {short(written, 120)}"

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """None: a `path` of a foreign tool need not be one of the workspace."""
        return ()

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._connection.call(self._remote, arguments)


def tool_name(server: str, tool: str) -> str:
    """`mcp__SERVER__TOOL` with the characters and the length that models and rules accept."""
    name = f"mcp__{server}__{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"
    if len(name) <= 64 and re.sub(r"[^A-Za-z0-9_-]", "_", tool) == tool:
        return name
    return f"{name[:55]}_{hashlib.sha256(tool.encode('utf-8', 'replace')).hexdigest()[:8]}"


def as_text(content: Sequence[Any], structured: object = None) -> str:
    """A result's parts as text for the model: text as it is, anything else named."""
    parts = [_part(block) for block in content]
    if not any(parts) and structured is not None:
        parts = [json.dumps(structured, ensure_ascii=False, default=str)]
    text = "\n".join(part for part in parts if part)
    shown = text[:MAX_RESULT_CHARS]
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in shown)
    if len(text) <= MAX_RESULT_CHARS:
        return clean or NO_OUTPUT
    return f"{clean}\n[cut after {MAX_RESULT_CHARS:,} of {len(text):,} characters]"


def _part(block: Any) -> str:
    match getattr(block, "type", ""):
        case "text":
            return str(block.text).replace("\r\n", "\n")
        case "resource":
            text = getattr(block.resource, "text", None)
            return str(text) if text is not None else f"[resource {short(block.resource.uri)}: not text]"
        case "resource_link":
            return f"[resource {short(block.uri)}]"
        case kind:
            return f"[{short(kind) or 'a part'} {short(getattr(block, 'mime_type', ''))}: this model reads text only]"


async def open_servers(servers: Sequence[McpServer], workspace: Workspace) -> tuple[list[Connection], list[Tool]]:
    """Start all servers side by side; their tools in the order of the settings. A server that fails has none, and
    its connection's `state` says why."""
    connections = [Connection(server, workspace) for server in servers]

    async def tools_of(connection: Connection) -> list[Tool]:
        try:
            return await connection.tools()
        except ToolError as error:
            connection.state = str(error)
            return []

    lists = await asyncio.gather(*map(tools_of, connections))
    return connections, [tool for tools in lists for tool in tools]

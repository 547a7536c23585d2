"""Tools of MCP servers: what the model sees of them, and what happens when a server misbehaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools import mcp_stdio
from pointcode_local.tools.arguments import validate
from pointcode_local.tools.base import Tool, ToolContext, ToolResult
from pointcode_local.tools.mcp import Connection, open_servers, tool_name
from pointcode_local.tools.mcp_schema import simplified
from pointcode_local.tools.mcp_server import McpServer
from pointcode_local.tools.sandbox import sandbox_status
from pointcode_local.tools.workspace import Workspace
from tests.processes import ends

STUB = Path(__file__).with_name("mcp_stub.py")
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the extra mcp is not installed")


def stub(behaviour: str = "", *more: str, **fields: Any) -> McpServer:
    return McpServer("stub", command=sys.executable, args=("-I", str(STUB), behaviour, *more), **fields)


class Servers:
    """Open servers on a workspace."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder)
        self.context = ToolContext(self.workspace)
        self.connections: list[Connection] = []
        self.tools: dict[str, Tool] = {}

    async def open(self, *servers: McpServer) -> Servers:
        self.connections, tools = await open_servers(servers, self.workspace)
        self.tools = {tool.name: tool for tool in tools}
        return self

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        return await self.tools[name].run(self.context, arguments)

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self.connections:
            await connection.close()
        self.workspace.close()


async def test_a_servers_tools_have_prefixed_names_and_plain_schemas(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub("noise"))
        names = list(servers.tools)
        assert names[0] == "mcp__stub__echo" and names[1].startswith("mcp__stub__odd_name___") and len(names) == 3
        echo = servers.tools["mcp__stub__echo"]
        assert echo.access == "execute", "what a server says of its tools is not believed"
        assert echo.description.isprintable() and len(echo.description) <= 400
        assert echo.parameters["properties"] == {
            "text": {"type": "string"}, "n": {"type": "integer"}, "any": {"type": "object"}
        }  # fmt: skip
        checked = validate(echo, {"text": "a", "n": "3", "any": {"k": [1]}})
        assert isinstance(checked, dict)
        result = await echo.run(servers.context, checked)
        assert json.loads(result.text) == {"text": "a", "n": 3, "any": {"k": [1]}}
        assert servers.connections[0].state == "running, 3 tools"


async def test_a_result_is_clean_text_and_other_parts_are_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("API_KEY=sk1234567890abcdef\n")
    async with Servers(tmp_path) as servers:
        await servers.open(stub("parts"))
        assert (await servers.call("mcp__stub__do")).text == (
            "one\n\ufffd[31mtwo\ufffd key: [secret]\n[image image/png: this model reads text only]\ninner\n"
            "[resource file:///y]"
        )


async def test_an_error_of_the_tool_is_an_error_result(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub("refuse"))
        assert await servers.call("mcp__stub__do") == ToolResult("no", is_error=True)


async def test_a_server_that_dies_is_an_error_result_and_is_started_again(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub("die"))
        died = await servers.call("mcp__stub__do")
        assert died.is_error and "the MCP server 'stub' failed" in died.text
        again = await servers.call("mcp__stub__echo", text="back")
        assert "back" in again.text and not again.is_error


async def test_tools_that_come_in_pages_are_all_taken(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub("pages"))
        assert len(servers.tools) == 3
        assert "x" in (await servers.call("mcp__stub__echo", text="x")).text


@pytest.mark.parametrize(("behaviour", "told"), [("unfit", "valid list"), ("error", "busy")])
async def test_a_wrong_answer_fails_its_call_and_the_server_goes_on(tmp_path: Path, behaviour: str, told: str) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub(behaviour))
        running = servers.connections[0]._task
        wrong, right = await asyncio.gather(
            servers.call("mcp__stub__do"), servers.call("mcp__stub__echo", text="still here")
        )
        assert wrong.is_error and told in wrong.text
        assert not right.is_error and "still here" in right.text
        assert servers.connections[0]._task is running


async def test_calls_at_the_same_time_start_a_dead_server_once(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub("die"))
        died = await asyncio.gather(*(servers.call("mcp__stub__do") for _ in range(3)))
        assert all(result.is_error for result in died)
        again = await asyncio.gather(*(servers.call("mcp__stub__echo", text=f"back {n}") for n in range(3)))
        assert [f"back {n}" in result.text for n, result in enumerate(again)] == [True] * 3


@pytest.mark.parametrize("command", ["no-such-program-anywhere", sys.executable])
async def test_a_server_that_cannot_start_says_why_and_the_others_work(tmp_path: Path, command: str) -> None:
    broken = McpServer("broken", command=command, args=("-c", "raise SystemExit(5)"))
    async with Servers(tmp_path) as servers:
        await servers.open(broken, stub())
        assert "mcp__stub__echo" in servers.tools and not any("broken" in name for name in servers.tools)
        assert "the MCP server 'broken'" in servers.connections[0].state


async def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    program = "import sys; sys.exit('Traceback\\n  no folder docs\\n\\n')"
    async with Servers(tmp_path) as servers:
        await servers.open(McpServer("docs", command=sys.executable, args=("-I", "-c", program)))
        assert servers.connections[0].state.endswith("; it wrote: no folder docs")


async def test_a_secret_in_the_last_words_of_a_server_is_blanked(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit('bad key ' + os.environ['DOCS_API_KEY'])"
    key = (("DOCS_API_KEY", "abcd1234efgh5678"),)
    async with Servers(tmp_path) as servers:
        await servers.open(McpServer("docs", command=sys.executable, args=("-I", "-c", program), env=key))
        assert servers.connections[0].state.endswith("; it wrote: bad key [secret]")


async def test_a_call_that_takes_too_long_is_an_error_result(tmp_path: Path) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(stub("hang", timeout_s=0.2))
        result = await servers.call("mcp__stub__do")
        assert result.is_error and "took too long" in result.text


async def test_a_cancelled_call_is_given_up_at_once_and_closing_ends_the_server(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "called")
    async with Servers(tmp_path) as servers:
        await servers.open(stub("hang"))
        task = asyncio.create_task(servers.call("mcp__stub__do"))
        pid = int(await asyncio.to_thread((tmp_path / "called").read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ends(pid)


async def test_a_server_gets_its_own_environment_and_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTCODE_API_KEY", "leaked")
    async with Servers(tmp_path) as servers:
        await servers.open(stub(env=(("ADDED", "yes"),)))
        assert (await servers.call("mcp__stub__do")).text == "yes"


@pytest.fixture
def http_stub() -> Iterator[str]:
    """The same server over HTTP, with one JSON answer a request; wants a header."""
    done = subprocess.Popen([sys.executable, "-I", str(STUB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    sessions: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            line = self.rfile.read(int(self.headers["content-length"])).decode()
            if self.headers.get("authorization") != "Bearer t":
                return self.answer(401, b"")
            if json.loads(line)["method"] == "initialize":
                sessions.append(f"session-{len(sessions)}")
            elif self.headers.get("mcp-session-id") != sessions[-1]:
                return self.answer(404, b"")
            assert done.stdin is not None and done.stdout is not None
            done.stdin.write(json.dumps(json.loads(line)) + "\n")
            done.stdin.flush()
            return self.answer(200, done.stdout.readline().encode()) if "id" in json.loads(line) else self.answer(202)

        def do_GET(self) -> None:
            self.answer(405)

        do_DELETE = do_GET

        def do_PUT(self) -> None:
            sessions.append("none that anybody knows")
            self.answer(200)

        def answer(self, status: int, data: bytes = b"") -> None:
            self.send_response(status)
            if self.path.endswith("/packed"):
                data = gzip.compress(data)
                self.send_header("content-encoding", "gzip")
            self.send_header("content-type", "application/json")
            self.send_header("mcp-session-id", sessions[-1] if sessions else "")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    done.kill()


async def test_a_server_over_http_is_called_with_its_headers(tmp_path: Path, http_stub: str) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(
            McpServer("web", url=http_stub, headers=(("authorization", "Bearer t"),)),
            McpServer("shut", url=http_stub),
        )
        assert "web over" in (await servers.call("mcp__web__echo", text="web over HTTP")).text
        assert "'shut'" in servers.connections[1].state


async def test_a_server_over_http_that_forgot_the_session_is_asked_for_a_new_one(
    tmp_path: Path, http_stub: str
) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(McpServer("web", url=http_stub, headers=(("authorization", "Bearer t"),)))
        (await asyncio.to_thread(urllib.request.urlopen, urllib.request.Request(http_stub, method="PUT"))).close()
        assert "Session terminated" in (await servers.call("mcp__web__echo", text="lost")).text
        assert "back" in (await servers.call("mcp__web__echo", text="back")).text


async def test_an_answer_over_http_that_is_too_long_is_an_error_result(
    tmp_path: Path, http_stub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_stdio, "MAX_MESSAGE_BYTES", 1 << 20)
    async with Servers(tmp_path) as servers:
        await servers.open(McpServer("web", url=http_stub, headers=(("authorization", "Bearer t"),)))
        long = await servers.call("mcp__web__echo", text="x" * (2 << 20))
        assert long.is_error and "it has more than 1 MB" in long.text
        assert "back" in (await servers.call("mcp__web__echo", text="back")).text


async def test_a_compressed_answer_over_http_is_given_up(tmp_path: Path, http_stub: str) -> None:
    async with Servers(tmp_path) as servers:
        await servers.open(McpServer("web", url=f"{http_stub}/packed", headers=(("authorization", "Bearer t"),)))
        assert "it is compressed" in servers.connections[0].state


@pytest.mark.skipif(not sandbox_status().blocks_network, reason="no sandbox that blocks the network on this machine")
async def test_a_server_program_runs_in_the_sandbox(tmp_path: Path, http_stub: str) -> None:
    outside = Path("/var/tmp") / f"pointcode-mcp-{os.getpid()}"  # not a temporary folder for the sandbox
    outside.mkdir()
    try:
        for writable, told in (((), "stopped"), ((str(outside),), "done")):
            async with Servers(tmp_path) as servers:
                await servers.open(stub("escape", http_stub, str(outside / "new"), writable=writable))
                tried = json.loads((await servers.call("mcp__stub__do")).text)
            assert tried == [told, "done", "stopped"] and (outside / "new").exists() == (told == "done")
    finally:
        shutil.rmtree(outside)


def test_names_fit_what_models_accept() -> None:
    names = [tool_name("s" * 32, tool) for tool in ("a.b", "a/b", "x" * 200, "x" * 201, "ok")]
    assert len(set(names)) == 5 and all(len(name) <= 64 for name in names)


def test_references_are_put_in_place_and_endless_ones_end() -> None:
    schema = {
        "type": "object",
        "properties": {
            "tree": {"$ref": "#/$defs/node"},
            "far": {"$ref": "http://x/y"},
            "bad": True,
            "all": {"items": 1},
        },
        "required": ["tree", "gone", 3],
        "$defs": {"node": {"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}}}},
    }
    found = simplified(schema)
    assert "$ref" not in json.dumps(found) and found["required"] == ["tree"]
    properties = found["properties"]
    assert isinstance(properties, dict) and properties["far"] == {} and properties["bad"] == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "required", "enum", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_any_schema_becomes_an_object(schema: object) -> None:
    found = simplified(schema)
    assert found["type"] == "object" and isinstance(found["properties"], dict)

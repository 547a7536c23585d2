"""The editor's MCP servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from acp.schema import EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

from pointcode_local.acp.servers import as_settings
from pointcode_local.extensions import parse_servers
from tests.app.acp.kit import EditorKit, permitting
from tests.fakes import ScriptedModel, calls, say


async def test_tools_of_the_editors_servers_are_offered_and_asked_for(tmp_path: Path):
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    stub = Path(__file__).parents[2] / "tools/mcp_stub.py"
    server = {"name": "My docs!", "command": sys.executable, "args": [str(stub)], "env": [{"name": "A", "value": "b"}]}
    model = ScriptedModel(calls(("mcp__My-docs__echo", '{"text": "hi"}')), say("ok"))
    async with EditorKit(tmp_path, model, answers=permitting()) as editor:
        assert editor.hello["agentCapabilities"]["mcpCapabilities"] == {"http": True, "sse": False}
        session = await editor.new(mcpServers=[server])
        await editor.prompt(session)
        (asked,) = editor.asked
        assert asked["params"]["toolCall"]["kind"] == "other"
        assert "hi" in editor.call()["rawOutput"]["text"] and editor.call()["status"] == "completed"
        await editor.prompt(session, "/mcp")
        assert "My-docs: running" in editor.said()


async def test_servers_that_cannot_be_used_are_named_at_the_first_prompt(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("a"), say("b"))) as editor:
        servers = [
            {"type": "sse", "name": "old", "url": "http://127.0.0.1:9/", "headers": []},
            {"name": "gone", "command": "/no/such/program", "args": [], "env": []},
        ]
        session = await editor.new(mcpServers=servers)
        await editor.prompt(session)
        thoughts = "".join(u["content"]["text"] for u in editor.updates("agent_thought_chunk"))
        assert "not supported: old" in thoughts and thoughts.count("'gone'") <= 1
        n_thoughts = len(editor.updates("agent_thought_chunk"))
        await editor.prompt(session)
        assert len(editor.updates("agent_thought_chunk")) == n_thoughts


async def test_an_editor_that_takes_notices_gets_warnings_as_such(tmp_path: Path):
    notices = {"session": {"notices": {}}}
    async with EditorKit(tmp_path, ScriptedModel(say("a")), capabilities=notices) as editor:
        server = {"type": "sse", "name": "old", "url": "http://127.0.0.1:9/", "headers": []}
        await editor.prompt(await editor.new(mcpServers=[server]))
        (notice,) = editor.updates("notice")
        assert notice["severity"] == "warning" and "not supported: old" in notice["title"]


def test_servers_of_an_editor_become_settings():
    servers = [
        McpServerStdio(name="a b", command="x", args=["y"], env=[EnvVariable(name="K", value="v")]),
        HttpMcpServer(type="http", name="a b", url="https://e.org/mcp", headers=[HttpHeader(name="H", value="h")]),
        McpServerStdio(name="1", command="z", args=[], env=[]),
        SseMcpServer(type="sse", name="old", url="https://e.org", headers=[]),
    ]
    found, unsupported = as_settings(servers)
    assert found == {
        "a-b": {"command": "x", "args": ["y"], "env": {"K": "v"}, "network": True},
        "a-b-2": {"url": "https://e.org/mcp", "headers": {"H": "h"}},
        "s-1": {"command": "z", "args": [], "env": {}, "network": True},
    }
    assert unsupported == ["old"]
    parsed = parse_servers(found)
    assert [server.name for server in parsed] == ["a-b", "a-b-2", "s-1"]

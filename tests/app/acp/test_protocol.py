"""What an editor may send: the handshake, malformed lines, unknown methods, wrong parameters. It survives all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.acp.wire import BadMessage, encode, parse
from pointcode_local.tools.byte_lines import TOO_LONG
from tests.app.acp.kit import EditorKit
from tests.fakes import ScriptedModel, say


async def test_the_handshake_tells_version_and_capabilities(tmp_path: Path):
    async with EditorKit(tmp_path) as editor:
        assert editor.hello["protocolVersion"] == 1
        capabilities = editor.hello["agentCapabilities"]
        assert capabilities["loadSession"] is True
        assert capabilities["promptCapabilities"] == {"image": False, "audio": False, "embeddedContext": True}
        assert set(capabilities["sessionCapabilities"]) == {"list", "resume", "close", "delete"}
        assert editor.hello["agentInfo"]["name"] == "pointcode"
        for version in (0, 2, 65535):  # our latest, whatever the editor's is
            assert (await editor.ask("initialize", protocolVersion=version))["protocolVersion"] == 1


BAD_LINES: list[tuple[bytes, int, Any]] = [
    (b"garbage", -32700, None),
    (b'{"jsonrpc": "2.0", "id": 7', -32700, None),
    (b"\xff\xfe\x00", -32700, None),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/list", "params": {"cwd": NaN}}', -32700, None),
    (b"[" * 100_000, -32700, None),
    (b"[]", -32600, None),
    (b'[{"jsonrpc": "2.0", "id": 7, "method": "session/list"}]', -32600, None),
    (b"1", -32600, None),
    (b"null", -32600, None),
    (b'"text"', -32600, None),
    (b"{}", -32600, None),
    (b'{"id": 7, "method": "session/list"}', -32600, 7),
    (b'{"jsonrpc": "1.0", "id": "a", "method": "session/list"}', -32600, "a"),
    (b'{"jsonrpc": "2.0", "id": 7}', -32600, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": 1}', -32600, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": ["session/list"]}', -32600, 7),
    (b'{"jsonrpc": "2.0", "id": {"x": 1}, "method": "session/list"}', -32600, None),
    (b'{"jsonrpc": "2.0", "id": true, "method": "session/list"}', -32600, None),
    (b'{"jsonrpc": "2.0", "id": 1.5, "method": "session/list"}', -32600, None),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/nothing"}', -32601, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/cancel", "params": {"sessionId": "x"}}', -32601, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "_vendor/thing", "params": {}}', -32601, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/prompt"}', -32602, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": "text"}', -32602, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": [1, 2]}', -32602, 7),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": 1, "prompt": 2}}', -32602, 7),
    (
        b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": {"cwd": "ws", "mcpServers": []}}',
        -32602,
        7,
    ),
    (
        b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": {"cwd": "/no", "mcpServers": []}}',
        -32602,
        7,
    ),
    (b'{"jsonrpc": "2.0", "id": 7, "method": "session/list", "params": {"cursor": "x"}}', -32602, 7),
    (b'{"jsonrpc": "2.0", "id": null, "method": "session/nothing"}', -32601, None),
]


@pytest.mark.parametrize(("line", "code", "request_id"), BAD_LINES)
def test_each_fault_has_its_code_before_or_behind_the_guard(line: bytes, code: int, request_id: Any):
    if code not in (-32700, -32600):
        parse(line)  # is a message: the router answers it, see the next test
        return
    with pytest.raises(BadMessage) as caught:
        parse(line)
    assert (caught.value.code, caught.value.id) == (code, request_id)


async def test_every_malformed_line_gets_its_error_and_the_agent_goes_on(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("Still here."))) as editor:
        for line, code, request_id in BAD_LINES:
            n_before = len(editor.messages)
            editor.send(line)
            await editor.until(lambda n=n_before: len(editor.messages) > n)
            answer = editor.messages[-1]
            assert (answer["id"], answer["error"]["code"]) == (request_id, code), line[:80]
            assert answer["error"]["message"]
        assert await editor.prompt(await editor.new()) == "end_turn"
        assert editor.said() == "Still here."


async def test_answers_and_notifications_that_fit_nothing_are_ignored(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("Still here."))) as editor:
        n_before = len(editor.messages)
        editor.send({"id": 99, "result": {}})
        editor.send({"id": 0, "error": "boom"})
        editor.send({"id": "x", "error": {"code": "y"}})
        editor.send({"id": 99, "result": {}, "error": None})
        editor.notify("session/cancel", sessionId="nobody")
        editor.notify("session/cancel")
        editor.notify("session/nothing")
        editor.notify("$/progress", token=1)
        editor.send(b"   ")
        assert await editor.prompt(await editor.new()) == "end_turn"
        assert all("error" not in m for m in editor.messages[n_before:])


async def test_a_wrong_parameter_is_named(tmp_path: Path):
    async with EditorKit(tmp_path) as editor:
        error = await editor.refused("session/prompt", sessionId="x")
        assert error["message"] == "Invalid params: prompt: Field required"
        assert error["data"] == {"errors": [{"at": "prompt", "problem": "Field required"}]}


async def test_meta_never_reaches_the_parameters(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("ok"))) as editor:
        session = await editor.new(_meta={"cwd": "/", "session_id": "x", "junk": 1})
        blocks = [{"type": "text", "text": "Go."}]
        meta = {"prompt": [], "session_id": "other"}
        assert await editor.ask("session/prompt", sessionId=session, prompt=blocks, _meta=meta)


async def test_requests_to_sessions_that_are_not_open_are_refused(tmp_path: Path):
    async with EditorKit(tmp_path) as editor:
        blocks = [{"type": "text", "text": "Go."}]
        folder = {"cwd": str(editor.ws), "mcpServers": []}
        for method, params in (
            ("session/prompt", {"prompt": blocks}),
            ("session/set_mode", {"modeId": "plan"}),
            ("session/set_config_option", {"configId": "mode", "value": "plan"}),
            ("session/close", {}),
            ("session/load", folder),
            ("session/resume", folder),
            ("session/delete", {}),
        ):
            error = await editor.refused(method, sessionId="nobody", **params)
            assert error["code"] == -32002 and "nobody" in error["message"], method


async def test_images_and_empty_prompts_are_refused_clearly(tmp_path: Path):
    async with EditorKit(tmp_path) as editor:
        session = await editor.new()
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        error = await editor.refused("session/prompt", sessionId=session, prompt=[image])
        assert error["code"] == -32602 and "reads text only" in error["message"]
        for blocks in ([], [{"type": "text", "text": "  \n"}]):
            assert (await editor.refused("session/prompt", sessionId=session, prompt=blocks))["code"] == -32602


def test_what_stands_for_a_line_that_is_too_long_is_no_message():
    with pytest.raises(BadMessage):
        parse(TOO_LONG)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None)
@given(JSON_LIKE)
def test_every_message_is_one_line_of_json(value: Any):
    params = {"value": value, "error": ValueError("v"), "surrogate": "\ud800"}
    line = encode({"jsonrpc": "2.0", "method": "x", "params": params})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert parse(line)["params"]["error"] == "v"

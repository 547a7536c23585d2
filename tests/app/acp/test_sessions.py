"""Sessions that are stored, listed, loaded and closed; modes, options and slash commands."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from acp.schema import EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

from pointcode_local.acp.servers import as_settings
from pointcode_local.config import Settings
from pointcode_local.extensions import parse_servers
from pointcode_local.frontend import Progress
from pointcode_local.hosts import ModelPool
from tests.app.acp.kit import EditorKit, permitting
from tests.fakes import ScriptedModel, call, calls, say


def edited(path: str = "a.txt") -> list[Any]:
    """A turn that changes a file."""
    return [call("write", path=path, content="new\n"), say("It is ", "done.", reasoning="Easy.")]


async def test_a_loaded_session_replays_what_the_live_one_showed(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(*edited()), answers=permitting()) as editor:
        session = await editor.new()
        await editor.prompt(session, "Write it.")
        live = editor.call()
    async with EditorKit(tmp_path, ScriptedModel(say("Again."))) as editor:
        result = await editor.ask("session/load", sessionId=session, cwd=str(editor.ws), mcpServers=[])
        assert result["modes"]["currentModeId"] == "ask" and result["configOptions"]
        replayed = [u for u in editor.updates() if u["sessionUpdate"] != "available_commands_update"]
        kinds = [u["sessionUpdate"] for u in replayed]
        assert kinds[0] == "user_message_chunk" and replayed[0]["content"]["text"] == "Write it."
        assert kinds.count("tool_call") == 1 and "agent_thought_chunk" in kinds
        assert editor.said() == "It is done."
        again = editor.call()
        for name in ("toolCallId", "status", "content", "locations", "rawInput", "rawOutput", "kind"):
            assert again[name] == live[name], name
        assert await editor.prompt(session, "And?") == "end_turn"
        assert editor.said() == "It is done.Again."


async def test_a_replay_is_over_before_load_is_answered_and_commands_come_after(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("One."))) as editor:
        session = await editor.new()
        await editor.prompt(session)
    async with EditorKit(tmp_path, ScriptedModel()) as editor:
        await editor.ask("session/load", sessionId=session, cwd=str(editor.ws), mcpServers=[])
        await editor.until(lambda: editor.updates("available_commands_update"))
        answered = next(i for i, m in enumerate(editor.messages) if "configOptions" in m.get("result", {}))
        said = [i for i, m in enumerate(editor.messages) if "agent_message_chunk" in str(m)]
        commands = [i for i, m in enumerate(editor.messages) if "available_commands_update" in str(m)]
        assert max(said) < answered < min(commands)


async def test_a_resumed_session_tells_nothing_and_remembers(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("Blue."))) as editor:
        session = await editor.new()
        await editor.prompt(session, "My colour is blue.")
    model = ScriptedModel(say("Still blue."))
    async with EditorKit(tmp_path, model) as editor:
        await editor.ask("session/resume", sessionId=session, cwd=str(editor.ws))
        assert await editor.prompt(session, "Which?") == "end_turn"
        assert not editor.updates("user_message_chunk") and editor.said() == "Still blue."
        assert "My colour is blue." in str(model.requests[0].messages)


async def test_the_list_has_titles_folders_pages_and_no_empty_sessions(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(*[say("ok")] * 60)) as editor:
        other = tmp_path / "other"
        other.mkdir()
        await editor.new()  # never used
        for i in range(52):
            session = await editor.new()
            await editor.prompt(session, f"Prompt {i}.\nMore.")
            await editor.ask("session/close", sessionId=session)
        await editor.prompt(await editor.new(cwd=str(other)), "Elsewhere.")
        first = await editor.ask("session/list", cwd=str(editor.ws))
        assert len(first["sessions"]) == 50
        second = await editor.ask("session/list", cwd=str(editor.ws), cursor=first["nextCursor"])
        assert len(second["sessions"]) == 2 and "nextCursor" not in second
        found = {s["title"] for s in first["sessions"] + second["sessions"]}
        assert found == {f"Prompt {i}. More." for i in range(52)}
        everywhere = await editor.ask("session/list")
        assert everywhere["sessions"][0]["title"] == "Elsewhere."
        assert everywhere["sessions"][0]["cwd"] == str(other)


async def test_a_new_session_gets_a_title_after_its_first_prompt(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("a"), say("b"))) as editor:
        session = await editor.new()
        await editor.prompt(session, "Fix the\nbug.")
        await editor.prompt(session, "Then this.")
        assert [u["title"] for u in editor.updates("session_info_update")] == ["Fix the bug."]


async def test_a_closed_session_is_stopped_free_and_stored(tmp_path: Path):
    held = asyncio.Event()
    async with EditorKit(tmp_path, ScriptedModel([*say("Part")[:1], held.wait], say("Back."))) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(editor.said)
        await editor.ask("session/close", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        assert (await editor.refused("session/close", sessionId=session))["code"] == -32002
        await editor.ask("session/load", sessionId=session, cwd=str(editor.ws), mcpServers=[])
        assert await editor.prompt(session) == "end_turn"


async def test_only_a_whole_id_opens_a_session(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("ok"))) as editor:
        session = await editor.new()
        await editor.prompt(session)
        await editor.ask("session/close", sessionId=session)
        for wrong in (session[:-1], "", "../x", session + "x"):
            for method in ("session/load", "session/resume"):
                error = await editor.refused(method, sessionId=wrong, cwd=str(editor.ws), mcpServers=[])
                assert error["code"] == -32002, (method, wrong)
        assert len((await editor.ask("session/list"))["sessions"]) == 1


async def test_a_session_that_another_program_has_open_is_not_called_missing(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("ok"))) as editor:
        session = await editor.new()
        await editor.prompt(session)
        async with EditorKit(tmp_path) as other:
            error = await other.refused("session/load", sessionId=session, cwd=str(editor.ws), mcpServers=[])
            assert error["code"] == -32603 and "open in another pointcode" in error["message"]


async def test_sessions_in_which_nothing_was_said_are_not_kept(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("ok"))) as editor:
        used, unused, closed = await editor.new(), await editor.new(), await editor.new()
        await editor.ask("session/set_mode", sessionId=unused, modeId="plan")
        await editor.ask("session/close", sessionId=closed)
        await editor.ask("session/load", sessionId=closed, cwd=str(editor.ws), mcpServers=[])  # until the editor ends
        await editor.prompt(used)
    assert [path.stem for path in (editor.places.state / "sessions").iterdir()] == [used]


async def test_a_closed_session_that_another_program_took_up_is_kept(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel()) as editor:
        session = await editor.new()
        await editor.ask("session/close", sessionId=session)
        async with EditorKit(tmp_path, ScriptedModel(say("ok"))) as other:
            await other.ask("session/load", sessionId=session, cwd=str(editor.ws), mcpServers=[])
            await other.prompt(session)
    assert [path.stem for path in (editor.places.state / "sessions").iterdir()] == [session]


async def test_a_deleted_session_is_gone(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("ok"))) as editor:
        session = await editor.new()
        await editor.prompt(session)
        assert await editor.ask("session/delete", sessionId=session) == {}
        assert (await editor.ask("session/list"))["sessions"] == []
        refused = await editor.refused("session/load", sessionId=session, cwd=str(editor.ws), mcpServers=[])
        assert refused["code"] == -32002


# ----------------------------------------------------------------------------------------------- modes and options
async def test_modes_change_what_is_asked(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(*edited(), *edited("b.txt"))) as editor:
        result = await editor.ask("session/new", cwd=str(editor.ws), mcpServers=[])
        session, modes = result["sessionId"], result["modes"]
        assert [m["id"] for m in modes["availableModes"]] == ["ask", "accept-edits", "plan", "auto"]
        assert modes["currentModeId"] == "ask"
        await editor.ask("session/set_mode", sessionId=session, modeId="accept-edits")
        assert editor.updates("config_option_update")[-1]["configOptions"][0]["currentValue"] == "accept-edits"
        await editor.prompt(session)
        assert editor.asked == [] and (editor.ws / "a.txt").exists()
        await editor.ask("session/set_mode", sessionId=session, modeId="plan")
        await editor.prompt(session)
        assert editor.asked == [] and not (editor.ws / "b.txt").exists()


async def test_a_mode_may_be_set_while_the_model_still_loads(tmp_path: Path):
    ready = asyncio.Event()
    model = ScriptedModel(*edited())
    async with EditorKit(tmp_path) as editor:

        async def slow(settings: Any, places: Any, on_progress: Any) -> ScriptedModel:
            on_progress(Progress("downloading it", 50, 100))
            await ready.wait()
            return model

        editor.use(slow)
        session = await editor.new()
        await editor.ask("session/set_mode", sessionId=session, modeId="accept-edits")
        running = editor.begin(session)
        await editor.until(lambda: editor.updates("agent_thought_chunk"))
        assert editor.updates("agent_thought_chunk")[0]["content"]["text"] == "(downloading it: 50%)\n"
        ready.set()
        assert (await running)["result"]["stopReason"] == "end_turn"
        assert editor.asked == [] and (editor.ws / "a.txt").exists()


async def test_a_prompt_is_cancelled_while_the_model_still_loads(tmp_path: Path):
    ready = asyncio.Event()
    async with EditorKit(tmp_path) as editor:

        async def slow(settings: Any, places: Any, on_progress: Any) -> ScriptedModel:
            await ready.wait()
            return ScriptedModel(say("Now."))

        editor.use(slow)
        session = await editor.new()
        running = editor.begin(session)
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        ready.set()
        assert await editor.prompt(session) == "end_turn" and editor.said() == "Now."


async def test_options_hold_mode_and_model_and_can_be_set(tmp_path: Path):
    settings = Settings(model="one", endpoint="http://127.0.0.1:9/v1")
    async with EditorKit(tmp_path, ScriptedModel(say("1")), ScriptedModel(say("2")), settings=settings) as editor:
        result = await editor.ask("session/new", cwd=str(editor.ws), mcpServers=[])
        session = result["sessionId"]
        assert [(o["id"], o["category"], o["type"]) for o in result["configOptions"]] == [
            ("mode", "mode", "select"), ("model", "model", "select"),
        ]  # fmt: skip
        await editor.prompt(session)
        set_option = "session/set_config_option"
        changed = await editor.ask(set_option, sessionId=session, configId="mode", value="plan")
        assert changed["configOptions"][0]["currentValue"] == "plan"
        assert editor.updates("current_mode_update")[-1]["currentModeId"] == "plan"
        await editor.ask(set_option, sessionId=session, configId="model", value="two")
        assert editor.opened == ["one", "two"]
        await editor.prompt(session)
        assert editor.said() == "12"
        wrong = [("mode", "god"), ("model", "broken"), ("nothing", "x"), ("mode", True)]
        for name, value in wrong:
            params = {"configId": name, "value": value, **({"type": "boolean"} if value is True else {})}
            assert (await editor.refused(set_option, sessionId=session, **params))["code"] == -32602, params
        assert (await editor.refused("session/set_mode", sessionId=session, modeId="god"))["code"] == -32602


# ----------------------------------------------------------------------------------------------- commands
async def test_commands_are_told_and_run_without_the_model(tmp_path: Path):
    model = ScriptedModel(*edited())
    async with EditorKit(tmp_path, model, answers=permitting()) as editor:
        session = await editor.new()
        await editor.until(lambda: editor.updates("available_commands_update"))
        (told,) = editor.updates("available_commands_update")
        names = [c["name"] for c in told["availableCommands"]]
        assert names == ["undo", "redo", "diff", "map", "mcp", "mode", "model", "status", "help"]
        await editor.prompt(session)
        n_requests = len(model.requests)
        for command in (
            "/diff",
            "/undo",
            "/redo",
            "/mode",
            "/mode plan",
            "/mode nothing",
            "/model",
            "/status",
            "/help",
        ):
            assert await editor.prompt(session, command) == "end_turn"
        said = editor.said()
        for text in ("+new", "restored a.txt", "changed again a.txt", "`accept-edits`", "The mode is now `plan`",
                     "no mode 'nothing'", "(in use)", "model: `scripted`", "/status"):  # fmt: skip
            assert text in said, text
        assert len(model.requests) == n_requests
        assert editor.updates("current_mode_update")[-1]["currentModeId"] == "plan"


async def test_own_commands_become_prompts(tmp_path: Path):
    folder = tmp_path / "ws/.pointcode/commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("Review $ARGUMENTS with care.\n")
    model = ScriptedModel(say("Fine."))
    async with EditorKit(tmp_path, model) as editor:
        session = await editor.new()
        await editor.until(lambda: editor.updates("available_commands_update"))
        assert "review" in str(editor.updates("available_commands_update"))
        await editor.prompt(session, "/review a.py now")
        assert "Review a.py now with care." in model.requests[0].messages[-1].content


async def test_a_path_at_the_start_of_a_prompt_is_no_command(tmp_path: Path):
    model = ScriptedModel(say("Fine."))
    async with EditorKit(tmp_path, model) as editor:
        await editor.prompt(await editor.new(), "/etc/hosts is wrong")
        assert "/etc/hosts is wrong" in model.requests[0].messages[-1].content


# ----------------------------------------------------------------------------------------------- what a prompt holds
async def test_links_and_embedded_files_reach_the_model_and_stay_out_of_the_title(tmp_path: Path):
    model = ScriptedModel(say("Fine."))
    async with EditorKit(tmp_path, model) as editor:
        (editor.ws / "a b.py").write_text("ON_DISK = 1\n")
        (editor.ws / ".env").write_text("KEY=abc\n")
        session = await editor.new()
        blocks = [
            {"type": "text", "text": "Look at"},
            {"type": "resource_link", "name": "a b.py", "uri": (editor.ws / "a b.py").as_uri()},
            {"type": "text", "text": ", "},
            {"type": "resource_link", "name": ".env", "uri": (editor.ws / ".env").as_uri()},
            {"type": "text", "text": " and "},
            {"type": "resource", "resource": {"uri": (editor.ws / "c.py").as_uri(), "text": "UNSAVED = 2\n"}},
            {"type": "resource_link", "name": "docs", "uri": "https://example.org/x"},
            {"type": "resource", "resource": {"uri": "file:///x.bin", "blob": "AAAA"}},
        ]
        await editor.ask("session/prompt", sessionId=session, prompt=blocks)
        (seen,) = [m.content for m in model.requests[0].messages if m.role == "user"]
        assert "ON_DISK = 1" in seen and "UNSAVED = 2" in seen and "KEY=abc" not in seen
        assert "needs permission" in seen and "x.bin is binary" in seen
        assert 'Look at @"a b.py", @.env and c.py [docs](https://example.org/x)' in seen
        (title,) = editor.updates("session_info_update")
        assert title["title"].startswith('Look at @"a b.py", @.env and c.py')


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


# ----------------------------------------------------------------------------------------------- models
async def test_a_pool_opens_a_model_once_and_frees_the_one_that_nobody_uses(tmp_path: Path):
    closed: list[str] = []

    class Model(ScriptedModel):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.label = name

        async def aclose(self) -> None:
            closed.append(self.label)

    opened: list[str] = []

    async def open_one(settings: Settings, places: Any, on_progress: Any) -> Model:
        opened.append(settings.model)
        await asyncio.sleep(0)
        return Model(settings.model)

    def ignore(progress: Progress) -> None:
        return

    pool, places = ModelPool(open_one), None
    one, again = await asyncio.gather(*(pool.open(Settings(model="a"), places, ignore) for _ in range(2)))  # type: ignore[arg-type]
    assert opened == ["a"]
    await one.aclose()
    other = await pool.open(Settings(model="b"), places, ignore)  # type: ignore[arg-type]
    assert closed == []  # `again` still uses it
    await again.aclose()
    await again.aclose()
    assert closed == ["a"]  # nobody uses it, and another one is in use
    await other.aclose()
    assert closed == ["a"]  # the last one stays
    await pool.open(Settings(model="b"), places, ignore)  # type: ignore[arg-type]
    await pool.open(Settings(model="c"), places, ignore)  # type: ignore[arg-type]
    assert opened == ["a", "b", "c"]
    assert await pool.close() and sorted(closed) == ["a", "b", "c"]

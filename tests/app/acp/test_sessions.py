"""Sessions that are stored, listed, loaded and closed; links and files in a prompt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.app.acp.kit import EditorKit, permitting
from tests.fakes import ScriptedModel, call, say


async def test_a_loaded_session_replays_what_the_live_one_showed(tmp_path: Path):
    model = ScriptedModel(call("write", path="a.txt", content="new\n"), say("It is ", "done.", reasoning="Easy."))
    async with EditorKit(tmp_path, model, answers=permitting()) as editor:
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


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_a_session_that_is_still_being_closed_is_opened_again_when_it_is_closed(tmp_path: Path, method: str):
    """Requests may come without waiting for the answers to those before."""
    held = asyncio.Event()
    async with EditorKit(tmp_path, ScriptedModel([*say("Part")[:1], held.wait], say("Back."))) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(editor.said)
        closed = editor.request("session/close", sessionId=session)
        again = [editor.request(method, sessionId=session, cwd=str(editor.ws), mcpServers=[]) for _ in range(2)]
        assert (await running)["result"]["stopReason"] == "cancelled"
        assert all("result" in answer for answer in await asyncio.gather(closed, *again))
        assert await editor.prompt(session) == "end_turn"


async def test_a_session_that_is_still_being_closed_is_deleted_when_it_is_closed(tmp_path: Path):
    held = asyncio.Event()
    async with EditorKit(tmp_path, ScriptedModel([*say("Part")[:1], held.wait])) as editor:
        session = await editor.new()
        editor.begin(session)
        await editor.until(editor.said)
        closed = editor.request("session/close", sessionId=session)
        deleted = editor.request("session/delete", sessionId=session)
        assert all("result" in answer for answer in await asyncio.gather(closed, deleted))
        assert (await editor.ask("session/list"))["sessions"] == []


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

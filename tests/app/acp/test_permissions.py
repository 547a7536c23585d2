"""May a call run: what the editor is asked, and what its answers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.app.acp.kit import EditorKit, Later, permitting
from tests.fakes import ScriptedModel, call, say


async def test_an_edit_is_asked_with_its_diff_and_place_and_done_when_allowed(tmp_path: Path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a.txt").write_text("one\ntwo\n")
    edit = call("edit", path="a.txt", edits=[{"old": "two", "new": "2"}])
    async with EditorKit(tmp_path, ScriptedModel(edit, say("ok")), answers=permitting()) as editor:
        session = await editor.new()
        assert await editor.prompt(session) == "end_turn"
        (asked,) = editor.asked
        assert asked["method"] == "session/request_permission" and asked["params"]["sessionId"] == session
        shown = asked["params"]["toolCall"]
        path = str(editor.ws / "a.txt")
        assert shown["content"][0] == {"type": "diff", "path": path, "oldText": "one\ntwo\n", "newText": "one\n2\n"}
        assert shown["locations"] == [{"path": path, "line": 2}]
        assert shown["kind"] == "edit" and shown["toolCallId"] == editor.call()["toolCallId"]
        assert [o["kind"] for o in asked["params"]["options"]] == ["allow_once", "allow_always", "reject_once"]
        assert "edit(a.txt)" in asked["params"]["options"][1]["name"]
        assert editor.call()["status"] == "completed" and editor.call()["content"] == shown["content"][:1]
        assert (editor.ws / "a.txt").read_text() == "one\n2\n"


async def test_the_editor_knows_a_call_before_it_is_asked_about_it(tmp_path: Path):
    model = ScriptedModel(call("write", path="a.txt", content="x"), say("ok"))
    async with EditorKit(tmp_path, model, answers=permitting()) as editor:
        await editor.prompt(await editor.new())
        methods = [m.get("method") for m in editor.messages]
        kinds = [
            m["params"]["update"]["sessionUpdate"] if "update" in m.get("params", {}) else "" for m in editor.messages
        ]
        assert kinds.index("tool_call") < methods.index("session/request_permission")


@pytest.mark.parametrize("kind", ["reject_once", "cancelled", "nonsense", "refused"])
async def test_what_is_no_clear_yes_is_a_no(tmp_path: Path, kind: str):
    def answer(params: Any) -> Any:
        if kind == "refused":
            raise_refused()
        if kind == "cancelled":
            return {"outcome": {"outcome": "cancelled"}}
        if kind == "nonsense":
            return {"outcome": {"outcome": "selected", "optionId": "sudo"}}
        return {"outcome": {"outcome": "selected", "optionId": "deny"}}

    model = ScriptedModel(call("shell", command="touch made"), say("Then not."))
    async with EditorKit(tmp_path, model, answers={"session/request_permission": answer}) as editor:
        assert await editor.prompt(await editor.new()) == "end_turn"
        assert not (editor.ws / "made").exists()
        assert editor.call()["status"] == "failed"
        assert "the user said no" in editor.call()["rawOutput"]["text"]


def raise_refused() -> None:
    from tests.app.acp.kit import Refused

    raise Refused("no dialogs here")


async def test_always_is_kept_and_not_asked_again_in_another_session(tmp_path: Path):
    shell = call("shell", command="touch made")
    model = ScriptedModel(shell, say("ok"), shell, say("ok"))
    async with EditorKit(tmp_path, model, answers=permitting("allow_always")) as editor:
        await editor.prompt(await editor.new())
        await editor.prompt(await editor.new())
        assert len(editor.asked) == 1
        assert "shell(touch made)" in (editor.places.state / "always.toml").read_text()


async def test_for_this_session_is_not_asked_again_in_it_and_asked_in_another(tmp_path: Path):
    def for_session(params: Any) -> Any:
        options = {option["optionId"]: option for option in params["options"]}
        assert list(options) == ["once", "always", "session", "deny"]
        assert options["session"]["kind"] == "allow_always"
        return {"outcome": {"outcome": "selected", "optionId": "session"}}

    shell = call("shell", command="touch made")
    model = ScriptedModel(shell, say("ok"), shell, say("ok"), shell, say("ok"))
    async with EditorKit(tmp_path, model, answers={"session/request_permission": for_session}) as editor:
        session = await editor.new()
        await editor.prompt(session)
        await editor.prompt(session)
        assert len(editor.asked) == 1 and (editor.ws / "made").exists()
        await editor.prompt(await editor.new())
        assert len(editor.asked) == 2
        assert not (editor.places.state / "always.toml").exists()


async def test_cancel_ends_an_open_permission_request(tmp_path: Path):
    model = ScriptedModel(call("shell", command="touch made"), say("ok"), say("Second."))
    async with EditorKit(tmp_path, model, answers={"session/request_permission": lambda _: Later()}) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(lambda: editor.asked)
        editor.notify("session/cancel", sessionId=session)
        late = {"outcome": {"outcome": "selected", "optionId": "once"}}
        editor.send({"id": editor.asked[0]["id"], "result": late})  # too late: it must not run
        assert (await running)["result"]["stopReason"] == "cancelled"
        assert not (editor.ws / "made").exists()
        assert await editor.prompt(session) == "end_turn"

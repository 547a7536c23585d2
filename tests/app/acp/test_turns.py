"""Prompts, tool calls and cancelling, as an editor sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.acp.updates import Translator
from pointcode_local.compaction import REQUEST as NOTES_REQUEST
from pointcode_local.config import Settings
from pointcode_local.engine.errors import BackendError, RequestError
from pointcode_local.engine.types import (
    ChatDelta,
    ChatFinished,
    ChatRequest,
    PrefillProgress,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
)
from pointcode_local.events import ErrorRaised, TurnFinished
from tests.app.acp.kit import EditorKit, permitting
from tests.fakes import USAGE, ScriptedModel, call, calls, say


async def test_a_prompt_streams_thought_and_answer_and_ends_its_turn(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(say("Hel", "lo.", reasoning="Hm."))) as editor:
        session = await editor.new()
        assert await editor.prompt(session) == "end_turn"
        assert editor.said() == "Hello."
        assert [u["content"]["text"] for u in editor.updates("agent_thought_chunk")] == ["Hm."]
        (usage,) = editor.updates("usage_update")
        assert usage["used"] == 110 and usage["size"] == 32_768
        assert usage["_meta"]["pointcode"]["cachedTokens"] == 40


async def test_chunks_of_one_reply_share_a_message_id_and_replies_differ(tmp_path: Path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a.txt").write_text("A\n")
    model = ScriptedModel(call("read", text="Look:", path="a.txt"), say("It ", "is A."))
    async with EditorKit(tmp_path, model) as editor:
        await editor.prompt(await editor.new())
        ids = [u["messageId"] for u in editor.updates("agent_message_chunk")]
        assert len(ids) == 3 and ids[0] != ids[1] and ids[1] == ids[2]


async def test_the_text_of_a_call_that_a_model_wrote_into_its_answer_is_never_said(tmp_path: Path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a.txt").write_text("A\n")
    written = ["Look.\n\n<tool", '_call>\n{"name": "read", "argu', 'ments": {"path": "a.txt"}}\n</tool_call>']
    async with EditorKit(tmp_path, ScriptedModel(say(*written), say("It is A."))) as editor:
        await editor.prompt(await editor.new())
        assert editor.said() == "Look.\nIt is A."
        assert editor.call()["status"] == "completed"


async def test_a_tool_call_is_begun_once_and_ends_with_kind_place_and_output(tmp_path: Path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/a.txt").write_text("one\ntwo ```\nthree\n")
    async with EditorKit(tmp_path, ScriptedModel(call("read", path="a.txt", offset=2), say("ok"))) as editor:
        await editor.prompt(await editor.new())
        (begun,) = editor.updates("tool_call")
        assert begun["kind"] == "read" and begun["title"] == "read"
        assert "status" not in begun or begun["status"] == "pending"
        whole = editor.call()
        assert whole["status"] == "completed" and whole["title"] == "read a.txt"
        assert whole["locations"] == [{"path": str(editor.ws / "a.txt"), "line": 2}]
        assert whole["rawInput"]["path"] == "a.txt"
        text = whole["content"][0]["content"]["text"]
        assert text.startswith("````\n") and "two ```" in text and "one" not in text
        assert "two ```" in whole["rawOutput"]["text"]


async def test_cancel_while_the_model_answers_keeps_what_came_and_the_next_prompt_works(tmp_path: Path):
    held = asyncio.Event()
    slow = [*say("Part")[:1], held.wait, *say("never")]
    async with EditorKit(tmp_path, ScriptedModel(slow, say("Second."))) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(editor.said)
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        assert await editor.prompt(session, "Next.") == "end_turn"
        assert editor.said() == "PartSecond."


async def test_cancel_kills_a_running_command_and_ends_its_call(tmp_path: Path):
    model = ScriptedModel(call("shell", command="echo begun; sleep 60"), say("ok"))
    async with EditorKit(tmp_path, model, answers=permitting()) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(lambda: "begun" in str(editor.call().get("content")))
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        assert editor.call()["status"] == "failed" and "interrupted" in editor.call()["rawOutput"]["text"]


async def test_a_cancel_that_follows_its_prompt_at_once_is_not_lost(tmp_path: Path):
    held = asyncio.Event()
    async with EditorKit(tmp_path, ScriptedModel([held.wait, *say("never")], say("Later."))) as editor:
        session = await editor.new()
        for _ in range(3):
            running = editor.begin(session)
            editor.notify("session/cancel", sessionId=session)
            assert (await running)["result"]["stopReason"] == "cancelled"
        held.set()
        assert await editor.prompt(session) == "end_turn"


async def test_a_second_prompt_waits_for_the_first_and_a_cancel_takes_both(tmp_path: Path):
    held = asyncio.Event()
    model = ScriptedModel([held.wait, *say("One.")], say("Two."), [asyncio.Event().wait, *say("never")])
    async with EditorKit(tmp_path, model) as editor:
        session = await editor.new()
        first, second = editor.begin(session, "first"), editor.begin(session, "second")
        held.set()
        assert [(await f)["result"]["stopReason"] for f in (first, second)] == ["end_turn", "end_turn"]
        assert editor.said() == "One.Two."
        third, fourth = editor.begin(session, "third"), editor.begin(session, "fourth")
        editor.notify("session/cancel", sessionId=session)
        assert [(await f)["result"]["stopReason"] for f in (third, fourth)] == ["cancelled", "cancelled"]


async def test_sessions_run_side_by_side_over_one_model(tmp_path: Path):
    held = asyncio.Event()
    model = ScriptedModel([*say("slow")[:1], held.wait, *say(" done")], say("quick"))
    async with EditorKit(tmp_path, model) as editor:
        one, two = await editor.new(), await editor.new()
        slow = editor.begin(one)
        await editor.until(lambda: editor.said(one))
        assert await editor.prompt(two) == "end_turn" and editor.said(two) == "quick"
        assert not slow.done()
        held.set()
        assert (await slow)["result"]["stopReason"] == "end_turn"
        assert editor.said(one) == "slow done" and editor.opened == [""]


async def test_a_failed_turn_is_an_error_and_the_session_lives_on(tmp_path: Path):
    model = ScriptedModel([RequestError("the request is bad")], say("Fine."))
    async with EditorKit(tmp_path, model) as editor:
        session = await editor.new()
        error = (await editor.begin(session))["error"]
        assert error["code"] == -32603 and "the request is bad" in error["message"]
        assert error["data"] == {"temporary": False}
        assert await editor.prompt(session) == "end_turn"


async def test_an_unreachable_model_is_an_error_worth_a_retry(tmp_path: Path):
    broken = [BackendError("the server went away")]
    async with EditorKit(tmp_path, ScriptedModel(broken, broken, broken)) as editor:
        error = (await editor.begin(await editor.new()))["error"]
        assert error["data"] == {"temporary": True} and "went away" in error["message"]


async def test_a_model_that_does_not_open_is_an_error_of_the_prompt_and_is_tried_again(tmp_path: Path):
    async with EditorKit(tmp_path, settings=Settings(model="broken")) as editor:
        session = await editor.new()
        for _ in range(2):
            assert "no such model" in (await editor.begin(session))["error"]["message"]
        assert editor.opened == ["broken"] * len(editor.opened) and len(editor.opened) >= 2


async def test_limits_have_their_own_stop_reasons_and_say_why(tmp_path: Path):
    model = ScriptedModel(*[call("glob", pattern=f"{i}*") for i in range(5)], say("x", reason="length"))
    async with EditorKit(tmp_path, model, settings=Settings(max_turns=2)) as editor:
        session = await editor.new()
        assert await editor.prompt(session) == "max_turn_requests"
        assert "The turn ended early: stopped after 2 model calls" in editor.said()
        model.steps = [say("x", reason="length")]
        assert await editor.prompt(session) == "max_tokens"


def test_what_fails_beside_a_turn_is_a_notice_and_why_the_turn_failed_is_not(tmp_path: Path):
    told = Translator(tmp_path, frozenset({"notices"}))
    events = [ErrorRaised("not kept"), ErrorRaised("no model"), TurnFinished("error", "", 1, "no model")]
    notice = {"sessionUpdate": "notice", "severity": "warning", "title": "not kept"}
    assert [update for event in events for update in told.live(event)] == [notice]
    assert told.live(TurnFinished("done", "", 1)) == []


async def test_the_plan_is_told_as_a_plan(tmp_path: Path):
    items = [{"text": "read", "status": "done"}, {"text": "write", "status": "in_progress"}]
    items.append({"text": "test", "status": "pending"})
    async with EditorKit(tmp_path, ScriptedModel(call("todo", items=items), say("ok"))) as editor:
        await editor.prompt(await editor.new())
        (plan,) = editor.updates("plan")
        assert [(e["content"], e["status"]) for e in plan["entries"]] == [
            ("read", "completed"), ("write", "in_progress"), ("test", "pending"),
        ]  # fmt: skip


async def test_a_call_tells_its_file_while_the_model_still_writes_it(tmp_path: Path):
    held = asyncio.Event()
    whole = '{"path": "src/new.py", "content": "x"}'
    writing = [
        ToolCallBegun(0, "c1", "write"),
        ToolCallArguments(0, whole[:25]),
        held.wait,
        ToolCallArguments(0, whole[25:]),
        ToolCallReady(0, ToolCall("c1", "write", whole)),
        ChatFinished("tool_calls", USAGE),
    ]
    async with EditorKit(tmp_path, ScriptedModel(writing, say("ok")), answers=permitting()) as editor:
        running = editor.begin(await editor.new())
        await editor.until(lambda: editor.updates("tool_call_update"))
        assert editor.call()["title"] == "write src/new.py" and editor.asked == []
        assert editor.call()["locations"] == [{"path": str(editor.ws / "src/new.py")}]
        held.set()
        assert (await running)["result"]["stopReason"] == "end_turn"
        assert len(editor.updates("tool_call")) == 1


async def test_reading_a_long_prompt_is_told_in_quarters(tmp_path: Path):
    reading = [PrefillProgress(done, 10_100, 100) for done in range(100, 10_101, 500)]
    async with EditorKit(tmp_path, ScriptedModel([*reading, *say("ok")])) as editor:
        await editor.prompt(await editor.new())
        told = [u["content"]["text"] for u in editor.updates("agent_thought_chunk")]
        assert told == [f"(reading the prompt, 10,000 tokens: {n}%)\n" for n in (25, 50, 75)]


class Summarising(ScriptedModel):
    """Answers every request for notes with "The notes."."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        if request.messages[-1].content == NOTES_REQUEST:
            self.steps.insert(0, say("The notes."))
        async for delta in super().stream(request):
            yield delta


@pytest.mark.parametrize("takes", [True, False])
async def test_a_compaction_is_told_as_one_where_the_editor_takes_that(tmp_path: Path, takes: bool):
    workspace = tmp_path / "ws"
    workspace.mkdir()
    for i in range(12):
        (workspace / f"{i}.txt").write_text("some plain words on a line\n" * 150)
    steps = [call("read", path=f"{i}.txt") for i in range(12)]
    model = Summarising(*steps, say("All read."), context_tokens=10_000)
    capabilities = {"session": {"compaction": {}}} if takes else {}
    async with EditorKit(tmp_path, model, capabilities=capabilities) as editor:
        assert await editor.prompt(await editor.new()) == "end_turn"
        told = editor.updates("compaction_update")
        if not takes:
            thoughts = "".join(u["content"]["text"] for u in editor.updates("agent_thought_chunk"))
            assert told == [] and "Shortening the conversation" in thoughts and "tokens now" in thoughts
            return
        assert [u["status"] for u in told[:2]] == ["in_progress", "completed"]
        assert told[0]["compactionId"] == told[1]["compactionId"] and "The notes." in told[1]["summary"][0]["text"]


async def test_a_cancelled_request_of_a_prompt_cancels_its_turn(tmp_path: Path):
    held = asyncio.Event()
    async with EditorKit(tmp_path, ScriptedModel([*say("Part")[:1], held.wait])) as editor:
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(editor.said)
        editor.notify("$/cancel_request", requestId=12345)  # of nobody
        editor.notify("$/cancel_request", requestId=editor.last_id)
        assert (await running)["result"]["stopReason"] == "cancelled"


async def test_numbers_that_json_cannot_hold_do_not_break_the_stream(tmp_path: Path):
    model = ScriptedModel(calls(("read", '{"path": "a", "offset": NaN, "x": Infinity}')), say("ok"))
    async with EditorKit(tmp_path, model) as editor:
        assert await editor.prompt(await editor.new()) == "end_turn"
        assert editor.call()["status"] == "failed"


async def test_the_models_question_offers_its_options(tmp_path: Path):
    def answer(params: Any) -> Any:
        names = [o["name"] for o in params["options"]]
        assert names == ["red", "blue", "Skip"] and params["toolCall"]["title"] == "Which?"
        return {"outcome": {"outcome": "selected", "optionId": params["options"][1]["optionId"]}}

    model = ScriptedModel(call("ask", question="Which?", options=["red", "blue"]), say("ok"))
    async with EditorKit(tmp_path, model, answers={"session/request_permission": answer}) as editor:
        await editor.prompt(await editor.new())
        assert "blue" in editor.call()["rawOutput"]["text"]


async def test_the_models_free_question_is_a_form_where_the_editor_has_forms(tmp_path: Path):
    def answer(params: Any) -> Any:
        assert params["message"] == "What name?" and params["mode"] == "form"
        return {"action": "accept", "content": {"answer": "Ada"}}

    model = ScriptedModel(call("ask", question="What name?"), say("ok"))
    forms = {"elicitation": {"form": {}}}
    async with EditorKit(tmp_path, model, capabilities=forms, answers={"elicitation/create": answer}) as editor:
        await editor.prompt(await editor.new())
        assert "Ada" in editor.call()["rawOutput"]["text"]


async def test_the_command_compact_shortens_the_conversation_now(tmp_path: Path):
    (tmp_path / "ws").mkdir()
    model = Summarising(say("One. " * 200), say("Two."))
    async with EditorKit(tmp_path, model) as editor:
        session = await editor.new()
        for text in ("First.", "Second.", "/compact"):
            assert await editor.prompt(session, text) == "end_turn"
        thoughts = "".join(u["content"]["text"] for u in editor.updates("agent_thought_chunk"))
        assert "Shortening the conversation" in thoughts and "tokens now" in thoughts

"""The agent loop and the person: what is asked, and what an answer does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.events import (
    AgentEvent,
    Answer,
    ErrorRaised,
    ModeChanged,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
    SetMode,
    ToolFinished,
    ToolStarted,
)
from pointcode_local.tools.base import FileChange, ToolContext, ToolError, ToolResult
from tests.app.agents import Bench, end_of, of_type
from tests.fakes import FakePolicy, FakeTool, ScriptedModel, call, say


def test_what_would_ask_is_denied_when_nobody_is_there(tmp_path: Path):
    model = ScriptedModel(call("write"), say("could not"))
    bench = Bench(tmp_path, model, [FakeTool("write", access="write")], policy=FakePolicy(write="ask"))
    events = bench.play()
    assert [type(e) for e in events if isinstance(e, PermissionAsked | PermissionAnswered)] == [
        PermissionAsked,
        PermissionAnswered,
    ]
    (result,) = of_type(events, ToolFinished)
    assert result.denied and result.is_error
    assert of_type(events, ToolStarted) == []
    assert end_of(events).outcome == "denied"


@pytest.mark.parametrize(
    ("answer", "runs"), [("once", True), ("session", True), ("always", True), ("deny", False), ("nonsense", False)]
)
def test_the_person_decides(tmp_path: Path, answer: str, runs: bool):
    policy = FakePolicy(write="ask")
    model = ScriptedModel(call("write"), call("write"), say("ok"))
    bench = Bench(tmp_path, model, [FakeTool("write", access="write")], policy=policy, interactive=True)

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, PermissionAsked):
            bench.agent.send(Answer(event.call_id, answer))

    events = bench.play(on_event=on_event)
    assert bool(of_type(events, ToolStarted)) == runs
    assert len(of_type(events, PermissionAsked)) == (1 if answer in ("session", "always") else 2)
    assert policy.remembered == (["write(*)"] if answer == "always" else [])


def test_an_answer_that_cannot_be_kept_counts_and_is_told(tmp_path: Path):
    class FullDisk(FakePolicy):
        def remember(self, rule: str) -> None:
            raise OSError(28, "No space left on device")

    model = ScriptedModel(call("write"), say("ok"))
    bench = Bench(tmp_path, model, [FakeTool("write", access="write")], policy=FullDisk(write="ask"), interactive=True)

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, PermissionAsked):
            bench.agent.send(Answer(event.call_id, "always"))

    events = bench.play(on_event=on_event)
    assert len(of_type(events, ToolStarted)) == 1 and end_of(events).outcome == "done"
    assert "No space left" in of_type(events, ErrorRaised)[0].message


def test_a_withheld_tool_is_denied_with_the_reason(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(call("shell"), say("ok")), withheld={"shell": "not allowed here"})
    (result,) = of_type(bench.play(), ToolFinished)
    assert result.denied == "not allowed here"


def test_a_tool_asks_the_person(tmp_path: Path):
    class Asking(FakeTool):
        async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
            assert context.ask is not None
            return ToolResult(await context.ask("Which?", ("a", "b")))

    asking = Asking("ask", access="none")
    bench = Bench(tmp_path, ScriptedModel(call("ask"), say("ok")), [asking], interactive=True)

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, QuestionAsked):
            bench.agent.send(Answer(event.call_id, "b"))

    events = bench.play(on_event=on_event)
    assert [e.answer for e in of_type(events, QuestionAnswered)] == ["b"]
    assert bench.last_messages[-1].content == "b"


def test_a_cancelled_question_is_answered_with_no(tmp_path: Path):
    model = ScriptedModel(call("write"), say("ok"))
    policy = FakePolicy(write="ask")
    bench = Bench(tmp_path, model, [FakeTool("write", access="write")], policy=policy, interactive=True)

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, PermissionAsked):
            bench.agent.cancel()

    events = bench.play(on_event=on_event)
    assert [e.answer for e in of_type(events, PermissionAnswered)] == ["deny"]
    assert end_of(events).outcome == "cancelled"


def test_a_new_mode_holds_from_the_next_call_and_the_model_is_told(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(say("one"), say("two")))
    bench.play()
    bench.agent.send(SetMode("plan"))
    events = bench.play("Next.")
    assert bench.policy.mode == "plan"
    assert "plan" in bench.last_messages[-1].content
    assert of_type(bench.store.read(bench.log.id), ModeChanged) == [ModeChanged("plan")]
    assert end_of(events).outcome == "done"


class Hopeless(FakeTool):
    """Its preview finds that the call cannot succeed."""

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        raise ToolError("`old` was not found in the file")


@pytest.mark.parametrize(("path", "asked"), [("a.py", 0), ("secret.txt", 1)])
def test_nobody_is_asked_about_a_call_that_can_only_fail_unless_the_reason_would_tell_a_secret(
    tmp_path: Path, path: str, asked: int
):
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = Hopeless("edit", access="write", parameters=parameters)
    model = ScriptedModel(call("edit", path=path), say("ok"))
    bench = Bench(tmp_path, model, [tool], policy=FakePolicy(edit="ask"), interactive=True)

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, PermissionAsked):
            bench.agent.send(Answer(event.call_id, "deny"))

    events = bench.play(on_event=on_event)
    assert len(of_type(events, PermissionAsked)) == asked
    (result,) = of_type(events, ToolFinished)
    assert result.is_error and ("not found" in result.text) == (not asked)
    assert bool(result.denied) == bool(asked)

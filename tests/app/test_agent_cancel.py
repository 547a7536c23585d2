"""The agent loop when it is stopped, steered, or given more to do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pointcode_local.engine.types import AnswerText
from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    Prompt,
    PromptQueued,
    Steered,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.tools.base import ToolContext, ToolResult
from tests.app.agents import Bench, assert_valid_history, end_of, of_type
from tests.fakes import FakeTool, ScriptedModel, call, calls, say


def test_cancel_keeps_what_was_written_and_leaves_the_history_valid(tmp_path: Path):
    model = ScriptedModel(
        [AnswerText("half "), AnswerText("of it"), asyncio.Event().wait, AnswerText("never")], say("ok")
    )
    bench = Bench(tmp_path, model)
    seen: list[str] = []

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, TextDelta):
            seen.append(event.text)
        if len(seen) == 2:
            bench.agent.cancel()
            bench.agent.cancel()

    events = bench.play(on_event=on_event)
    assert end_of(events) == TurnFinished("cancelled", "half of it", 1)
    assert of_type(events, AssistantMessage) == [AssistantMessage("half of it", "", ())]
    assert end_of(bench.play("And now?")).outcome == "done"
    assert [m.role for m in bench.last_messages] == ["system", "user", "assistant", "user"]


def test_cancel_stops_tools_and_keeps_their_output(tmp_path: Path):
    stopped: list[str] = []

    class Slow(FakeTool):
        async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
            context.on_output("partial\n")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append("stopped")
                raise
            return ToolResult("never")

    model = ScriptedModel(calls(("shell", ""), ("shell", "")), say("ok"))
    bench = Bench(tmp_path, model, [Slow("shell", access="execute")])

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, ToolProgress):
            bench.agent.cancel()

    events = bench.play(on_event=on_event)
    assert stopped == ["stopped"]
    results = of_type(events, ToolFinished)
    assert len(results) == 2 and all("interrupted" in r.text for r in results)
    assert any("partial" in r.text for r in results)
    bench.play("next")
    assert_valid_history(bench.last_messages)


def test_closing_the_stream_cancels_the_turn_and_the_log_is_balanced(tmp_path: Path):
    model = ScriptedModel([AnswerText("half"), asyncio.Event().wait])
    bench = Bench(tmp_path, model)

    async def play() -> None:
        stream = bench.agent.run("Go.")
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await stream.aclose()

    asyncio.run(play())
    events = bench.store.read(bench.log.id)
    assert end_of(events).outcome == "cancelled"


def test_a_queued_prompt_is_played_after_the_turn(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(say("one"), say("two")))

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, TextDelta) and event.text == "one":
            bench.agent.send(Prompt("Second."))

    events = bench.play("First.", on_event)
    assert [e.prompt for e in of_type(events, TurnStarted)] == ["First.", "Second."]
    assert of_type(events, PromptQueued) == [PromptQueued("Second.")]
    assert [e.text for e in of_type(events, TurnFinished)] == ["one", "two"]


def test_a_steering_prompt_goes_before_the_next_model_call(tmp_path: Path):
    model = ScriptedModel(call("read"), say("ok"))
    bench = Bench(tmp_path, model, [FakeTool("read")])

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, ToolStarted):
            bench.agent.send(Prompt("Rather look at b.", steer=True))

    events = bench.play("First.", on_event)
    assert of_type(events, Steered) == [Steered("Rather look at b.")]
    assert [m.role for m in bench.last_messages] == ["system", "user", "assistant", "tool", "user"]


def test_a_steering_prompt_that_comes_with_the_answer_is_still_heard(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(say("one"), say("two")))

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, TextDelta) and event.text == "one":
            bench.agent.send(Prompt("Wait.", steer=True))

    events = bench.play("First.", on_event)
    assert end_of(events) == TurnFinished("done", "two", 2)


def test_queued_prompts_are_not_played_after_a_cancel(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel([AnswerText("x"), asyncio.Event().wait]))

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, TextDelta):
            bench.agent.send(Prompt("Later."))
            bench.agent.cancel()

    assert len(of_type(bench.play(on_event=on_event), TurnFinished)) == 1
    assert bench.agent.take_queue() == ["Later."]

"""The agent loop over a scripted model and fake tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.conversation import Conversation
from pointcode_local.engine.errors import BackendError, CapacityError, ContextOverflow, RequestError
from pointcode_local.engine.types import AnswerText, ToolCall, ToolCallArguments, ToolCallBegun, ToolCallReady
from pointcode_local.events import (
    AssistantMessage,
    ContextAdded,
    ErrorRaised,
    SetMode,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UsageChanged,
)
from pointcode_local.second_chances import CUT_CALL
from pointcode_local.turn import AgentLimits
from tests.app.agents import Bench, assert_valid_history, end_of, full_disk, of_type
from tests.fakes import FakeTool, ScriptedModel, call, calls, cut_call, say

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def test_an_answer_is_streamed_and_ends_the_turn(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(say("Hel", "lo.", reasoning="hm")))
    events = bench.play("Hi.")
    kinds = [type(event) for event in events if not isinstance(event, ContextAdded)]
    assert kinds[0] is TurnStarted and kinds[-1] is TurnFinished
    assert "".join(e.text for e in of_type(events, TextDelta)) == "Hello."
    assert of_type(events, AssistantMessage) == [AssistantMessage("Hello.", "hm", ())]
    assert of_type(events, UsageChanged)[0].cached_tokens == 40
    assert end_of(events) == TurnFinished("done", "Hello.", 1)


def test_a_call_runs_and_its_result_is_shown_to_the_model(tmp_path: Path):
    tool = FakeTool("read", lambda path: f"text of {path}", parameters=PATH)
    bench = Bench(tmp_path, ScriptedModel(call("read", path="a.txt"), say("ok")), [tool])
    events = bench.play()
    assert [type(e) for e in events if isinstance(e, ToolStarted | ToolFinished)] == [ToolStarted, ToolFinished]
    assert bench.last_messages[-1].content == "text of a.txt"
    assert end_of(events).turns == 2
    assert_valid_history(bench.last_messages)


def test_a_call_starts_while_the_model_still_writes(tmp_path: Path):
    order: list[str] = []
    gate = asyncio.Event()

    async def work(path: str) -> str:
        order.append("tool ran")
        gate.set()
        return "x"

    async def wait_for_tool() -> None:
        await gate.wait()
        order.append("model went on")

    whole = ToolCall("c1", "read", '{"path": "a"}')
    step = [
        ToolCallBegun(0, "c1", "read"),
        ToolCallArguments(0, whole.arguments),
        ToolCallReady(0, whole),
        wait_for_tool,
    ]
    model = ScriptedModel([*step, *call("read", call_id="c2", path="b")[-1:]], say("ok"))
    Bench(tmp_path, model, [FakeTool("read", work, parameters=PATH)]).play()
    assert order == ["tool ran", "model went on"]


def test_reading_calls_run_side_by_side_and_results_keep_call_order(tmp_path: Path):
    both = asyncio.Event()
    started: list[str] = []

    async def work(path: str) -> str:
        started.append(path)
        if len(started) == 2:
            both.set()
        await both.wait()
        return path

    model = ScriptedModel(calls(("read", '{"path": "slow"}'), ("read", '{"path": "fast"}')), say("ok"))
    bench = Bench(tmp_path, model, [FakeTool("read", work, parameters=PATH)])
    bench.play()
    assert [m.content for m in bench.last_messages if m.role == "tool"] == ["slow", "fast"]
    assert_valid_history(bench.last_messages)


def test_a_changing_call_waits_for_those_before_it_and_those_after_wait_for_it(tmp_path: Path):
    log: list[str] = []

    def tool(name: str, access: Any) -> FakeTool:
        async def work() -> str:
            log.append(f"{name} begins")
            await asyncio.sleep(0)
            log.append(f"{name} ends")
            return name

        return FakeTool(name, work, access)

    model = ScriptedModel(calls(("read", ""), ("write", ""), ("look", "")), say("ok"))
    Bench(tmp_path, model, [tool("read", "read"), tool("write", "write"), tool("look", "read")]).play()
    assert log == ["read begins", "read ends", "write begins", "write ends", "look begins", "look ends"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (call("open_file", path="f"), "Unknown tool 'open_file'.*Available tools: read"),
        (call("read"), "path is missing"),
        (calls(("read", '{"path": "f')), "not valid JSON"),
        (call("read", path=["f"]), "path must be a string"),
    ],
)
def test_a_bad_call_is_an_error_result_with_the_cure(tmp_path: Path, step: Any, words: str):
    bench = Bench(tmp_path, ScriptedModel(step, say("went on")), [FakeTool("read", parameters=PATH)])
    events = bench.play()
    (result,) = of_type(events, ToolFinished)
    assert result.is_error
    assert __import__("re").search(words, result.text)
    assert end_of(events).outcome == "done"
    assert_valid_history(bench.last_messages)


def test_a_call_written_as_text_is_run(tmp_path: Path):
    text = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    bench = Bench(tmp_path, ScriptedModel(say(text), say("ok")), [FakeTool("read", parameters=PATH)])
    events = bench.play()
    assert [e.arguments for e in of_type(events, ToolFinished)] == [{"path": "a"}]
    assert bench.last_messages[-2].content == ""
    assert_valid_history(bench.last_messages)


def test_words_about_a_call_are_asked_about_once_and_never_run(tmp_path: Path):
    text = 'The format, for example:\n<tool_call>{"name": "read", "arguments": {"path": "a"}}</tool_call>'
    bench = Bench(tmp_path, ScriptedModel(say(text), say(text)), [FakeTool("read", parameters=PATH)])
    events = bench.play()
    assert of_type(events, ToolStarted) == []
    assert end_of(events) == TurnFinished("done", text, 2)


@pytest.mark.parametrize("reply", [say(""), say(" \n"), say("", reasoning="thinking"), []])
def test_an_empty_reply_is_asked_again_once(tmp_path: Path, reply: Any):
    bench = Bench(tmp_path, ScriptedModel(reply or say(""), say("The answer.")))
    assert end_of(bench.play()).text == "The answer."
    assert "answer" in bench.last_messages[-1].content.lower()


def test_after_two_empty_replies_the_model_has_given_up(tmp_path: Path):
    end = end_of(Bench(tmp_path, ScriptedModel(say(""), say(""), say("late"))).play())
    assert end.outcome == "limit"
    assert "empty" in (end.error or "")


def test_thinking_beyond_its_budget_is_stopped(tmp_path: Path):
    model = ScriptedModel(say("", reasoning="x" * 50), say("short answer"))
    bench = Bench(tmp_path, model, limits=AgentLimits(max_reasoning_chars=20))
    assert end_of(bench.play()).text == "short answer"
    assert model.n_closed == 1


def test_a_cut_call_is_not_run_and_the_model_is_told(tmp_path: Path):
    ran: list[str] = []
    tool = FakeTool("write", lambda **a: ran.append("ran"), "write", parameters=PATH)
    bench = Bench(tmp_path, ScriptedModel(cut_call("write", '{"path": "half'), say("ok")), [tool])
    events = bench.play()
    assert ran == []
    assert "cut short" in bench.last_messages[-1].content
    assert end_of(events).outcome == "done"
    assert_valid_history(bench.last_messages)


def test_calls_that_are_always_cut_end_at_the_limit(tmp_path: Path):
    model = ScriptedModel(*[cut_call("write", '{"path": "half')] * 10)
    assert end_of(Bench(tmp_path, model, [FakeTool("write", access="write")]).play()).outcome == "limit"
    assert len(model.requests) == 2


def test_an_answer_cut_at_the_token_limit_is_a_limit(tmp_path: Path):
    end = end_of(Bench(tmp_path, ScriptedModel(say("half an ans", reason="length"))).play())
    assert (end.outcome, end.text) == ("limit", "half an ans")


@pytest.mark.parametrize("n_cycle", [1, 2, 3, 4])
def test_a_circle_of_calls_with_the_same_results_is_stopped(tmp_path: Path, n_cycle: int):
    steps = [call("read", path=f"f{i % n_cycle}") for i in range(60)]
    model = ScriptedModel(*steps)
    end = end_of(Bench(tmp_path, model, [FakeTool("read", lambda path: path, parameters=PATH)]).play())
    assert end.outcome == "limit"
    assert "repeats" in (end.error or "")
    assert len(model.requests) <= 4 + 4 * n_cycle


def test_polling_with_a_changing_result_goes_on(tmp_path: Path):
    counter = iter(range(100))
    model = ScriptedModel(*[call("read", path="f")] * 20, say("finished"))
    bench = Bench(tmp_path, model, [FakeTool("read", lambda path: str(next(counter)), parameters=PATH)])
    assert end_of(bench.play()).text == "finished"


def test_the_number_of_model_calls_is_limited(tmp_path: Path):
    model = ScriptedModel(*[call("read", path=str(i)) for i in range(10)])
    bench = Bench(tmp_path, model, [FakeTool("read", parameters=PATH)], limits=AgentLimits(max_turns=3))
    end = end_of(bench.play())
    assert (end.outcome, end.turns, len(model.requests)) == ("limit", 3, 3)


def test_a_tool_with_a_bug_gives_an_error_result(tmp_path: Path):
    def work() -> str:
        raise KeyError("x")

    bench = Bench(tmp_path, ScriptedModel(call("read"), say("ok")), [FakeTool("read", work)])
    (result,) = of_type(bench.play(), ToolFinished)
    assert result.is_error and "KeyError" in result.text


@pytest.mark.parametrize(
    ("error", "temporary"), [(RequestError("bad"), False), (CapacityError("busy"), True), (BackendError("gone"), True)]
)
def test_an_engine_error_ends_the_turn(tmp_path: Path, error: Exception, temporary: bool):
    events = Bench(tmp_path, ScriptedModel(*[[error]] * 9)).play()
    assert of_type(events, ErrorRaised) == [ErrorRaised(str(error), temporary)]
    assert end_of(events).outcome == "error"


def test_a_stream_that_breaks_is_gone_on_with(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel([AnswerText("The ans"), BackendError("broke")], say("wer.")))
    events = bench.play()
    assert end_of(events).outcome == "done"
    assert [m.role for m in bench.last_messages] == ["system", "user", "assistant", "user"]


def test_a_stream_that_breaks_after_a_call_keeps_its_result(tmp_path: Path):
    step = call("read", path="a")
    bench = Bench(
        tmp_path, ScriptedModel([*step[:-1], BackendError("broke")], say("ok")), [FakeTool("read", parameters=PATH)]
    )
    assert end_of(bench.play()).outcome == "done"
    assert_valid_history(bench.last_messages)


def test_ids_are_unique_whatever_the_model_sends(tmp_path: Path):
    model = ScriptedModel(
        calls(("read", "{}"), ("read", "{}"), ids=["c", "c"]), call("read", call_id="c", x="1"), call("read"), say("ok")
    )
    counter = iter(range(9))
    bench = Bench(tmp_path, model, [FakeTool("read", lambda **a: next(counter))])
    bench.play()
    ids = [c.id for m in bench.last_messages for c in m.tool_calls]
    assert len(ids) == 4 == len(set(ids))
    assert_valid_history(bench.last_messages)


def test_every_prompt_is_a_prefix_of_the_next(tmp_path: Path):
    model = ScriptedModel(
        call("read", path="a"),
        say("", reasoning="hm"),
        say("one"),
        calls(("read", "{bad"), ("nothing", "{}")),
        cut_call("read", '{"pa'),
        say("two"),
    )
    bench = Bench(tmp_path, model, [FakeTool("read", parameters=PATH)])
    bench.play("First.")
    bench.agent.send(SetMode("auto"))
    bench.play("Second.")
    assert len(model.requests) == 6
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools


def test_a_resumed_session_sends_the_same_messages(tmp_path: Path):
    script = [call("read", path="a"), say("", reasoning="hm"), calls(("read", "{bad"), ("x", "")), say("one")]
    tools = [FakeTool("read", parameters=PATH)]
    bench = Bench(tmp_path, ScriptedModel(*script), tools)
    (bench.root / "AGENTS.md").write_text("Be brief.")
    bench.play("Look at @AGENTS.md please.")
    bench.log.close()
    log, history = bench.store.open(bench.log.id)
    again = Bench(tmp_path, ScriptedModel(say("two")), tools, log=log, history=history)
    again.play("Next.")
    live = bench.agent.conversation.messages
    assert again.last_messages[: len(live)] == live
    assert Conversation("You help.", history).messages == live


def test_rules_and_mentions_reach_the_model_once(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(say("one"), say("two")))
    (bench.root / "AGENTS.md").write_text("RULE-1")
    (bench.root / "a.txt").write_text("TEXT-A")
    (bench.root / "secret.txt").write_text("HIDDEN")
    bench.play("See @a.txt, @secret.txt and @nobody.")
    bench.play("More.")
    text = "\n".join(m.content for m in bench.last_messages)
    assert text.count("RULE-1") == 1 and text.count("TEXT-A") == 1
    assert "HIDDEN" not in text
    assert bench.last_messages[0].content == "You help."


def test_an_overflow_that_the_server_reports_leads_to_a_shorter_prompt_or_an_error(tmp_path: Path):
    overflow = ContextOverflow("too long", prompt_tokens=40_000, context_tokens=32_768)
    model = ScriptedModel(*[[overflow]] * 20)
    end = end_of(Bench(tmp_path, model).play())
    assert end.outcome == "error" and "context" in (end.error or "")
    assert len(model.requests) <= 4


def test_a_session_that_is_not_being_kept_is_told_once_and_within_the_turn(tmp_path: Path):
    bench = Bench(
        tmp_path, ScriptedModel(call("read", path="f"), *[say("ok")] * 3), [FakeTool("read", parameters=PATH)]
    )
    lost = ErrorRaised("this session is not being kept: No space left on device")
    with full_disk(bench.log):
        events = bench.play()
        assert type(events[0]) is TurnStarted and type(events[-1]) is TurnFinished
        assert of_type(events, ErrorRaised) == [lost]
        assert of_type(bench.play(), ErrorRaised) == []
    assert of_type(bench.play(), ErrorRaised) == []


def test_a_reply_that_fills_the_context_half_way_keeps_what_its_calls_did(tmp_path: Path):
    overflow = ContextOverflow("the context size is exceeded")
    done = [*calls(("look", "{}"), text="I look. ")[:-1], ToolCallBegun(1, "", "look"), overflow]
    model = ScriptedModel(done, say("Seen."))
    tool = FakeTool("look", lambda: "a tree")
    bench = Bench(tmp_path, model, [tool])
    events = bench.play()
    assert end_of(events).outcome == "done" and end_of(events).text == "Seen."
    assert_valid_history(bench.last_messages)
    assert [m.content for m in bench.last_messages if m.role == "tool"] == ["a tree", CUT_CALL]
    assert len(tool.contexts) == 1

"""What of a reply is its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointcode_local.engine.types import AnswerText, ReasoningText, ToolCall, ToolCallBegun, ToolCallReady
from pointcode_local.replies import MAX_CALLS, MAX_SAME_CALLS, Reply
from tests.app.agents import Bench, assert_valid_history, end_of
from tests.fakes import FakeTool, ScriptedModel, calls, say


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("I should look.\n</think>\n\nYes.", "Yes."),
        ("hm</think>Yes.", "Yes."),
        ("The tag `</think>` ends a thought.", "The tag `</think>` ends a thought."),
        ("Write <think>a</think> first.", "Write <think>a</think> first."),
        ("Yes.", "Yes."),
    ],
)
def test_thinking_that_came_as_text_is_no_answer_and_tags_that_it_speaks_of_stay(written: str, answer: str):
    reply = Reply(set())
    for character in written:
        reply.take(AnswerText(character))
    assert reply.text == answer


def test_where_thoughts_came_apart_all_of_the_text_is_answer():
    reply = Reply(set())
    reply.take(ReasoningText("hm"))
    reply.take(AnswerText("Close it with </think> then."))
    assert (reply.text, reply.reasoning) == ("Close it with </think> then.", "hm")


def made(*arguments: str) -> Reply:
    """A reply that calls `read` with each of these arguments, until it is stopped."""
    reply = Reply(set())
    for index, written in enumerate(arguments):
        reply.take(ToolCallBegun(index, "", "read"))
        reply.take(ToolCallReady(index, ToolCall("", "read", written)))
        if reply.is_stuck:
            break
    return reply


def test_a_reply_that_makes_the_same_call_again_and_again_is_stopped():
    assert len(made(*["{}"] * 50).calls) == MAX_SAME_CALLS
    assert not made(*['{"n": 1}', '{"n": 2}'] * 50).is_stuck
    assert len(made(*(f'{{"n": {n}}}' for n in range(999))).calls) == MAX_CALLS


def test_of_a_stopped_reply_the_calls_that_were_made_count(tmp_path: Path):
    steps = calls(*[("look", "{}")] * 40), say("Seen.")
    tool = FakeTool("look")
    bench = Bench(tmp_path, ScriptedModel(*steps), [tool])
    assert end_of(bench.play()).text == "Seen."
    assert len(tool.contexts) == MAX_SAME_CALLS
    assert_valid_history(bench.last_messages)

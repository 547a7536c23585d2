"""What of a reply is its answer."""

from __future__ import annotations

import pytest

from pointcode_local.engine.types import AnswerText, ReasoningText
from pointcode_local.replies import Reply


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

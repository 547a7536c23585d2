"""A model that only repeats itself is stopped, whatever it repeats and however its text is cut into pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.engine.types import ToolCallArguments, ToolCallBegun
from pointcode_local.events import AssistantMessage, ToolFinished, UsageChanged
from pointcode_local.repetition import ANSWER_WINDOW, COUNTING_WINDOW, MAX_PERIOD, Repetition
from pointcode_local.second_chances import STUCK
from tests.app.agents import Bench, end_of, of_type
from tests.fakes import FakeTool, ScriptedModel, Step, say

PROSE = "".join(f"Sentence {n} says something else than sentence {n - 1}. " for n in range(200))

HEAD = "import unittest\n\n\nclass FTest(unittest.TestCase):\n    def test_f(self):\n"


def fed(text: str, sizes: list[int]) -> int:
    watch, at, turn = Repetition(ANSWER_WINDOW), 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        if superfluous := watch.feed(text[at : at + size]):
            return superfluous
        at, turn = at + size, turn + 1
    return 0


@given(st.text(min_size=1, max_size=MAX_PERIOD), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_any_endless_repetition_is_noticed(unit: str, sizes: list[int]) -> None:
    superfluous = fed(PROSE + unit * (2 * ANSWER_WINDOW // len(unit) + 60), sizes)
    assert ANSWER_WINDOW - 3 * MAX_PERIOD <= superfluous < ANSWER_WINDOW


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        "".join(f"x{n} = {n}\n" for n in range(2000)),
        "a line that comes again\n" * 20 + PROSE,
        "-" * 800 + PROSE,
        "\n".join(f"| {n} | 0 | 0 | 0 |" for n in range(500)),
    ],
)
def test_texts_that_go_on_are_left_alone(text: str) -> None:
    assert fed(text, [7]) == 0


@given(st.integers(0, 10**6), st.integers(1, 99), st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_counting_without_end_is_noticed_where_that_is_asked_for(first: int, step: int, sizes: list[int]) -> None:
    lines = [f"    self.assertEqual(f({first + step * n}), {n})\n" for n in range(400)]
    text, watch, at = HEAD + "".join(lines), Repetition(COUNTING_WINDOW, counts=True), 0
    superfluous = 0
    for turn in range(len(text)):
        size = sizes[turn % len(sizes)]
        if superfluous := watch.feed(text[at : at + size]):
            at += size
            break
        at += size
    assert 0 < superfluous < COUNTING_WINDOW
    kept = text[:at][:-superfluous]
    assert kept.startswith(HEAD) and kept.count("assertEqual") < 20


def test_a_stuck_answer_ends_the_turn_and_does_not_stay_in_the_history(tmp_path: Path) -> None:
    pieces = [f"Here it is: {PROSE}"] + ["# Hello, World!\n"] * 5000
    bench = Bench(tmp_path, ScriptedModel(say(*pieces), say("And now?")))
    events = bench.play()
    assert end_of(events).outcome == "limit" and end_of(events).error == STUCK
    (message,) = of_type(events, AssistantMessage)
    assert message.text.startswith("Here it is") and len(message.text) < len(PROSE) + 1500
    assert not of_type(events, UsageChanged)
    assert end_of(bench.play("Go on.")).text == "And now?"


def test_stuck_arguments_of_a_call_are_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    ran: list[str] = []
    tool = FakeTool("write", lambda content: ran.append(content), access="write")
    pieces = ['{"content": "', *["0\\n"] * 40_000]
    endless: Step = [ToolCallBegun(0, "", "write"), *(ToolCallArguments(0, piece) for piece in pieces)]
    bench = Bench(tmp_path, ScriptedModel(endless, say("Sorry.")), [tool])
    events = bench.play()
    (result,) = of_type(events, ToolFinished)
    assert result.is_error and "only repeated itself" in result.text and ran == []
    assert end_of(events).text == "Sorry."
    assert sum(len(call.arguments) for m in bench.last_messages for call in m.tool_calls) < 1000

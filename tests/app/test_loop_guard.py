"""When calls count as going in circles."""

from __future__ import annotations

import pytest

from pointcode_local.loop_guard import LoopGuard


def verdicts(steps: str) -> list[str]:
    """Each letter is one call with one result."""
    guard = LoopGuard()
    return [guard.judge([("read", {"path": letter}, letter)]) for letter in steps]


@pytest.mark.parametrize("steps", ["AAAA", "ABABA", "ABCABCABCA", "ABCDABCDABCDA", "XYZAAAA", "XABABA"])
def test_a_circle_is_warned_about_and_then_stopped(steps: str):
    assert verdicts(steps)[-2:] == ["warn", "stop"]
    assert set(verdicts(steps)[:-2]) == {"go on"}


@pytest.mark.parametrize("steps", ["ABCDEFG", "AABBCCDD", "ABCABD", "AABAAB", "ABACAD"])
def test_other_repetitions_go_on(steps: str):
    assert set(verdicts(steps)) == {"go on"}


def test_a_warning_that_is_heeded_is_forgotten():
    assert verdicts("AAABAAAB")[-1] != "stop"


def test_another_order_of_arguments_is_the_same_call_and_another_result_is_not():
    guard = LoopGuard()
    calls = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]
    assert [guard.judge([("t", c, "same")]) for c in calls][-1] == "warn"
    guard = LoopGuard()
    assert [guard.judge([("t", {}, str(i))]) for i in range(20)] == ["go on"] * 20

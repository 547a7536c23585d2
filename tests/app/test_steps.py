"""A prompt of several steps is cut for small models, and orders to change files are told from questions."""

import pytest

from pointcode_local.steps import next_step, split_steps, wanted_call


@pytest.mark.parametrize(
    ("prompt", "steps"),
    [
        ("Create a.py that prints 1. Then edit it: 2.", ["Create a.py that prints 1.", "Edit it: 2."]),
        ("Make a file x.txt, then change it to y", ["Make a file x.txt", "Change it to y"]),
        ("First write main.py now. Second, edit main.py again.", ["Write main.py now.", "Edit main.py again."]),
        ("Create hello.py that prints hi, then run it.", ["Create hello.py that prints hi", "Run it."]),
        ("First compile a.c with gcc, then run it.", ["Compile a.c with gcc and run it."]),
        ("I need a file b.md. After you made it, change its title.", ["I need a file b.md.", "Change its title."]),
    ],
)
def test_steps_are_told_one_by_one(prompt: str, steps: list[str]) -> None:
    assert split_steps(prompt) == steps


@pytest.mark.parametrize("prompt", ["Explain what happens then.", "Do this:\n- a then b c d\n", "If a then b else c"])
def test_other_prompts_stay_whole(prompt: str) -> None:
    assert split_steps(prompt) == [prompt]


def test_the_next_step_shows_the_files_that_changed() -> None:
    assert next_step("Edit it.", {"a.py": "x = 1\n"}) == "a.py now contains:\n```\nx = 1\n```\n\nEdit it."


TOOLS = frozenset({"read", "write", "edit"})


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("Create a.py", "write"),
        ("I need a file z", "write"),
        ("please rename x to y", "required"),
        ("Could you fix the bug?", "required"),
        ("What does a.py do?", "auto"),
        ("Explain the change in b.py", "auto"),
        ("Write a poem", "auto"),
    ],
)
def test_plain_orders_ask_for_a_call_and_questions_do_not(step: str, call: str) -> None:
    assert wanted_call(step, TOOLS) == call


def test_nothing_is_asked_for_that_is_not_offered() -> None:
    assert wanted_call("Create a.py", frozenset()) == "auto"

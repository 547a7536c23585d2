"""What an order names letter by letter must stand in the file afterwards."""

from __future__ import annotations

import pytest

from pointcode_local.asked import first_line, new_parameter, unmet
from pointcode_local.focus import function_part, with_parameter
from pointcode_local.turnbench.tasks import FAMILIES

GREET = "def greet(name):\n    return name\n"


@pytest.mark.parametrize(
    ("order", "text", "lacks"),
    [
        ("Add a parameter greeting to greet in a.py", GREET, "a.py has no parameter greeting"),
        ("Add a parameter for the greeting to greet in a.py", GREET, ""),
        ("Give greet a second parameter `title`", GREET, "a.py has no parameter title"),
        ("Add a parameter name", GREET, ""),
        ("Add a function shout(text) to a.py", GREET, "a.py has no function shout"),
        ("Add a function that shouts", GREET, ""),
        ("Create a.py with a class Counter", GREET, "a.py has no class Counter"),
        ('Create a.md with the title "My Guide"', "# Guide\n", 'the title "My Guide" is missing in a.py'),
        ('Create a.md with the title "My Guide"', "# my guide\n", ""),
        ("Make a.csv with the header name, age", "Ada,36\n", "the header name, age is missing in a.py"),
        ("Make a.csv with the header name,age", '"name", "age"\nAda,36\n', ""),
        ("Fix the bug", GREET, ""),
    ],
)
def test_what_is_missing_is_told(order: str, text: str, lacks: str) -> None:
    assert unmet(order, "a.py", text) == lacks


def test_no_right_solution_of_our_tasks_lacks_anything() -> None:
    for task in (task for tasks in FAMILIES.values() for task in tasks):
        for name, body in task.solution.files.items():
            assert not body or unmet(task.prompt, name, body.decode("utf-8", "replace")) == "", task.name


def test_a_table_begins_with_the_header_that_is_spelled_out() -> None:
    assert first_line("Make a.csv with the header name, age and two rows", "a.csv") == "name,age\n"
    assert first_line("Make a.csv with the header name, age", "a.txt") == first_line("Make a.csv", "a.csv") == ""


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ('Add a parameter greeting with the default "Hello" to greet', ("greeting", '"Hello"')),
        ("Give f a parameter n (default 2)", ("n", "2")),
        ("Give f a parameter on, default is True", ("", "")),
        ("Give f a parameter n with a default", ("n", "")),
        ("Rename the parameter n", ("", "")),
    ],
)
def test_a_new_parameter_and_its_default_are_read(order: str, found: tuple[str, str]) -> None:
    assert new_parameter(order) == found


@pytest.mark.parametrize(
    ("code", "head"),
    [
        (GREET, 'def greet(name, title="Dr"):\n'),
        ("async def greet() -> str:\n    pass\n", 'async def greet(title="Dr") -> str:\n'),
        ("def greet(a, b=2):\n    pass\n", 'def greet(a, b=2, title="Dr"):\n'),
        ("def greet(*names):\n    pass\n", None),
        ("def greet(\n    name,\n):\n    pass\n", None),
        ("def greet(title):\n    pass\n", None),
    ],
)
def test_the_new_beginning_of_a_function_with_a_parameter_more(code: str, head: str | None) -> None:
    part = function_part("a.py", code, ["greet"])
    assert part is not None
    longer = with_parameter(part, "title", '"Dr"')
    assert (longer.head if longer else None) == head

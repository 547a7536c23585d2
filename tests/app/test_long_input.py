"""Text of any length and monotony is looked through in one pass: each of these took minutes or never ended."""

from __future__ import annotations

import pytest

from pointcode_local import commandlines
from pointcode_local.commandlines import given_command
from pointcode_local.failing import asks_to_fix, is_about_failing_tests
from pointcode_local.orders import read_order
from pointcode_local.steps import split_steps
from pointcode_local.tools.guarded_text import GuardedText
from pointcode_local.tui.markdown import _OPENING  # pyright: ignore[reportPrivateUsage]

N = 300_000


def test_a_prompt_of_any_length_is_understood() -> None:
    assert read_order("x" + " " * N + "y", []).kind == "question"
    assert given_command("run ls" + " " * N + "x", lambda word: word == "ls").startswith("ls ")
    assert len(split_steps("do one thing" + " " * N + "x")) == 1
    assert not asks_to_fix("make " * N)
    assert not is_about_failing_tests("fix " + "test " * N)
    assert is_about_failing_tests("fix " + "test " * 10 + "failing")
    steps = split_steps("Write the file a.py. Then change the file b.py")
    assert steps == ["Write the file a.py.", "Change the file b.py"]


@pytest.mark.parametrize("body", ["-" * N, " " * N, "+" + "a" * N, "+" + " export" * (N // 7)])
def test_a_line_of_any_length_of_a_guarded_file_is_blanked(body: str) -> None:
    blank = GuardedText(lambda path: path == ".env")
    shown = blank(f"diff --git a/.env b/.env\n@@ -1,2 +1,2 @@\n{body}\n+KEY = value\n")
    assert "value" not in shown and shown.endswith("+KEY = [secret]\n")


def test_a_line_of_fences_is_told_from_an_opening() -> None:
    assert _OPENING.match("`" * N) is None and _OPENING.match("```py\n") is not None


def test_a_package_file_nested_without_end_names_no_command() -> None:
    assert commandlines.test_command(["package.json"], lambda _: "[" * N) == ""

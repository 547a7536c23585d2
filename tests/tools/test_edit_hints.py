"""A text that was copied wrongly is refused with what is wrong with it."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from pointcode_local.tools.syntax import new_faults

from .tool_kit import Bench

SOURCE = (
    "class A:\n    def f(self):\n        s = 'café'\n        return s < 1 and 2\n\n    def g(self):\n        pass\n"
)


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("3\t        s = 'café'\n4\t        return s < 1 and 2", "line numbers"),
        ("     2→    def f(self):\n     3→        s = 'café'", "line numbers"),
        ("        s = 'café'\\n        return s < 1 and 2", "escaped once too often"),
        ("        s = \\'café\\'", "escaped once too often"),
        ("return s &lt; 1 and 2", "HTML entities"),
        ("return s\u200b < 1", "invisible characters"),
        ("s = 'cafe\u0301'", "another Unicode form"),
        ("return s < 1 and 2\n    def g(self):", "blank lines"),
        ("return s  <  1", "blanks"),
    ],
)
def test_what_models_copy_wrongly_is_named_and_nothing_is_changed(tmp_path: Path, old: str, words: str) -> None:
    bench = Bench(tmp_path)
    bench.put("a.py", SOURCE)
    result = bench.edit("a.py", (old, "pass"))
    assert result.is_error and words in result.text
    assert bench.get("a.py").decode() == SOURCE


def test_where_the_edits_before_would_have_changed_the_text_it_is_said_that_they_did_not(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put("a.py", SOURCE)
    text = bench.edit("a.py", ("pass", "return 3"), ("return 3", "return 4"), ("no such", "x")).text
    assert "edit 3 of 3" in text and "Nothing was changed" in text
    assert "merge them into one" in bench.edit("a.py", ("s = 'café'", "s = 1"), ("s = 'café'", "s = 2")).text
    assert bench.get("a.py").decode() == SOURCE


def test_what_no_known_mistake_explains_gets_no_hint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put("a.py", SOURCE)
    text = bench.edit("a.py", ("s = 'tea'", "pass")).text
    assert text.startswith("`old` was not found in the file: \"s = 'tea'\"\nThe nearest lines are")


BROKEN = SOURCE.replace("        s =", "s =")


def test_indentation_that_fits_nothing_is_a_syntax_error_of_python(tmp_path: Path) -> None:
    (fault,) = new_faults(PurePath("a.py"), SOURCE, BROKEN)
    assert (fault.line, fault.what) == (3, "expected an indented block after function definition on line 2")
    assert new_faults(PurePath("a.py"), BROKEN, BROKEN + "x = 1\n") == []
    assert new_faults(PurePath("a.py"), "", SOURCE) == []
    bench = Bench(tmp_path)
    bench.put("a.py", SOURCE)
    assert "unexpected indent" in bench.edit("a.py", ("s = 'café'", "s = 'tea'\nt = s")).text


def test_what_another_version_of_python_may_accept_is_no_fault() -> None:
    for text in ("print 'x'\n", "x = t'{a}'\n", "try:\n    a\nexcept A, B:\n    b\n", "return 1\n"):
        assert all("indent" not in fault.what for fault in new_faults(PurePath("a.py"), "a = 1\n", text))

"""What a file defines, counted and named for a model that cannot count."""

from __future__ import annotations

import pytest

from pointcode_local.counted import asks_for_names, counted


@pytest.mark.parametrize(
    ("question", "is_one"),
    [
        ("How many functions are in util.py, and what are their names?", True),
        ("How many tests are in tests/test_cart.py?", True),
        ("Which methods does Cart have?", True),
        ("List the classes of a.py", True),
        ("What does the function f do?", True),  # the names do no harm
        ("What is 2 + 2?", False),
        ("Explain a.py", False),
    ],
)
def test_questions_about_what_there_is_are_known(question: str, is_one: bool) -> None:
    assert asks_for_names(question) == is_one


def test_functions_classes_methods_and_tests_are_counted_apart() -> None:
    method = "    def {}(self):\n        pass\n\n"
    text = f"def f():\n    def inner():\n        pass\n\n\nclass A:\n{method.format('m')}{method.format('n')}"
    assert counted("a.py", text) == (
        "a.py has 1 function: f. a.py has 1 class: A. The class A in a.py has 2 methods: m, n."
    )
    text = f"class T(TestCase):\n{method.format('setUp')}{method.format('test_a')}{method.format('test_b')}"
    assert counted("t.py", text).startswith("t.py has 2 tests: test_a, test_b. t.py has 1 class: T.")
    assert counted("a.js", "function f() {}\nfunction g() {}\n") == "a.js has 2 functions: f, g."
    assert counted("a.txt", "def f") == counted("a.py", "x = 1\n") == ""

"""The one function that a failing check calls, and what it forgets."""

from __future__ import annotations

import pytest

from pointcode_local.failing import failed_check
from pointcode_local.focus import called_names, function_part, unused_names

CART = (
    "import x\n\n\nclass Cart:\n    def add(self, n):\n        pass\n\n"
    "    def total(self):\n        return sum(1 for n in x)\n"
)
UNITTEST = (
    'FAIL: test_total\nTraceback (most recent call last):\n  File "/t.py", line 3, in test_total\n'
    "    self.assertEqual(cart.total(), 2)\n    ^^^^^^\nAssertionError: 1 != 2\n"
)
PYTEST = "    def test_f():\n>       assert cart.total() == 2\nE       assert 1 == 2\nE        +  where 1 = total()\n"


@pytest.mark.parametrize(
    ("output", "check", "error"),
    [
        (UNITTEST, "self.assertEqual(cart.total(), 2)", "AssertionError: 1 != 2"),
        (PYTEST, "assert cart.total() == 2", "assert 1 == 2"),
        ("NameError: name 'x' is not defined", "", "NameError: name 'x' is not defined"),
        ("FAILED", "", ""),
    ],
)
def test_the_line_that_failed_and_its_error_are_found(output: str, check: str, error: str) -> None:
    assert failed_check(output) == (check, error)


def test_the_only_function_of_that_name_is_the_part_and_begins_as_before() -> None:
    part = function_part("cart.py", CART, called_names("self.assertEqual(cart.total(), 2)"))
    assert part is not None and CART.splitlines(keepends=True)[part.first : part.last] == part.text.splitlines(True)
    assert part.head == "    def total(self):\n" and part.text.endswith("in x)\n")


@pytest.mark.parametrize(
    ("name", "text", "called"),
    [
        ("cart.py", CART, ["other"]),
        ("cart.py", CART, ["add", "total"]),
        ("cart.py", CART, []),
        ("cart.txt", CART, ["total"]),
        ("cart.py", CART.replace("import x\n", "import x\f\n"), ["total"]),
    ],
)
def test_what_is_not_clear_is_no_part(name: str, text: str, called: list[str]) -> None:
    assert function_part(name, text, called) is None


def test_a_javascript_function_is_found_too() -> None:
    part = function_part("a.js", "const y = 1;\n\nfunction f(a) {\n  return a;\n}\n", ["f"])
    assert part is not None and (part.first, part.last) == (2, 5)


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("    def total(self):\n        return sum(price(n) for n, count in self.items)\n", ["count"]),
        ("def f(a, b=1, _c=2):\n    return a\n", ["b"]),
        ("def f(a):\n    global x\n    x = a\n", []),
        ("def f(:\n", []),
    ],
)
def test_what_a_function_binds_and_never_uses_is_found(code: str, unused: list[str]) -> None:
    assert unused_names(code) == unused

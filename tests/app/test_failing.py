"""Tests that fail: which files an order to mend them is about."""

from __future__ import annotations

import pytest

from pointcode_local.failing import blamed, is_about_failing_tests, subjects

NAMES = [
    "shop/__init__.py",
    "shop/cart.py",
    "tests/test_cart.py",
    "src/slug.ts",
    "test/slug.test.ts",
    "stack.c",
    "test_stack.c",
]


@pytest.mark.parametrize(
    ("test", "body", "found"),
    [
        ("tests/test_cart.py", "import pytest\nfrom shop.cart import Cart\n", ["shop/cart.py"]),
        ("tests/test_cart.py", "import shop\nimport os.path\n", ["shop/__init__.py"]),
        ("test/slug.test.ts", 'import { slugify } from "../src/slug.js";\n', ["src/slug.ts"]),
        ("test/slug.test.ts", "import test from 'node:test';\n", []),
        ("test_stack.c", '#include <stdio.h>\n#include "stack.h"\n', ["stack.c"]),
    ],
)
def test_what_a_test_tests_is_what_it_imports(test: str, body: str, found: list[str]):
    assert subjects(test, body, NAMES) == found


def test_the_file_in_which_it_broke_is_blamed_before_those_that_the_test_imports():
    texts = {"tests/test_cart.py": "from shop.cart import Cart\n"}
    output = "tests/test_cart.py:8: in test_total\nshop/__init__.py:3: KeyError\nFAILED tests/test_cart.py::test_total"
    assert blamed(output, NAMES, texts.get) == (["tests/test_cart.py"], ["shop/__init__.py", "shop/cart.py"])
    assert blamed("FAILED tests/test_cart.py::test_total", NAMES, texts.get)[1] == ["shop/cart.py"]
    assert blamed("ok", NAMES, texts.get) == ([], [])


@pytest.mark.parametrize(
    ("order", "is_one"),
    [
        ("The test test_total fails. Fix it.", True),
        ("Fix the failing tests", True),
        ("Make the tests pass", True),
        ("Fix the spelling in the tests", False),
        ("Why does the test fail?", False),
    ],
)
def test_an_order_to_mend_failing_tests_is_recognised(order: str, is_one: bool):
    assert is_about_failing_tests(order) == is_one

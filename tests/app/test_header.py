"""The head of a Python file that a model wrote again without it."""

from __future__ import annotations

import pytest

from pointcode_local.header import with_head

BEFORE = '"""What it is."""\n\nimport os\nfrom json import loads\n\n\ndef f():\n    return loads(os.sep)\n'
BODY = "def f():\n    return 1, loads(os.sep)\n"


def test_the_docstring_and_the_imports_come_back_before_the_new_text():
    assert with_head(BEFORE, BODY, "return 1 too") == BEFORE.replace("return ", "return 1, ")


def test_a_form_feed_in_the_head_ends_no_line():
    before = BEFORE.replace("it is.", "it\x0c is.").replace("\n\n\n", "\n\x0c\n")
    assert with_head(before, BODY, "return 1 too") == before.replace("return ", "return 1, ")


def test_an_import_that_the_new_text_brought_stays():
    after = with_head(BEFORE, f"import re\nimport os\n\n{BODY}", "use re")
    assert after.startswith('"""What it is."""\n\nimport os\nfrom json import loads\nimport re\n\n\ndef f')


@pytest.mark.parametrize(
    ("after", "order"),
    [
        ("def f():\n    return 1\n", "remove the docstring"),  # it was meant so, and no import is missed
        (f'"""New."""\n\nimport os\nfrom json import loads\n\n\n{BODY}', "say what is new"),
        ('"""New."""\n\n\ndef f():\n    return 1\n', "return 1"),  # what is not used need not be imported
        ("def f(:\n", "break it"),
        ('"""New."""\n\n\ndef f(loads, os):\n    return loads(os)\n', "pass them in"),
    ],
)
def test_a_text_that_lost_nothing_is_left_as_it_is(after: str, order: str):
    assert with_head(BEFORE, after, order) == after


def test_an_import_that_is_still_used_comes_back_even_where_the_order_is_to_remove_something():
    assert "import os\nfrom json import loads" in with_head(BEFORE, BODY, "remove the docstring")

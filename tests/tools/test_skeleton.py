"""Python source without what no outline shows: the same definitions in the same places, for any text."""

from __future__ import annotations

import ast
import asyncio.base_events
import inspect
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools import tags
from pointcode_local.tools.skeleton import without_bodies

SOURCE = b'''"""A module.

def in_text():
    """
from os import (path,
    sep)
import json

class A:
    """def also_in_text():
    x"""
    def one(self, a: dict = {"(": ")"}) -> None:  # why
        # a comment
        text = """
not indented: """ + \'\'\'
def neither():
\'\'\'
        return {
            1: 2
}

    @property
    def two(self): return 1

    async def three(
        self,
        b=(1, (2, 3)),
    ):
        if b:
            return "\\""

        return '#' # "

    x = 'def four(): pass'
\tdef odd(self): pass
def five():\r
    return 1\r
def six():
    return 1'''


def test_imports_and_bodies_become_empty_lines() -> None:
    source = b"import os\nfrom a import (b,\n  c)\ndef f(a,\n      b):\n    y = 1\n\n    return y\nclass B: pass\n"
    text, bare = without_bodies(source)
    assert text == b"\nfrom a import (b,\n  c)\ndef f(a,\n      b):\n\n\n\nclass B: pass\n"
    assert bare == b"\nfrom a import (b,\n  c)\ndef f(  \n       ):\n\n\n\nclass B: pass\n"


def whole(data: bytes) -> tuple[bytes, bytes]:
    return data, data


def places(data: bytes) -> list[tuple[str, int, int]]:
    return [(tag.name, tag.line, tag.depth) for tag in tags.definitions(data, "python")]


def test_the_definitions_are_those_of_the_whole_source(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [SOURCE, *(inspect.getsource(module).encode() for module in (ast, json, asyncio.base_events, inspect))]
    brief = [places(data) for data in sources]
    monkeypatch.setattr(tags, "without_bodies", whole)
    assert brief == [places(data) for data in sources]


LINES = st.sampled_from(
    ["def f(a):", "    def g(", "):", "    x = '''", "'''", '"""', "    return (", ")", "# '", "\\", ""]
)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=300), st.lists(LINES, max_size=12).map(lambda lines: "\n".join(lines).encode())))
def test_no_line_moves_whatever_the_text(data: bytes) -> None:
    left, bare = without_bodies(data)
    assert [len(line) for line in bare.split(b"\n")] == [len(line) for line in left.split(b"\n")]
    assert left.count(b"\n") == data.count(b"\n")
    for line, before in zip(left.split(b"\n"), data.split(b"\n"), strict=True):
        assert line in (b"", before)

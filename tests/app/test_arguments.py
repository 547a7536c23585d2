"""Arguments as local models write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.arguments import ArgumentError, parse_arguments

WRITTEN = {
    "plain": ('{"path": "a"}', {"path": "a"}),
    "nothing": ("", {}),
    "null": ("null", {}),
    "raw control characters": ('{"path": "a\n\tb\r"}', {"path": "a\n\tb\r"}),
    "a bad escape": (r'{"pattern": "\d+\.x"}', {"pattern": r"\d+\.x"}),
    "good escapes stay": (r'{"a": "\\d\n\u00e9\""}', {"a": '\\d\né"'}),
    "a trailing comma": ('{"path": "a,}", }', {"path": "a,}"}),
    "Python literals": ("{'path': 'a', 'all': True, 'n': None}", {"path": "a", "all": True, "n": None}),
    "two layers": (json.dumps('{"path": "a"}'), {"path": "a"}),
    "a fence": ('```json\n{"path": "a"}\n```', {"path": "a"}),
    "a list of one": ('[{"path": "a"}]', {"path": "a"}),
}


@pytest.mark.parametrize(("written", "want"), WRITTEN.values(), ids=WRITTEN.keys())
def test_what_is_clearly_meant_is_understood(written: str, want: dict[str, Any]):
    assert parse_arguments(written) == want


@pytest.mark.parametrize("written", ['{"path": "a', "{", '"path"', "[1, 2]", "path=a", "7", "{'a': open('x')}"])
def test_what_is_cut_or_no_object_is_an_error(written: str):
    with pytest.raises(ArgumentError):
        parse_arguments(written)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.lists(st.text())))
def test_valid_json_comes_through_unchanged(value: dict[str, Any]):
    assert parse_arguments(json.dumps(value)) == value


@given(st.text(), st.integers(min_value=1))
def test_no_proper_beginning_is_completed(content: str, n: int):
    whole = json.dumps({"path": "a", "content": content})
    with pytest.raises(ArgumentError):
        parse_arguments("{" + whole[1 : 1 + n % (len(whole) - 1)])


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_arguments_nested_without_end_are_refused_and_not_walked(depth: int):
    with pytest.raises(ArgumentError):
        parse_arguments('{"path": ' + "[" * depth + "]" * depth + "}")

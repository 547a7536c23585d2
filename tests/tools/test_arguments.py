"""Arguments as models write them, and what is said when they cannot be used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.runner import _fitted
from pointcode_local.tools.arguments import find_tool
from pointcode_local.tools.base import Tool
from pointcode_local.tools.registry import SMALL_MENU, build_tools

TOOLS = {tool.name: tool for tool in build_tools().tools}


def described(tool: Tool) -> dict[str, object]:
    """The tool as chat templates and servers want it."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def parsed(name: str, raw: str) -> Any:
    return _fitted(TOOLS[name], raw)


@pytest.mark.parametrize(
    ("tool", "raw", "wanted"),
    [
        ("read", '{"filePath": "a"}', {"path": "a"}),
        ("read", '{"file_path": "a", "offset": "2", "limit": 3.0}', {"path": "a", "offset": 2, "limit": 3}),
        ("read", '"{\\"path\\": \\"a\\"}"', {"path": "a"}),
        ("read", '```json\n{"path": "a"}\n```', {"path": "a"}),
        ("read", '{"path": "a", "unknown": 1, "limit": null}', {"path": "a"}),
        ("write", '{"path": "a", "content": "x\n\ty\r\n"}', {"path": "a", "content": "x\n\ty\r\n"}),
        ("write", '{"path": "a", "content": 5}', {"path": "a", "content": "5"}),
        (
            "shell",
            '{"cmd": "ls", "timeout": "5", "background": "False"}',
            {"command": "ls", "timeout_s": 5, "background": False},
        ),
        ("grep", '{"query": "x", "ignore_case": "true"}', {"pattern": "x", "ignore_case": True}),
        (
            "edit",
            '{"path": "a", "old_string": "x", "new_string": "y"}',
            {"path": "a", "edits": [{"old": "x", "new": "y"}]},
        ),
        ("edit", '{"path": "a", "edits": {"old": "x", "new": ""}}', {"path": "a", "edits": [{"old": "x", "new": ""}]}),
        (
            "edit",
            '{"path": "a", "edits": "[{\\"old\\": \\"x\\", \\"new\\": \\"y\\"}]"}',
            {"path": "a", "edits": [{"old": "x", "new": "y"}]},
        ),
        ("edit", '{"file": "a", "oldText": "x", "newText": "x"}', {"path": "a", "edits": [{"old": "x", "new": "x"}]}),
        ("todo", '{"todos": [{"content": "a", "status": "completed"}]}', {"items": [{"text": "a", "status": "done"}]}),
        ("list", "", {}),
    ],
)
def test_near_misses_are_understood(tool: str, raw: str, wanted: dict[str, Any]) -> None:
    assert parsed(tool, raw) == wanted


@pytest.mark.parametrize(
    ("tool", "raw", "cure"),
    [
        ("read", "{}", "path is missing"),
        ("read", '{"path": ["a"]}', "path must be a string"),
        ("read", '{"path": "a", "offset": "two"}', "whole number"),
        ("read", '{"path": "a", "offset": true}', "whole number"),
        ("read", '{"path": "a"', "not valid JSON"),
        ("read", "[1]", "must be one JSON object, got a number"),
        ("edit", '{"path": "a", "edits": [{"old": "x"}]}', "edits[0].new is missing"),
        ("edit", '{"path": "a", "edits": "x"}', "list"),
        ("grep", '{"pattern": "x", "literal": "maybe"}', "true or false"),
        ("todo", '{"items": [{"text": "a", "status": "lost"}]}', "pending, in_progress, done"),
        ("read", "[" * 100_000, "read(path: string"),
    ],
)
def test_an_error_says_the_cure(tool: str, raw: str, cure: str) -> None:
    said = parsed(tool, raw)
    assert isinstance(said, str) and cure in said and f"{tool}(" in said and "Traceback" not in said


def test_an_unknown_tool_is_answered_with_the_names_there_are() -> None:
    said = find_tool(TOOLS.values(), "read_files")
    assert isinstance(said, str) and all(name in said for name in TOOLS)
    assert find_tool(TOOLS.values(), " Read ") is TOOLS["read"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: (
        st.lists(x, max_size=3)
        | st.dictionaries(
            st.sampled_from(["path", "old", "new", "edits", "items", "text", "status", "file", "x"]), x, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(TOOLS)), JSON | st.text(max_size=20))
def test_whatever_is_written_the_answer_is_arguments_or_an_error_text(name: str, value: Any) -> None:
    raw = value if isinstance(value, str) else json.dumps(value)
    result = parsed(name, raw)
    assert isinstance(result, (dict, str))
    if isinstance(result, dict):
        assert set(TOOLS[name].parameters["required"]) <= set(result)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]


def test_the_menus_are_short_fixed_and_complete() -> None:
    def size(tools: tuple[Tool, ...]) -> int:
        return len(json.dumps([described(tool) for tool in tools])) // 4

    small, full = build_tools(small_model=True).tools, build_tools().tools
    assert tuple(tool.name for tool in small) == SMALL_MENU and size(small) < 900
    assert [tool.name for tool in full] == (
        [
            "read",
            "write",
            "edit",
            "patch",
            "outline",
            "replace_symbol",
            "glob",
            "grep",
            "list",
            "shell",
            "shell_output",
            "shell_kill",
            "todo",
            "ask",
        ]
    )
    assert size(full) < 1500
    assert [described(tool) for tool in full] == [described(tool) for tool in build_tools().tools]

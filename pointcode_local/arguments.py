"""A tool call's arguments as local models write them, read leniently.

What is mended keeps every character of every string: raw control characters, bad escapes, trailing commas, Python
literals, a second layer of JSON. What is cut short is never completed.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from pointcode_local.tools.arguments import kind_of

MAX_DEPTH = 100  # of lists and objects in each other; what walks them later has no deep stack


class ArgumentError(ValueError):
    """The arguments cannot be used; the text tells the model what to do."""


def parse_arguments(written: str) -> dict[str, Any]:
    """The JSON object that the model meant; raises ArgumentError when it is not one."""
    text = written.strip()
    if not text or text == "null":
        return {}
    value = parse_json(text)
    if isinstance(value, str):  # a second layer of JSON
        value = parse_json(value)
    if isinstance(value, list) and len(value) == 1:  # type: ignore[reportUnknownArgumentType]
        value = value[0]  # type: ignore[reportUnknownVariableType]
    if not isinstance(value, dict):
        raise ArgumentError(f"the arguments must be one JSON object, got {kind_of(value)}")
    if _is_deep(value):  # type: ignore[reportUnknownArgumentType]
        raise ArgumentError(f"the arguments are nested more than {MAX_DEPTH} deep")
    return {str(key): item for key, item in value.items()}  # type: ignore[reportUnknownVariableType]


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)  # type: ignore[reportUnknownVariableType]
        ]
    return bool(level)


def parse_json(text: str) -> Any:
    """JSON, or what is clearly meant as JSON; raises ArgumentError with the place of the fault."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        first = error
    for mended in _mended(text):
        try:
            return json.loads(mended, strict=False)
        except (ValueError, RecursionError):
            continue
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        at = f" at character {first.pos}" if isinstance(first, json.JSONDecodeError) else ""
        raise ArgumentError(f"the arguments are not valid JSON ({getattr(first, 'msg', first)}{at})") from None
    if not isinstance(value, dict | list):
        raise ArgumentError("the arguments are not valid JSON")
    return value  # type: ignore[reportUnknownVariableType]


_BAD_ESCAPE = re.compile(r'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})|\\')
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


def _mended(text: str) -> list[str]:
    fence = re.fullmatch(r"```[\w-]*\n(.*?)\n?```", text, re.DOTALL)
    bare = fence.group(1) if fence else text
    escaped = _BAD_ESCAPE.sub(lambda m: m.group(0) if m.group(1) else "\\\\", bare)
    no_commas = _STRING_OR_COMMA.sub(lambda m: "" if m.group(0) == "," else m.group(0), escaped)
    return [bare, escaped, no_commas]


def as_far_as_readable(written: str) -> dict[str, Any]:
    """The arguments, or none when they cannot be read."""
    try:
        return parse_arguments(written)
    except ArgumentError:
        return {}

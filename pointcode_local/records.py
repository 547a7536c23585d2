"""Events to and from JSON objects: the session log and `stream-json` speak this one dialect.

An object has `type` (the class name in snake_case; `ErrorRaised` is "error") and the event's fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from pointcode_local import events
from pointcode_local.events import AgentEvent, FileDiff

_SPECIAL_NAMES = {"ErrorRaised": "error"}
_SIMPLE_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "dict[str, Any]": (dict,),
}


def type_name(kind: type) -> str:
    """The `type` of an event class, e.g. `tool_finished`."""
    return _SPECIAL_NAMES.get(kind.__name__) or re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS: dict[str, type] = {type_name(kind): kind for kind in get_args(AgentEvent)}
_NAMES: dict[type, str] = {kind: name for name, kind in _KINDS.items()}
_FIELDS: dict[type, tuple[str, ...]] = {kind: tuple(f.name for f in fields(kind)) for kind in (*_NAMES, FileDiff)}


def to_record(event: AgentEvent) -> dict[str, Any]:
    """The event as an object of JSON values."""
    kind = type(event)
    return {"type": _NAMES[kind], **{name: _plain(getattr(event, name)) for name in _FIELDS[kind]}}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {name: getattr(value, name) for name in _FIELDS[type(value)]}
    return value


def from_record(record: Any) -> AgentEvent | None:
    """The event that `record` stands for; None when it is damaged or of a kind that this version does not know."""
    kind = (
        _KINDS.get(record.get("type", "")) if isinstance(record, dict) and isinstance(record.get("type"), str) else None
    )
    if kind is None:
        return None
    values: dict[str, Any] = {}
    for f in fields(kind):
        if f.name not in record:
            continue
        value = record[f.name]
        allowed = _SIMPLE_TYPES.get(str(f.type))
        if allowed and not isinstance(value, allowed):
            return None
        values[f.name] = _frozen(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except TypeError:  # a required field is missing
        return None


def _frozen(items: list[Any]) -> tuple[Any, ...]:
    return tuple(_frozen_item(item) for item in items)


def _frozen_item(item: Any) -> Any:
    if isinstance(item, list):
        return _frozen(item)
    if isinstance(item, dict):
        return events.FileDiff(str(item.get("path", "")), item.get("before"), item.get("after"))
    return item


_LINE_BREAKS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def to_line(record: dict[str, Any]) -> bytes:
    """One line of JSON in UTF-8 with its line feed; lone surrogates and Unicode line breaks are written as escapes."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.translate(_LINE_BREAKS).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

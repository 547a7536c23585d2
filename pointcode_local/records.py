"""Events to and from JSON objects: the session log and `stream-json` speak this one dialect.

An object has `type` (the class name in snake_case; `ErrorRaised` is "error") and the event's fields.
"""

from __future__ import annotations

import builtins
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, cast, get_args, get_origin, get_type_hints

from pointcode_local.events import AgentEvent, FileDiff

_SPECIAL_NAMES = {"ErrorRaised": "error"}
MAX_NUMBER = 1 << 62


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
    try:
        return _made(kind, cast(dict[str, Any], record))
    except _Misfit:
        return None


class _Misfit(Exception):
    """A value is not of its field's type."""


_Fit = Callable[[Any], Any]  # a value as JSON gave it -> as its field's type has it; raises _Misfit


def _made(kind: type, record: Mapping[str, Any]) -> Any:
    try:
        return kind(**{name: fit(record[name]) for name, fit in _fits(kind).items() if name in record})
    except TypeError as error:  # a required field is missing
        raise _Misfit from error


@cache
def _fits(kind: type) -> dict[str, _Fit]:
    return {name: _fit(hint) for name, hint in get_type_hints(kind).items()}


def _fit(hint: Any) -> _Fit:
    """What a field of this type takes. A word may be one of a later version."""
    inner = get_args(hint)
    match get_origin(hint) or hint:
        case builtins.tuple:
            return partial(_items, tuple(_fit(each) for each in inner if each is not ...), inner[1:] == (...,))
        case builtins.int:
            return partial(_number, (int,))
        case builtins.float:
            return partial(_number, (int, float))
        case types.UnionType:  # the only one is "str | None"
            return partial(_simple, (str, types.NoneType))
        case typing.Literal:
            return partial(_simple, (str,))
        case builtins.dict | builtins.str | builtins.bool as kind:
            return partial(_simple, (kind,))
        case other:
            return partial(_object, other)


def _simple(kinds: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kinds):
        raise _Misfit
    return value


def _number(kinds: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool) or not abs(value) < MAX_NUMBER:
        raise _Misfit
    return value


def _object(kind: type, value: Any) -> Any:
    return _made(kind, _simple((dict,), value))


def _items(fits: tuple[_Fit, ...], any_number: bool, value: Any) -> tuple[Any, ...]:
    items = cast(list[Any], _simple((list,), value))
    if any_number:
        return tuple(map(fits[0], items))
    if len(items) != len(fits):
        raise _Misfit
    return tuple(fit(item) for fit, item in zip(fits, items, strict=True))


# Line breaks of Unicode, controls that act on a terminal, and what makes it show text in another order.
_ESCAPED = str.maketrans(
    {
        code: f"\\u{code:04x}"
        for code in (*range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    }
)


def to_line(record: dict[str, Any]) -> bytes:
    """One line of JSON in UTF-8 with its line feed; what is no plain text in it is written as escapes."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.translate(_ESCAPED).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

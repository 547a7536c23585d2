"""Reads the JSON object of a request: every member is honoured, or refused by its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from ..chat import is_deep
from .errors import ApiError, invalid

MAX_DEPTH = 100  # of a body; whatever walks it later has no deep stack
_MAX_BRACKETS = 1 << 20  # of a body, those in texts included: 32 MB of empty objects would take gigabytes
_MAX_OBJECTS = 1 << 16  # messages, tools, parts of one list
_BIGGEST = 2**63 - 1
_MAX_TEXT_CHARS = 1000  # of a stop string: it is looked for at every token
_LARGEST = sys.float_info.max


def load_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`; raises ApiError 400."""
    if data.count(b"{") + data.count(b"[") > _MAX_BRACKETS:
        raise ApiError(400, f"the body holds more than {_MAX_BRACKETS:,} lists and objects", code="invalid_json")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    if is_deep(value, MAX_DEPTH):
        raise ApiError(400, f"the body is JSON that is nested more than {MAX_DEPTH} deep", code="invalid_json")
    return cast("dict[str, Any]", value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class Body:
    """A JSON object whose members must all be read before `finish`. A member that is null counts as absent.

    `where` is the object's own path in the request's body, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self._unread = dict.fromkeys(self._values)

    def path(self, name: str) -> str:
        """A member's path from the request's root."""
        return f"{self._where}.{name}" if self._where else name

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> list[str]:
        """The members that are there."""
        return list(self._values)

    def take(self, name: str) -> Any:
        """The member as it is, or None."""
        self._unread.pop(name, None)
        return self._values.get(name)

    def accept(self, *names: str) -> None:
        """Members that have no influence on the answer."""
        for name in names:
            self._unread.pop(name, None)

    def refuse(self, name: str, problem: str) -> None:
        """400 when the member is there."""
        if name in self._values:
            raise invalid(self.path(name), problem)

    def finish(self) -> None:
        """400 for a member that nobody read."""
        for name in self._unread:
            raise ApiError(400, f"{self.path(name)}: not supported here", param=self.path(name), code="unsupported")

    # ------------------------------------------------------------------ typed members
    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self.take(name)
        return default if value is None else self._typed(name, value, str, "a string")

    def needed_text(self, name: str) -> str:
        """A string that must be there and not empty."""
        value = self.text(name)
        if not value:
            raise invalid(self.path(name), "is required")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str) -> str:
        """One of some words."""
        value = self.text(name, default)
        if value not in allowed:
            raise invalid(self.path(name), f"must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.take(name)
        return default if value is None else self._typed(name, value, bool, "true or false")

    def integer(self, name: str, low: int = -_BIGGEST, high: int = _BIGGEST) -> int | None:
        """A whole number in [low, high], or None."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            bounds = f" from {low}" if low > -_BIGGEST else ""
            bounds += f" up to {high}" if high < _BIGGEST else ""
            raise invalid(self.path(name), f"must be a whole number{bounds}, not {_shown(value)}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise invalid(self.path(name), f"must be a number, not {_shown(value)}")
        return float(value)

    def object(self, name: str) -> Body | None:
        """A JSON object to read further, or None."""
        value = self.take(name)
        return None if value is None else self.inner(name, value)

    def inner(self, name: str, value: Any) -> Body:
        """`value`, found under `name`, as an object to read further."""
        return Body(self._typed(name, value, dict, "an object"), self.path(name))

    def objects(self, name: str) -> list[Body]:
        """A list of objects (empty when absent)."""
        items = self.items(name)
        if len(items) > _MAX_OBJECTS:
            raise invalid(self.path(name), f"may hold at most {_MAX_OBJECTS:,} objects, not {len(items):,}")
        return [Body(self._typed(f"{name}[{i}]", item, dict, "an object"), self.path(f"{name}[{i}]"))
                for i, item in enumerate(items)]  # fmt: skip

    def items(self, name: str) -> list[Any]:
        """A list (empty when absent)."""
        value = self.take(name)
        return [] if value is None else self._typed(name, value, list, "a list")

    def mapping(self, name: str) -> dict[str, Any] | None:
        """A JSON object as it is (a schema), or None."""
        value = self.take(name)
        return None if value is None else self._typed(name, value, dict, "an object")

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A string or a list of at most `most` short strings, none of them empty."""
        value = self.take(name)
        found: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
        if len(found) > most:
            raise invalid(self.path(name), f"may hold at most {most} strings, not {len(found)}")
        return tuple(self._filled(name, item) for item in found)

    def _filled(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT_CHARS:
            raise invalid(self.path(name), f"must be strings of 1 to {_MAX_TEXT_CHARS} characters, not {_shown(value)}")
        return value

    def _typed(self, name: str, value: Any, kind: type, words: str) -> Any:
        if not isinstance(value, kind):
            raise invalid(self.path(name), f"must be {words}, not {_shown(value)}")
        return value


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:80]


def token_ids(values: Iterable[Any], vocab: int, param: str) -> tuple[int, ...]:
    """Ids of the vocabulary; raises ApiError 400."""
    ids: list[int] = []
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab:
            raise invalid(param, f"{_shown(value)} is no token of the vocabulary of {vocab}")
        ids.append(value)
    return tuple(ids)

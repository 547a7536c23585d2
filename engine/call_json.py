"""A tool call's JSON, read character by character, so that arguments stream while they are written.

Lenient where models are sloppy: any key order, a single object or an array of them, an OpenAI-style wrapper
`{"function": {…}}`, a missing call id, raw line breaks inside strings (passed on escaped), missing or doubled commas.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

NAME_KEYS = ("name", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args")
OTHER_KEYS = ("type", "id", "tool_call_id")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

Phase = Literal["outside", "members", "key", "colon", "value"]


@dataclass(slots=True)
class CallDraft:
    """One call as far as it was read."""

    name: str | None = None
    parts: list[str] = field(default_factory=list[str])  # the argument text
    arguments_closed: bool = False
    closed: bool = False
    foreign_key: bool = False  # a member that no call has
    n_taken: int = 0
    reported: bool = False

    @property
    def final_arguments(self) -> str:
        """The argument text; "{}" when the model wrote none; unwrapped when it wrote the object inside a string."""
        text = "".join(self.parts).strip()
        if text.startswith('"'):
            try:
                text = str(json.loads(text)).strip()
            except ValueError:
                return text
        return "{}" if text in ("", "null") else text

    def take_fresh(self) -> str:
        """The argument text that nobody has taken yet."""
        fresh, self.n_taken = "".join(self.parts[self.n_taken :]), len(self.parts)
        return fresh


class CallScanner:
    """Feeds on characters; `drafts` grows by one for every object that opens.

    `malformed` turns true at a character that no call can have; the scanner ignores it and goes on. `in_string` tells
    that the next character belongs to a JSON string.
    """

    def __init__(self) -> None:
        self.drafts: list[CallDraft] = []
        self.malformed = False
        self.in_string = False
        self._escaped = False
        self._phase: Phase = "outside"
        self._wrappers = 0  # open {"function": {…}} objects around the present members
        self._array_open = False
        self._key = ""
        self._value: list[str] = []
        self._depth = 0  # containers open inside the present value

    @property
    def idle(self) -> bool:
        """Whether no object and no array is open."""
        return self._phase == "outside" and not self._array_open

    def feed(self, char: str) -> None:
        """Read one character."""
        match self._phase:
            case "outside":
                self._outside(char)
            case "members":
                self._members(char)
            case "key":
                self._key_char(char)
            case "colon":
                self._colon(char)
            case "value":
                self._value_char(char)

    def _outside(self, char: str) -> None:
        if char == "{":
            self.drafts.append(CallDraft())
            self._phase = "members"
        elif char == "[" and not self._array_open:
            self._array_open = True
        elif char == "]" and self._array_open:
            self._array_open = False
        elif not char.isspace() and char != ",":
            self.malformed = True

    def _members(self, char: str) -> None:
        if char == '"':
            self._key, self._phase, self.in_string = "", "key", True
        elif char == "}" and self._wrappers:
            self._wrappers -= 1
        elif char == "}":
            self.drafts[-1].closed = True
            self._phase = "outside"
        elif not char.isspace() and char != ",":
            self.malformed = True

    def _key_char(self, char: str) -> None:
        if self._ends_string(char):
            self.in_string, self._phase = False, "colon"
            if self._key not in (*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS):
                self.drafts[-1].foreign_key = True
        else:
            self._key += char

    def _colon(self, char: str) -> None:
        if char == ":":
            self._value, self._depth, self._phase = [], 0, "value"
        elif not char.isspace():
            self.malformed = True

    def _value_char(self, char: str) -> None:
        if self.in_string:
            self.in_string = not self._ends_string(char)
            self._keep(_ESCAPES.get(char, char) if char < " " else char)
            self._close_if_string_value()
            return
        if not self._value and char.isspace():
            return
        if not self._value and char == "{" and self._key == "function":
            self._wrappers += 1
            self._phase = "members"
            return
        if self._depth == 0 and char in ",}":
            self._end_value()
            self._members(char)
            return
        self._structure(char)

    def _structure(self, char: str) -> None:
        """A character of a value outside strings."""
        self.in_string = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        self._keep(char)
        if self._depth == 0 and char in "}]":
            self._end_value()

    def _close_if_string_value(self) -> None:
        if self._depth == 0 and not self.in_string:
            self._end_value()

    def _keep(self, text: str) -> None:
        self._value.append(text)
        if self._key in ARGUMENT_KEYS:
            self.drafts[-1].parts.append(text)

    def _end_value(self) -> None:
        draft = self.drafts[-1]
        if self._key in NAME_KEYS and draft.name is None and self._value[:1] == ['"']:
            draft.name = _unquoted("".join(self._value))
        if self._key in ARGUMENT_KEYS:
            draft.arguments_closed = True
        self._phase = "members"

    def _ends_string(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
            return False
        self._escaped = char == "\\"
        return char == '"'


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')

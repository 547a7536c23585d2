"""Text of a reply that may turn out to be a tool call is held back until the reply is whole.

Small models write calls into their text (`pointcode_local.calls` finds them there once the reply is complete). A person
who reads along should see the words and then the call, not the call's raw text.
"""

from __future__ import annotations

import json
import re

from pointcode_local.events import AssistantMessage

_MARKS = (
    "<tool_call", "<function_call", "<tool_use", "<tools>", "<invoke", "<function", "<|tool_call|>", "<|python_tag|>",
    "<|START_ACTION|>", "[TOOL_CALLS]",
)  # fmt: skip
_FIRST_MARKS = ("{", "```json\n", "```tool_call\n", "```\n{")  # only where they begin the reply
_NAMED = re.compile(r'"(?:name|tool|tool_name|function|function_name|action)"\s*:')
_BLOCK = re.compile(
    r"(?:(?P<name>[^\n]+):\n)?(?P<fence>`{3,})[\w+-]*\n(?P<body>.*?)(?:(?<=\n)|\n)(?P=fence)", re.DOTALL
)
_UNNAMED_CHARS = 120  # JSON that has named no tool by then is an answer


class HeldBack:
    """One reply: `feed` gives what may be shown now, `rest` what is left to show once the whole text is known."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._shown: list[str] = []
        self._held = ""
        self._is_call = False  # `_held` begins like a call; else it is the beginning of a line that may become one
        self._at_line_start = True
        self._is_first = True  # nothing but empty lines was shown so far

    def feed(self, text: str) -> str:
        """What of the text so far can be shown."""
        self._held += text
        shown = "" if self._is_call and not self._is_only_json() else self._release()
        self._shown.append(shown)
        self._is_first = self._is_first and not shown.strip()
        return shown

    def rest(self, whole: str) -> str:
        """What is still to be shown of `whole`, the reply's text without its calls. Begins the next reply."""
        shown, held = "".join(self._shown), self._held
        self._begin()
        if whole.startswith(shown):
            return whole[len(shown) :]
        return held if held and whole.endswith(held) else ""

    def abandon(self) -> str:
        """What was held back of a reply that never became whole. Begins the next reply."""
        held = self._held
        self._begin()
        return held

    def _is_only_json(self) -> bool:
        """Whether what looked like a call is JSON of another kind."""
        text = self._held[: 2 * _UNNAMED_CHARS].lstrip()
        return text[:1] in "{`" and len(text) > _UNNAMED_CHARS and not _NAMED.search(text[:_UNNAMED_CHARS])

    def _release(self) -> str:
        """Take the lines that are no call off `_held`."""
        if self._is_call:  # it was JSON
            self._is_call = False
            shown, self._held = self._held, ""
            self._at_line_start = shown.endswith("\n")
            return shown
        shown = ""
        while self._held:
            is_first = self._is_first and not shown.strip()
            if self._at_line_start and (stop := self._look(self._held.lstrip(), is_first=is_first)):
                self._is_call = stop == "call"
                break
            line, newline, self._held = self._held.partition("\n")
            shown += line + newline
            self._at_line_start = bool(newline)
        return shown

    def _look(self, text: str, *, is_first: bool) -> str:
        """ "call", "wait" for more, or "": what a line that begins with `text` is."""
        marks = _MARKS + (_FIRST_MARKS if is_first else ())
        if any(text.startswith(mark) for mark in marks):
            return "call"
        return "wait" if any(mark.startswith(text) for mark in marks) else ""


def is_block_of_call(message: AssistantMessage) -> bool:
    """Whether a reply is nothing but the code block of a small model that its only call was made of."""
    block = _BLOCK.fullmatch(message.text.strip())
    if block is None or len(message.tool_calls) != 1 or f"\n{block['fence']}\n" in block["body"]:
        return False
    try:
        arguments: object = json.loads(message.tool_calls[0][2])
    except ValueError:
        return False
    name = f"{block['name']}:" if block["name"] else ""
    match arguments:
        case {"path": str(path)}:
            return name == f"{path}:"
        case {"command": str(command)}:
            return not name and block["body"].strip() == command.strip()
        case _:
            return False

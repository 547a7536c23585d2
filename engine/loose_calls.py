"""Tool calls as small models write them: bare or fenced JSON, or JSON in tags that are not in the vocabulary.

What counts as a call (everything else stays text):
- JSON alone: at the start of a line, at the start of the reply;
- fenced JSON: the same, in a ``` or ```json block;
- either of them after one short line of text, when nothing but further calls follows (an explanation of the form, which
  reads alike up to there, goes on with prose);
- tagged JSON: <tool_call>, <tools> or <function_call> at the start of a line, anywhere outside a code block;
and the object must name a tool and have arguments. Without tags the name must be one of the offered tools.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Literal

CALL_BEGINNINGS = "{[`<"
MAX_INTRODUCTION_CHARS = 200  # "one short sentence" before a bare call
MAX_HELD_CHARS = 500  # of white space and brackets before or after a call; each character looks at all of them

_FENCE = re.compile(r"```(?:json|tool_call|tool|)[ \t]*\n\s*(?=[{\[])")
_FENCE_BEGUN = re.compile(r"`{1,2}|```[a-z_]{0,9}[ \t]*(\n\s*)?")
_TAG = re.compile(r"<(?:tool_call|tools|function_call)>\s*(?=[{\[])")
_TAG_BEGUN = re.compile(r"<(?:tool_call|tools|function_call)>\s*")
_TAGS = ("<tool_call>", "<tools>", "<function_call>")
_CLOSERS = ("</tool_call>", "</tools>", "</function_call>", "```")


class Opening(Enum):
    """How a possible call begins."""

    NO = 0  # it cannot be one
    PARTIAL = 1  # not decided yet
    BARE = 2  # JSON begins; the name must be known
    TAGGED = 3  # JSON begins inside tags


def classify(held: str) -> tuple[Opening, int]:
    """What text from the start of a line on may be, and where its JSON begins."""
    if held[0] in "{[":
        return Opening.BARE, 0
    if held[0] == "`":
        found = _FENCE.match(held)
        return (Opening.BARE, found.end()) if found else (_partial(_FENCE_BEGUN.fullmatch(held) is not None, held), 0)
    found = _TAG.match(held)
    if found:
        return Opening.TAGGED, found.end()
    begun = _TAG_BEGUN.fullmatch(held) is not None or any(tag.startswith(held) for tag in _TAGS)
    return _partial(begun, held), 0


def _partial(possible: bool, held: str) -> Opening:
    return Opening.PARTIAL if possible and len(held) <= MAX_HELD_CHARS else Opening.NO


def closing(tail: str, *, expected: bool) -> tuple[Literal["open", "closed", "text"], str]:
    """What follows a complete call: still undecided, properly closed, or text (given too).

    `expected`: the call had an opener, so its closer may stand on a later line. Surplus brackets are ignored.
    """
    text = tail.lstrip().lstrip("}],").lstrip()
    closer = next((c for c in _CLOSERS if text.startswith(c)), None)
    if closer == "```" and text[3:4].isalpha():  # the opener of another block
        return "text", text
    if closer is not None:
        rest = text[len(closer) :].lstrip()
        return ("text" if rest else "closed"), rest
    if any(c.startswith(text) for c in _CLOSERS):
        return ("open" if text or expected or "\n" not in tail else "closed"), ""
    return "text", text


@dataclass(slots=True)
class LineTracker:
    """Where the visible text stands: at the start of a line, inside a code block, past the introduction."""

    n_chars: int = 0  # visible characters so far, white space around them not counted
    n_lines: int = 0  # lines with visible text
    in_fence: bool = False
    line: str = ""

    def add(self, char: str) -> None:
        """Count a character that became text."""
        if char == "\n":
            self.in_fence ^= self.line.lstrip().startswith("```")
            self.n_lines += bool(self.line.strip())
            self.line = ""
            return
        self.line += char
        self.n_chars += not char.isspace()

    def may_begin(self, char: str) -> bool:
        """Whether `char` could begin a call here."""
        if self.in_fence or self.line.strip():
            return False
        short = self.n_lines <= 1 and self.n_chars <= MAX_INTRODUCTION_CHARS
        return char == "<" or (char in "{[`" and short)

"""A prompt of several steps, cut for small models, which do one thing at a time: "Make a. Then change it." is two."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pointcode_local.events import ToolFinished

_WORDS = r"(?:then|next|finally|lastly|afterwards?|after (?:that|this|you)[^,.]*|second(?:ly)?)"
_BORDER = re.compile(rf"(?:,\s*|(?<![\s,])\s+)(?:and\s+)?{_WORDS}\b,?\s+(?=[a-z])", re.IGNORECASE)
_FIRST = re.compile(r"^\s*(?:first(?:ly)?|please),?\s+", re.IGNORECASE)
_POLITE = r"^\W*(?:please\s+|(?:can|could) you\s+)?(?:now\s+)?"
_CREATE = re.compile(_POLITE + r"(?:create|make|write|i need|add)\b(?=.*(?:\bfile\b|\w\.\w+\b))", re.IGNORECASE)
_CHANGE = re.compile(
    _POLITE + r"(?:add|append|change|edit|fix|implement|insert|put|remove|rename|replace|rewrite|set|update)\b",
    re.IGNORECASE,
)
_COMPILE = re.compile(_POLITE + r"(?:compile|build)\b", re.IGNORECASE)
_RUN_IT = re.compile(r"(?:run|execute)\s+it\b", re.IGNORECASE)
_FENCE = "```"
_MAX_FILES, _MAX_CHARS = 3, 6000


def split_steps(prompt: str) -> list[str]:
    """The steps in order, at least one; a prompt with code, lists or several paragraphs is never cut."""
    if "\n" in prompt.strip() or _FENCE in prompt:
        return [prompt]
    parts = [part.strip(" ,;") for part in _BORDER.split(prompt)]
    if len(parts) < 2 or any(len(part.split()) < 3 and not _RUN_IT.match(part) for part in parts):
        return [prompt]
    parts = [_FIRST.sub("", part) for part in parts]
    if _COMPILE.match(parts[0]) and _RUN_IT.match(parts[1]):  # one command line
        parts[:2] = [f"{parts[0]} and {parts[1]}"]
    return [part[:1].upper() + part[1:] for part in parts]


def next_step(text: str, files: Mapping[str, str]) -> str:
    """The step as the model reads it, below the present text of the files that the steps before changed."""
    shown = [(path, body) for path, body in files.items() if len(body) <= _MAX_CHARS][-_MAX_FILES:]
    blocks = [f"{path} now contains:\n{_FENCE}\n{body.rstrip()}\n{_FENCE}\n" for path, body in shown]
    return "\n".join([*blocks, text])


def wanted_call(step: str, tool_names: frozenset[str]) -> str:
    """The `tool_choice` of a plain order: "write" to create a file, "required" to change one, else "auto"."""
    if _CREATE.match(step) and "write" in tool_names:
        return "write"
    return "required" if _CHANGE.match(step) and tool_names else "auto"


class LedSteps:
    """Leads a small model that calls tools through the steps of a prompt, one by one: it is held to a call until the
    change that was asked for is made, and to an answer after it."""

    def __init__(self, prompt: str, later: Sequence[str], tool_names: frozenset[str]) -> None:
        self._later = list(later)
        self._tool_names = tool_names
        self._wanted = wanted_call(prompt, tool_names)
        self._changes: list[tuple[str, dict[str, Any]]] = []  # calls of this step that changed files
        self._files: dict[str, str] = {}  # the files that were changed so far, as they are now

    @property
    def tool_choice(self) -> str:
        """What the next request is held to."""
        return "none" if self._changes and self._wanted != "auto" else self._wanted

    def begin_next(self) -> str | None:
        """The next step as the model reads it; None behind the last one."""
        if not self._later:
            return None
        step = self._later.pop(0)
        self._wanted = wanted_call(step, self._tool_names)
        self._changes = []
        return next_step(step, self._files)

    def only_repeats(self, results: Sequence[ToolFinished]) -> bool:
        """Whether a reply made nothing but changes that were already made: a small model's way of being done."""
        return bool(results) and all((result.name, result.arguments) in self._changes for result in results)

    def take(self, results: Sequence[ToolFinished]) -> str:
        """Note what was changed; the text of the last such result, "" when nothing was."""
        text = ""
        for result in results:
            if result.diffs and not result.is_error:
                self._changes.append((result.name, result.arguments))
                self._files |= {diff.path: diff.after for diff in result.diffs if diff.after is not None}
                text = result.text
        return text

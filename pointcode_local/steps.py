"""A prompt of several steps, cut for small models, which do one thing at a time: "Make a. Then change it." is two."""

from __future__ import annotations

import re
from collections.abc import Mapping

_WORDS = r"(?:then|next|finally|lastly|afterwards?|after (?:that|this|you)[^,.]*|second(?:ly)?)"
_BORDER = re.compile(rf"(?:,\s*|(?<![\s,])\s+)(?:and\s+)?{_WORDS}\b,?\s+(?=[a-z])", re.IGNORECASE)
_FIRST = re.compile(r"^\s*(?:first(?:ly)?|please),?\s+", re.IGNORECASE)
_POLITE = r"^\W*(?:please\s+|(?:can|could) you\s+)?(?:now\s+)?"
_CREATE = re.compile(_POLITE + r"(?:create|make|write|i need|add)\b(?=.*(?:\bfile\b|\w\.\w+\b))", re.IGNORECASE)
_CHANGE = re.compile(
    _POLITE + r"(?:add|append|change|edit|fix|implement|insert|put|remove|rename|replace|rewrite|set|update)\b",
    re.IGNORECASE,
)
_FENCE = "```"
_MAX_FILES, _MAX_CHARS = 3, 6000


def split_steps(prompt: str) -> list[str]:
    """The steps in order, at least one; a prompt with code, lists or several paragraphs is never cut."""
    if "\n" in prompt.strip() or _FENCE in prompt:
        return [prompt]
    parts = [part.strip(" ,;") for part in _BORDER.split(prompt)]
    if len(parts) < 2 or any(len(part.split()) < 3 for part in parts):
        return [prompt]
    parts = [_FIRST.sub("", part) for part in parts]
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

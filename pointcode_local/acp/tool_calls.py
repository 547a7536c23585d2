"""How a tool call is shown in an editor: its kind, the places it touches, its diffs and its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acp import helpers
from acp.schema import (
    ContentToolCallContent,
    FileEditToolCallContent,
    TerminalToolCallContent,
    ToolCallLocation,
    ToolKind,
)

from pointcode_local.events import FileDiff

Content = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent
MAX_SHOWN_CHARS = 16_000
MAX_TITLE_CHARS = 300
_KINDS: dict[str, ToolKind] = {
    "read": "read",
    "outline": "read",
    "write": "edit",
    "edit": "edit",
    "patch": "edit",
    "replace_symbol": "edit",
    "glob": "search",
    "grep": "search",
    "list": "search",
    "shell": "execute",
    "shell_output": "execute",
    "shell_kill": "execute",
    "todo": "think",
}


def kind_of(name: str) -> ToolKind:
    """The protocol's category of a tool, which picks its icon."""
    return _KINDS.get(name, "other")


def title_of(title: str) -> str:
    """One line for people."""
    line = " ".join(title.split())
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"


def absolute(path: str, cwd: Path) -> str:
    """A path as a tool was given it; the protocol wants absolute ones."""
    try:
        return str(cwd / Path(path).expanduser())
    except RuntimeError:  # `~name` of nobody
        return str(cwd / path)


def locations_of(arguments: Mapping[str, Any], diffs: Sequence[FileDiff], cwd: Path) -> list[ToolCallLocation]:
    """What an editor may follow: each changed file at its first changed line, else the path that was asked for."""
    if diffs:
        return [ToolCallLocation(path=absolute(diff.path, cwd), line=first_line(diff)) for diff in diffs]
    path, offset = arguments.get("path"), arguments.get("offset")
    if not isinstance(path, str) or not path:
        return []
    is_line = isinstance(offset, int) and not isinstance(offset, bool) and offset > 0
    return [ToolCallLocation(path=absolute(path, cwd), line=offset if is_line else None)]


def first_line(diff: FileDiff) -> int:
    """The 1-based line of the new text where it begins to differ."""
    before, after = (diff.before or "").split("\n"), (diff.after or "").split("\n")
    same = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )
    return min(same + 1, max(1, len(after)))


def diff_content(diffs: Sequence[FileDiff], cwd: Path) -> list[Content]:
    """The diffs; a deleted file is one with an empty new text."""
    return [helpers.tool_diff_content(absolute(diff.path, cwd), diff.after or "", diff.before) for diff in diffs]


def text_content(text: str) -> list[Content]:
    """Output as a block of code, so that an editor shows it as it is; a long one is cut in the middle."""
    if not text.strip():
        return []
    shown = text
    if len(text) > MAX_SHOWN_CHARS:
        half = MAX_SHOWN_CHARS // 2
        shown = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out here …]\n{text[-half:]}"
    return [helpers.tool_content(helpers.text_block(fenced(shown)))]


def fenced(text: str) -> str:
    """A Markdown code block around any text."""
    longest = max((len(run) for run in _backticks(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def _backticks(text: str) -> list[str]:
    return [run for run in "".join(c if c == "`" else " " for c in text).split() if run]


def is_plain_confirmation(text: str) -> bool:
    """Whether a diff says it all: the text is a single line such as "Edited a.py: 1 replacement"."""
    return "\n" not in text.strip()

"""The `edit` tool: exact replacements in one file, all or nothing."""

from __future__ import annotations

import asyncio
import difflib
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import matching
from .atomic import read_bytes_or_none, require_writable
from .base import Access, BaseTool, FileChange, ToolContext, ToolError, ToolResult, object_schema
from .edit_hints import hint
from .filetext import FileText, decode, require_unicode, visible, without_ending
from .placeholders import placeholder_in
from .syntax import report
from .workspace import Place, Workspace

MAX_PLACES = 100  # of a text that is not unique
MAX_SHOWN_LINES = 12
MAX_SCORED = 20_000  # different lines that are looked at for the nearest one,
MAX_LIKENED = 50  # lines of them that are compared with the wanted one letter by letter, and
MAX_LIKENED_CHARS = 300  # how much of each
MAX_SHOWN_WIDTH = 200


@dataclass(frozen=True, slots=True)
class Edit:
    """One wanted replacement."""

    old: str
    new: str
    replace_all: bool


@dataclass(frozen=True, slots=True)
class Edited:
    """New bytes of a file, the changed line numbers of the new text, and notes on what was overlooked."""

    after: bytes
    lines: tuple[int, ...]
    notes: tuple[str, ...]


class _OverlapError(ToolError):
    """Two edits of one list are of the same text."""


class EditTool(BaseTool):
    """Replaces exact text."""

    name = "edit"
    access: Access = "write"
    description = (
        "Replace exact text in a file. Each `old` must occur exactly once (or set replace_all) and must be "
        "copied from the "
        "file without line numbers. All edits are applied or none. An empty `old` creates a new file from `new`."
    )
    parameters = object_schema(
        {
            "path": {"type": "string"},
            "edits": {
                "type": "array",
                "items": object_schema(
                    {
                        "old": {"type": "string"},
                        "new": {"type": "string"},
                        "replace_all": {"type": "boolean", "default": False},
                    },
                    ("old", "new"),
                ),
            },
        },
        ("path", "edits"),
    )

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """The change as it would be made now."""
        try:
            place = context.workspace.resolve(arguments["path"])
            return (_change(context.workspace, place, _parse(arguments))[0],)
        except OSError:
            return ()

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        workspace: Workspace = context.workspace
        place = context.place(arguments["path"])
        edits = _parse(arguments)
        async with workspace.locked(place.path):
            change, edited = await asyncio.to_thread(_change, workspace, place, edits)
            workspace.commit((change,))
        return ToolResult(_describe(place, change, edited), changes=(change,))


def _parse(arguments: Mapping[str, Any]) -> list[Edit]:
    edits = [Edit(e["old"], e["new"], bool(e.get("replace_all", False))) for e in arguments["edits"]]
    if not edits:
        raise ToolError("edits is empty; give at least one {old, new}")
    for edit in edits:
        require_unicode(edit.old + edit.new)
    return edits


def _change(workspace: Workspace, place: Place, edits: list[Edit]) -> tuple[FileChange, Edited]:
    if any(not edit.old for edit in edits):
        return _creation(place, edits)
    before = workspace.read_file(place)
    require_writable(place.path)
    file = decode(before)
    edited = apply_edits(file, edits)
    if edited.after == before:
        raise ToolError("the edits change nothing: old and new are the same")
    return FileChange(place.path, before, edited.after), edited


def _creation(place: Place, edits: list[Edit]) -> tuple[FileChange, Edited]:
    if place.text.endswith("/"):
        raise ToolError(f"{place.text} names a folder; give a file name")
    require_writable(place.path)  # reading a pipe would wait for ever
    present = read_bytes_or_none(place.path)
    if present:
        raise ToolError(
            f"{place.text} exists already; an empty `old` only creates files. Put the text to replace into `old`"
        )
    if len(edits) > 1:
        raise ToolError("to create a file give one edit with an empty `old`")
    after = edits[0].new.encode("utf-8")
    return FileChange(place.path, present, after), Edited(after, (1,), ())


# ------------------------------------------------------------------------------------------------- applying
def apply_edits(file: FileText, edits: list[Edit]) -> Edited:
    """All edits against the file as it is; where that cannot be (one builds on another), one after the other.

    Raises ToolError naming the edit and the cure.
    """
    for edit in edits:
        if (left_out := placeholder_in(edit.new, edit.old)) is not None:
            raise ToolError(f"`new` holds a placeholder for left-out code ({left_out!r}); write the text in full")
    edits = [_without_mark(edit, file) for edit in edits]
    try:
        return _at_once(file, edits)
    except ToolError as error:
        if len(edits) == 1:
            raise
        reason = error
    notes: list[str] = []
    lines: tuple[int, ...] = ()
    for number, edit in enumerate(edits, 1):
        try:
            edited = _at_once(file, [edit], number, len(edits))
        except ToolError as error:
            if number == 1 or isinstance(reason, _OverlapError):
                raise reason from error
            raise ToolError(
                f"{error}\nNothing was changed: this is the text as the edits before would leave it."
            ) from error
        notes += edited.notes
        lines += edited.lines
        file = decode(edited.after)
    return Edited(file.raw, lines, tuple(dict.fromkeys(notes)))


def _without_mark(edit: Edit, file: FileText) -> Edit:
    if not file.bom:
        return edit
    return Edit(edit.old.removeprefix("\ufeff"), edit.new.removeprefix("\ufeff"), edit.replace_all)


def _at_once(file: FileText, edits: list[Edit], number: int = 1, total: int = 0) -> Edited:
    total = total or len(edits)
    chosen: list[matching.Match] = []
    for at, edit in enumerate(edits, number):
        chosen += _matches(file, edit, f"edit {at} of {total}: " if total > 1 else "")
    chosen.sort(key=lambda match: (match.start, match.end))
    for one, two in zip(chosen, chosen[1:], strict=False):
        if two.start < one.end:
            raise _OverlapError("two edits touch the same text; merge them into one")
    after = file.spliced([(match.start, match.end, match.new) for match in chosen])
    return Edited(after, _new_lines(file, chosen), tuple(dict.fromkeys(match.note for match in chosen if match.note)))


def _matches(file: FileText, edit: Edit, prefix: str) -> list[matching.Match]:
    if not edit.old:
        raise ToolError(f"{prefix}`old` is empty, and the file exists")
    found = matching.find(file, edit.old, edit.new, None if edit.replace_all else MAX_PLACES)
    if not found:
        reason = f"{prefix}`old` was not found in the file: {_short(edit.old)}{hint(file, edit.old)}"
        raise ToolError(f"{reason}\n{nearest(file, edit.old)}")
    if len(found) == 1:
        return found
    if edit.replace_all:
        return _disjoint(found)
    lines = list(dict.fromkeys(file.line_of(match.start) for match in found))
    times = f"{len(found)} times" if len(found) < MAX_PLACES else f"{MAX_PLACES} times or more"
    more = " and more" if len(lines) > 20 or len(found) == MAX_PLACES else ""
    raise ToolError(
        f"{prefix}`old` occurs {times}, at lines {', '.join(map(str, lines[:20]))}{more}; add surrounding lines to "
        f"make it unique, or set replace_all"
    )


def _disjoint(matches: list[matching.Match]) -> list[matching.Match]:
    kept: list[matching.Match] = []
    for match in matches:
        if not kept or match.start >= kept[-1].end:
            kept.append(match)
    return kept


def _new_lines(file: FileText, chosen: list[matching.Match]) -> tuple[int, ...]:
    shift, out = 0, list[int]()
    for match in chosen:
        out.append(file.line_of(match.start) + shift)
        shift += match.new.count("\n") - file.text.count("\n", match.start, match.end)
    return tuple(out)


# ------------------------------------------------------------------------------------------------- telling
def nearest(file: FileText, old: str) -> str:
    """The region of the file most like `old`, with line numbers and visible white space."""
    wanted = [line.strip() for line in old.split("\n") if line.strip()]
    if not wanted or not file.n_lines:
        return "The file is empty." if not file.n_lines else ""
    lines = [line.strip() for line in file.text.split("\n")]
    at = _best_line(lines, wanted)
    if at is None:
        return "No line of the file is like it; read the file again."
    count = min(len(old.rstrip("\n").split("\n")) + 2, MAX_SHOWN_LINES)
    first = max(1, at - 1)
    shown = [f"{n}\t{show_blanks(visible(file.line(n)))}" for n in range(first, min(first + count, file.n_lines + 1))]
    return "The nearest lines are (leading and trailing · is a space, → a tab):\n" + "\n".join(shown)


def _best_line(lines: list[str], wanted: list[str]) -> int | None:
    """1-based line where `wanted` most likely should begin."""
    where: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        where.setdefault(line, []).append(number)
    votes: dict[int, int] = {}
    for offset, line in enumerate(wanted):
        for number in where.get(line, [])[:50]:
            votes[max(1, number - offset)] = votes.get(max(1, number - offset), 0) + len(line)
    if votes:
        return max(votes, key=lambda start: (votes[start], -start))
    close = difflib.get_close_matches(wanted[0][:MAX_LIKENED_CHARS], _likely(list(where), wanted[0]), 1, 0.5)
    return next(numbers[0] for line, numbers in where.items() if line.startswith(close[0])) if close else None


def _likely(lines: list[str], wanted: str) -> list[str]:
    """The beginnings of those lines that have most letters in common with the wanted one, three at a time."""
    wanted = wanted[:MAX_LIKENED_CHARS]
    grams = {wanted[at : at + 3] for at in range(0, max(1, len(wanted) - 2), 1 + len(wanted) // 64)}
    starts = dict.fromkeys(line[:MAX_LIKENED_CHARS] for line in lines[:MAX_SCORED] if line)
    return heapq.nlargest(MAX_LIKENED, starts, key=lambda line: sum(gram in line for gram in grams))


def show_blanks(line: str) -> str:
    """`line` with its leading and trailing white space made visible, clipped."""
    line = without_ending(line)
    body = line.strip(" \t")
    if not body:
        return _marks(line)
    start = line.index(body)
    clipped = body if len(body) <= MAX_SHOWN_WIDTH else body[:MAX_SHOWN_WIDTH] + "…"
    return _marks(line[:start]) + clipped + _marks(line[start + len(body) :])


def _marks(blanks: str) -> str:
    return blanks.replace(" ", "·").replace("\t", "→")


def _short(text: str) -> str:
    line = next((line for line in text.split("\n") if line.strip()), text)
    return repr(line[:80] + ("…" if len(line) > 80 else ""))


def _describe(place: Place, change: FileChange, edited: Edited) -> str:
    if not change.before:
        return f"Created {place.name} ({count_lines(edited.after)} lines)." + describe_faults(change)
    lines = ", ".join(map(str, edited.lines[:20]))
    text = f"Edited {place.name}: {len(edited.lines)} replacement{'s' * (len(edited.lines) != 1)}, at line {lines}."
    if edited.notes:
        text += f"\nNote: `old` differed from the file in {' and '.join(edited.notes)}; the file's own form was kept."
    return text + describe_faults(change)


def count_lines(data: bytes) -> int:
    """Lines of UTF-8 text; a last line without newline counts."""
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def describe_faults(change: FileChange) -> str:
    """New syntax errors of a changed file, as a paragraph for the model."""
    if not change.after:
        return ""
    try:
        before = decode(change.before).text if change.before else ""
    except ToolError:
        before = ""
    return report(change.path, before, decode(change.after).text)

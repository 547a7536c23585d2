"""The `patch` tool: several files in one envelope, all or nothing.

*** Begin Patch
*** Add File: path            lines with +
*** Delete File: path
*** Update File: path         optionally *** Move to: path, then hunks
@@ a line above the place (optional; several: each below the one before)
 context   -old   +new
*** End of File (optional: the hunk ends at the end of the file)
*** End Patch
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import require_writable
from .base import Access, BaseTool, FileChange, ToolContext, ToolError, ToolResult, object_schema
from .edit import describe_faults, nearest
from .filetext import FileText, decode, require_unicode
from .matching import Match, find_lines
from .placeholders import placeholder_in
from .workspace import Place, Workspace

_HEADER = re.compile(r"\*\*\* (Add|Update|Delete) File:\s*(.+?)\s*")
MAX_PLACES = 50  # of a hunk, that are told apart
_MOVE = re.compile(r"\*\*\* Move to:\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place to change: the lines to look below, one after the other, old and new lines, and whether it ends the
    file."""

    anchors: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    at_end: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """What happens to one file. `lines` are those of a new file."""

    kind: str  # "add", "update", "delete"
    path: str
    move_to: str | None = None
    lines: tuple[str, ...] = ()
    hunks: tuple[Hunk, ...] = ()


class PatchTool(BaseTool):
    """Adds, updates, moves and deletes files by one patch."""

    name = "patch"
    access: Access = "write"
    description = (
        "Change several files at once, all or nothing. Format: `*** Begin Patch`, then per file `*** Add File: "
        "p` (lines "
        "with +), `*** Delete File: p`, or `*** Update File: p` (optional `*** Move to: q`) with hunks of `@@`, "
        "then lines "
        "with space (context), - or +; last `*** End Patch`."
    )
    parameters = object_schema({"patch": {"type": "string"}}, ("patch",))

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Every path of the patch, targets of moves too; none when it cannot be read."""
        try:
            operations = parse_patch(str(arguments.get("patch", "")))
        except ToolError:
            return ()
        return tuple(path for each in operations for path in (each.path, each.move_to) if path is not None)

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """The changes as they would be made now."""
        with suppress(OSError):
            workspace: Workspace = context.workspace
            operations = parse_patch(arguments["patch"])
            return _plan(workspace, operations, {p: workspace.resolve(p) for p in self.paths(arguments)})
        return ()

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        workspace: Workspace = context.workspace
        operations = parse_patch(arguments["patch"])
        places: dict[str, Place] = {path: context.place(path) for path in self.paths(arguments)}
        async with workspace.locked(*(place.path for place in places.values())):
            changes = await asyncio.to_thread(_plan, workspace, operations, places)
            workspace.commit(changes)
        lines = [_line(workspace, change) for change in changes]
        return ToolResult("\n".join(lines) + "".join(map(describe_faults, changes)), changes=changes)


def _line(workspace: Workspace, change: FileChange) -> str:
    verb = "Added" if change.before is None else "Deleted" if change.after is None else "Updated"
    return f"{verb} {workspace.display(change.path)}"


# ------------------------------------------------------------------------------------------------- reading
def parse_patch(text: str) -> tuple[Operation, ...]:
    """Read the envelope; raises ToolError naming the line that is wrong."""
    lines = [line.removesuffix("\r") for line in text.strip("\n\r ").split("\n")]
    if lines and re.fullmatch(r"```\w*", lines[0].strip()) and lines[-1].strip() == "```":
        lines = lines[1:-1]
    if not lines or lines[0].strip() != "*** Begin Patch":
        raise ToolError("the patch must begin with the line `*** Begin Patch`")
    if lines[-1].strip() != "*** End Patch":
        raise ToolError("the patch must end with the line `*** End Patch`")
    operations = tuple(_operations(lines[1:-1]))
    if not operations:
        raise ToolError("the patch is empty")
    return operations


def _operations(lines: list[str]) -> Iterator[Operation]:
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        header = _HEADER.fullmatch(lines[at].strip())
        if header is None:
            raise ToolError(
                f"line {at + 2} of the patch is not a file header: {lines[at][:80]!r}; "
                "use `*** Add File: `, `*** Update File: ` or `*** Delete File: `"
            )
        end = at + 1
        while end < len(lines) and not (lines[end].startswith("***") and _HEADER.fullmatch(lines[end].rstrip())):
            if lines[end].startswith("*** ") and not _is_inner(lines[end].rstrip()):
                raise ToolError(f"line {end + 2} of the patch is not known: {lines[end][:80]!r}")
            end += 1
        yield _operation(header.group(1).lower(), header.group(2), lines[at + 1 : end], at + 3)
        at = end


def _is_inner(line: str) -> bool:
    return _MOVE.fullmatch(line) is not None or line == "*** End of File"


def _operation(kind: str, path: str, body: list[str], number: int) -> Operation:
    if kind == "delete":
        if any(line.strip() for line in body):
            raise ToolError(f"line {number} of the patch: nothing may follow `*** Delete File: {path}`")
        return Operation(kind, path)
    if kind == "add":
        while body and not body[-1].strip():
            body = body[:-1]
        bad = next((line for line in body if not line.startswith("+")), None)
        if bad is not None:
            raise ToolError(f"every line of the new file {path} must begin with +, not {bad[:60]!r}")
        return Operation(kind, path, lines=tuple(line[1:] for line in body))
    move = _MOVE.fullmatch(body[0].strip()) if body else None
    hunks = tuple(_hunks(path, body[1:] if move else body))
    if not hunks and move is None:
        raise ToolError(f"the update of {path} has no hunk")
    return Operation(kind, path, move.group(1) if move else None, hunks=hunks)


def _hunks(path: str, lines: list[str]) -> Iterator[Hunk]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    anchors, body, started = list[str](), list[str](), False
    for line in lines:
        if line.startswith("@@"):
            if started and (body or not anchors):
                yield _hunk(path, anchors, body)
                anchors = []
            anchors, body, started = [*anchors, *filter(None, [_anchor(line)])], [], True
        elif not line or line[0] in " +-" or line.strip() == "*** End of File":
            body.append(line)
            started = True
        else:
            raise ToolError(f"in the update of {path} a line begins with neither space, + nor -: {line[:60]!r}")
    if started:
        yield _hunk(path, anchors, body)


def _anchor(line: str) -> str:
    """The text after `@@`; the line numbers of a unified diff say nothing here."""
    return re.sub(r"^@@(\s*-\d+(,\d+)?\s+\+\d+(,\d+)?\s*@@)?", "", line).strip()


def _hunk(path: str, anchors: list[str], body: list[str]) -> Hunk:
    at_end = bool(body) and body[-1].strip() == "*** End of File"
    body = body[:-1] if at_end else body
    while body and body[-1] == "":
        body = body[:-1]
    if not any(line[:1] in ("+", "-") for line in body):
        raise ToolError(f"a hunk of {path} changes nothing")
    old = tuple(line[1:] for line in body if line[:1] != "+")
    new = tuple(line[1:] for line in body if line[:1] != "-")
    return Hunk(tuple(anchors), old, new, at_end)


# ------------------------------------------------------------------------------------------------- planning
def _plan(
    workspace: Workspace, operations: tuple[Operation, ...], places: Mapping[str, Place]
) -> tuple[FileChange, ...]:
    """All changes, worked out against the files as they are; raises ToolError before anything is changed."""
    changes: dict[Path, FileChange] = {}
    for operation in operations:
        for change in _changes(workspace, operation, places):
            if change.path in changes:
                raise ToolError(f"the patch names {workspace.display(change.path)} twice")
            changes[change.path] = change
    return tuple(changes.values())


def _changes(workspace: Workspace, operation: Operation, places: Mapping[str, Place]) -> Iterator[FileChange]:
    place = places[operation.path]
    if operation.kind == "add":
        yield _creation(place, _text(operation.lines).encode("utf-8"))
        return
    before = workspace.read_file(place)
    require_writable(place.path)
    if operation.kind == "delete":
        yield FileChange(_link(workspace, place) or place.path, before, None)
        return
    after = _updated(operation, decode(before)) if operation.hunks else before
    if operation.move_to is None or places[operation.move_to].path == place.path:
        yield FileChange(place.path, before, after)
        return
    yield _creation(places[operation.move_to], after, like=place.path)
    yield FileChange(place.path, before, None)


def _link(workspace: Workspace, place: Place) -> Path | None:
    """Where the link itself is that a path names; None when it names no link."""
    if not place.lexical.is_symlink():
        return None
    link = Path(os.path.realpath(place.lexical.parent), place.lexical.name)
    if link != place.lexical and not workspace.contains(link):
        raise ToolError(f"{place.text} is a link behind another one that leads outside; it was not deleted")
    return link


def _creation(place: Place, data: bytes, like: Path | None = None) -> FileChange:
    if place.text.endswith("/") or place.path.is_dir():
        raise ToolError(f"{place.text} is a folder; give a file name")
    if place.path.exists():
        raise ToolError(f"{place.text} exists already; update it instead")
    return FileChange(place.path, None, data, like)


def _text(lines: tuple[str, ...]) -> str:
    text = "".join(line + "\n" for line in lines)
    require_unicode(text)
    return text


def _updated(operation: Operation, file: FileText) -> bytes:
    """The file with its hunks put in, in order; each is looked for below the one before."""
    matches: list[Match] = []
    floor = 0
    for number, hunk in enumerate(operation.hunks, 1):
        match = _place(operation.path, file, hunk, floor, number)
        matches.append(match)
        floor = match.end
    return file.spliced([(match.start, match.end, match.new) for match in matches])


def _place(path: str, file: FileText, hunk: Hunk, floor: int, number: int) -> Match:
    old, new = _text(hunk.old), _text(hunk.new)
    if (left_out := placeholder_in(new, old)) is not None:
        raise ToolError(f"{path}: the patch holds a placeholder for left-out code ({left_out!r}); write it in full")
    for anchor in hunk.anchors:
        floor = max(floor, _below_anchor(path, file, anchor, floor))
    if not hunk.old:
        return _insertion(file, hunk, floor, new)
    if hunk.at_end:
        last = file.line_of(len(file.text)) - len(hunk.old)  # it begins there or below
        floor = max(floor, file.line_span(max(last, 1))[0])
    found = find_lines(file, old, new, MAX_PLACES, floor)
    if hunk.at_end:
        found = [match for match in found if match.end == len(file.text)]
    if not found:
        raise ToolError(
            f"{path}: hunk {number} does not fit anywhere below line {file.line_of(floor)}.\n{nearest(file, old)}"
        )
    if len(found) > 1 and not hunk.anchors:
        lines = ", ".join(str(file.line_of(match.start)) for match in found[:10])
        raise ToolError(
            f"{path}: hunk {number} fits at lines {lines}; add context lines, or a line from above after `@@ `"
        )
    return found[0]


def _below_anchor(path: str, file: FileText, anchor: str, floor: int) -> int:
    for number in range(file.line_of(floor), file.n_lines + 1):
        if file.line(number).strip() == anchor:
            return file.line_span(number)[1]
    for number in range(file.line_of(floor), file.n_lines + 1):
        if anchor in file.line(number):
            return file.line_span(number)[0]
    raise ToolError(f"{path}: the line after @@ was not found: {anchor!r}")


def _insertion(file: FileText, hunk: Hunk, floor: int, new: str) -> Match:
    """Lines that only come in: below the anchor, else at the end of the file."""
    at = floor if hunk.anchors else len(file.text)
    ending = file.ending_near(at)
    text = new.replace("\n", ending) if ending != "\n" else new
    if at == len(file.text) and file.text and not file.text.endswith("\n"):
        return Match(at, at, ending + text.removesuffix(ending))
    return Match(at, at, text)

"""The `read` tool: a page of a text file with line numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import Access, BaseTool, ToolContext, ToolError, ToolResult, object_schema
from .filetext import FileText, decode, visible
from .workspace import Place, Workspace

DEFAULT_LIMIT = 2000
MAX_LINE_CHARS = 2000
MAX_PAGE_CHARS = 60_000


class ReadTool(BaseTool):
    """Shows lines `offset` … `offset + limit - 1`; never more than a page's worth of characters."""

    name = "read"
    access: Access = "read"
    description = (
        "Read a text file. Lines come with their numbers and a tab in front, which are not part of the file. For long "
        "files use offset (first line; negative counts from the end) and limit."
    )
    parameters = object_schema(
        {
            "path": {"type": "string"},
            "offset": {"type": "integer", "default": 1},
            "limit": {"type": "integer", "default": DEFAULT_LIMIT},
        },
        ("path",),
    )

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        workspace: Workspace = context.workspace
        place = context.place(arguments["path"])
        data = workspace.read_file(place)
        file = decode(data)
        if not file.text:
            workspace.note_seen(place.path, data)
            return ToolResult(f"{place.text} is empty (0 lines).")
        first = _first_line(file, place, arguments.get("offset", 1))
        limit = arguments.get("limit", DEFAULT_LIMIT)
        if limit < 1:
            raise ToolError("limit must be at least 1")
        body, end = _page(file, first, min(first + limit, file.n_lines + 1))
        workspace.note_seen(place.path, data, first, first)  # it was read, though perhaps no line whole
        for start, stop in _whole_runs(file, first, end):
            workspace.note_seen(place.path, data, start, stop)
        return ToolResult(body + _notice(file, first, end))


def _page(file: FileText, first: int, stop: int) -> tuple[str, int]:
    """The numbered lines from `first`, and the number of the line that would come next."""
    shown: list[str] = []
    used = 0
    for number in range(first, stop):
        line = f"{number}\t{clip(visible(file.line(number)))}\n"
        if shown and used + len(line) > MAX_PAGE_CHARS:
            return "".join(shown), number
        shown.append(line)
        used += len(line)
    return "".join(shown), stop


def _whole_runs(file: FileText, first: int, end: int) -> Iterator[tuple[int, int]]:
    """The lines of a page but for those that were clipped: the model does not know those."""
    start = first
    for number in range(first, end):
        span = file.line_span(number)
        if span[1] - span[0] > MAX_LINE_CHARS and len(file.line(number)) > MAX_LINE_CHARS:
            if start < number:
                yield start, number
            start = number + 1
    if start < end:
        yield start, end


def _first_line(file: FileText, place: Place, offset: int) -> int:
    if offset < 0:
        return max(1, file.n_lines + 1 + offset)
    if offset > file.n_lines:
        raise ToolError(f"offset {offset} is past the end: {place.text} has {file.n_lines:,} lines")
    return max(1, offset)


def clip(line: str, limit: int = MAX_LINE_CHARS) -> str:
    """A line, cut at `limit` characters with a notice of how much is left out."""
    if len(line) <= limit:
        return line
    return f"{line[:limit]}… [{len(line) - limit:,} more characters of this line not shown]"


def _notice(file: FileText, first: int, end: int) -> str:
    notes: list[str] = []
    if first > 1 or end <= file.n_lines:
        shown = f"showing lines {first}–{end - 1} of {file.n_lines:,}"
        notes.append(shown + (f"; continue with offset={end}" if end <= file.n_lines else ""))
    if "\r\n" in file.text:
        n_crlf = file.text.count("\r\n")
        notes.append("CRLF line endings" if n_crlf == len(file.newlines) else "mixed CRLF and LF line endings")
    if file.encoding != "utf-8":
        notes.append(f"encoding {file.encoding}")
    if file.errors == "surrogateescape":
        notes.append("bytes that are not UTF-8 are shown as \ufffd")
    return f"[{'; '.join(notes)}]\n" if notes else ""

"""The `grep` tool: lines that match a regular expression, by file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .base import Access, BaseTool, ToolContext, ToolError, ToolResult, object_schema
from .filetext import show_name
from .glob import shown_path
from .globbing import compile_glob
from .search import FileHits, Hit, Query, search_files
from .walk import files
from .workspace import Place, Workspace

DEFAULT_LIMIT = 100
MAX_CONTEXT = 20
MAX_LINE_CHARS = 400
MAX_TEXT_CHARS = 60_000


@dataclass(frozen=True, slots=True)
class Targets:
    """Files to search, with the names to show; how many guarded files were passed over."""

    files: tuple[tuple[Path, str], ...]
    n_guarded: int


class GrepTool(BaseTool):
    """Searches file contents."""

    name = "grep"
    access: Access = "read"
    description = (
        "Search file contents with a regular expression (literal=true for plain text). `path` is a file or "
        "folder, `glob` "
        "filters file names, `context` shows lines around. Ignored files are searched only when their folder is "
        "named."
    )
    parameters = object_schema(
        {
            "pattern": {"type": "string"},
            "path": {"type": "string", "default": "."},
            "glob": {"type": "string"},
            "ignore_case": {"type": "boolean", "default": False},
            "literal": {"type": "boolean", "default": False},
            "context": {"type": "integer", "default": 0},
            "limit": {"type": "integer", "default": DEFAULT_LIMIT},
        },
        ("pattern",),
    )

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`grep PATTERN`, with the place when it is not the workspace."""
        path = arguments.get("path", ".")
        return f"grep {arguments.get('pattern', '')}" + (f" in {path}" if path != "." else "")

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The searched file or folder."""
        return (str(arguments.get("path", ".")),)

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        workspace: Workspace = context.workspace
        place = context.place(arguments.get("path", "."))
        query = _query(arguments)
        targets = await asyncio.to_thread(_targets, workspace, place, arguments.get("glob"))
        hits, problems = await search_files(query, [path for path, _ in targets.files])
        names = dict(targets.files)
        return ToolResult(_render(query, hits, names, targets, problems, arguments.get("limit", DEFAULT_LIMIT)))


def _query(arguments: Mapping[str, Any]) -> Query:
    pattern = arguments["pattern"]
    if not pattern:
        raise ToolError("pattern is empty")
    if "\n" in pattern:
        raise ToolError("the pattern holds a newline, but lines are searched one by one; search for one of its lines")
    context = arguments.get("context", 0)
    return Query(
        pattern,
        literal=arguments.get("literal", False),
        ignore_case=arguments.get("ignore_case", False),
        context=max(0, min(context, MAX_CONTEXT)),
    )


def _targets(workspace: Workspace, place: Place, glob: str | None) -> Targets:
    if not place.path.exists():
        raise ToolError(f"{place.text} does not exist")
    if not place.path.is_dir():
        if not place.path.is_file():
            raise ToolError(f"{place.text} is not a regular file")
        return Targets(((place.path, place.name),), 0)
    wanted = compile_glob(glob.removeprefix("!")) if glob else None
    negated = bool(glob) and str(glob).startswith("!")
    chosen: list[tuple[Path, str]] = []
    guarded = 0
    for entry in files(place.path, workspace.root):
        if wanted is not None and (wanted.fullmatch(entry.name) is None) != negated:
            continue
        if workspace.is_guarded(entry.path):
            guarded += 1
        else:
            chosen.append((entry.path, shown_path(place, entry.name)))
    return Targets(tuple(chosen), guarded)


# ------------------------------------------------------------------------------------------------- showing
def _render(
    query: Query, hits: list[FileHits], names: dict[Path, str], targets: Targets, problems: list[str], limit: int
) -> str:
    limit = max(1, limit)
    n_matches = sum(file.n_matches for file in hits)
    lines: list[str] = []
    shown = used = 0
    for file in hits:
        if shown >= limit or used > MAX_TEXT_CHARS:
            break
        block = [show_name(names[file.path]), *_file_lines(file, limit - shown)]
        shown += min(file.n_matches, limit - shown)
        lines += block
        used += sum(map(len, block))
    notes = list(problems)
    if shown < n_matches:
        notes.append(f"showing {shown} of {n_matches:,} matches; narrow the pattern or path, or raise limit")
    if targets.n_guarded:
        notes.append(f"{targets.n_guarded} guarded file{'s' * (targets.n_guarded != 1)} (secrets) not searched")
    if not lines:
        lines = [f"No matches for {query.pattern} in {len(targets.files):,} files."]
    return "\n".join(lines + [f"[{note}]" for note in notes]) + "\n"


def _file_lines(file: FileHits, limit: int) -> Iterator[str]:
    """`  12: text` for matches, `  12- text` for context, `  --` between groups that do not touch."""
    last = 0
    left = limit
    for hit in file.hits:
        if hit.is_match and left == 0:
            return
        if last and hit.line > last + 1 and any(not each.is_match for each in file.hits):
            yield "  --"
        yield f"  {hit.line}{':' if hit.is_match else '-'} {clip_around(hit)}"
        last = hit.line
        left -= hit.is_match


def clip_around(hit: Hit) -> str:
    """The line, or `MAX_LINE_CHARS` of it around the match."""
    text = hit.text
    if len(text) <= MAX_LINE_CHARS:
        return text
    start = max(0, min(hit.column - MAX_LINE_CHARS // 4, len(text) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    shown = ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
    return f"{shown} [line of {hit.length:,} characters]"

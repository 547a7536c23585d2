"""The `outline` and `replace_symbol` tools: classes, functions and methods as tree-sitter sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .atomic import require_writable
from .base import Access, BaseTool, FileChange, ToolContext, ToolError, ToolResult, object_schema
from .edit import describe_faults
from .filetext import FileText, decode, require_unicode
from .languages import language_of
from .placeholders import placeholder_in
from .spans import Symbol, symbols_of
from .syntax import MAX_PARSED_BYTES
from .workspace import Place, Workspace

MAX_SHOWN = 400


def _opened(workspace: Workspace, place: Place) -> tuple[bytes, FileText, list[Symbol]]:
    data = workspace.read_file(place)
    file = decode(data)
    language = language_of(place.path)
    if language is None:
        raise ToolError(f"no outline for {place.path.suffix or 'this kind of'} files; use read or grep")
    if len(data) > MAX_PARSED_BYTES:
        raise ToolError(f"{place.text} is too large to outline; use grep")
    return data, file, symbols_of(file, language)


class OutlineTool(BaseTool):
    """Names the symbols of a file."""

    name = "outline"
    access: Access = "read"
    description = "List the classes, functions and methods of a source file with their lines."
    parameters = object_schema({"path": {"type": "string"}}, ("path",))

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        place = context.place(arguments["path"])
        _, file, found = await asyncio.to_thread(_opened, context.workspace, place)
        if not found:
            return ToolResult(f"{place.text} has no symbols ({file.n_lines} lines).")
        lines = [f"{'  ' * s.depth}{s.kind} {s.label}  {_lines(s)}" for s in found[:MAX_SHOWN]]
        more = f"\n[showing {MAX_SHOWN} of {len(found):,} symbols]" if len(found) > MAX_SHOWN else ""
        return ToolResult("\n".join(lines) + more)


def _lines(symbol: Symbol) -> str:
    return f"{symbol.first_line}-{symbol.last_line}" if symbol.last_line > symbol.first_line else str(symbol.first_line)


class ReplaceSymbolTool(BaseTool):
    """Replaces a whole symbol."""

    name = "replace_symbol"
    access: Access = "write"
    description = (
        "Replace a whole function, class or method (decorators included) by its full new text. `symbol` is a name from "
        "outline, with the class before it where needed: `Store.put`."
    )
    parameters = object_schema(
        {"path": {"type": "string"}, "symbol": {"type": "string"}, "content": {"type": "string"}},
        ("path", "symbol", "content"),
    )

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`replace_symbol PATH SYMBOL`."""
        return f"replace_symbol {arguments.get('path', '')} {arguments.get('symbol', '')}"

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """The change as it would be made now."""
        with suppress(OSError):
            place = context.workspace.resolve(arguments["path"])
            return (_replacement(context.workspace, place, arguments)[0],)
        return ()

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        workspace: Workspace = context.workspace
        place = context.place(arguments["path"])
        async with workspace.locked(place.path):
            change, symbol = _replacement(workspace, place, arguments)
            workspace.commit((change,))
        text = f"Replaced {symbol.kind} {symbol.name} in {place.name} (was lines {_lines(symbol)})."
        return ToolResult(text + describe_faults(change), changes=(change,))


def _replacement(workspace: Workspace, place: Place, arguments: Mapping[str, Any]) -> tuple[FileChange, Symbol]:
    data, file, found = _opened(workspace, place)
    require_writable(place.path)
    require_unicode(arguments["content"])
    symbol = _chosen(found, arguments["symbol"], place)
    old = file.text[symbol.start : symbol.end]
    if (left_out := placeholder_in(arguments["content"], old)) is not None:
        raise ToolError(f"the content holds a placeholder for left-out code ({left_out!r}); write it in full")
    new = _fitted(file, symbol, arguments["content"])
    after = file.spliced([(symbol.start, symbol.end, new)])
    if after == data:
        raise ToolError("the content is what is there already")
    return FileChange(place.path, data, after), symbol


def _chosen(found: list[Symbol], wanted: str, place: Place) -> Symbol:
    name = (
        wanted.strip().removesuffix("()").replace("::", ".").replace("#", ".") if "#" not in wanted else wanted.strip()
    )
    exact = [symbol for symbol in found if symbol.name == name]
    matches = exact or [symbol for symbol in found if symbol.name.endswith("." + name)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        known = ", ".join(symbol.name for symbol in found[:40]) or "none"
        raise ToolError(f"{place.text} has no symbol {wanted!r}; it has: {known}")
    places = ", ".join(f"{symbol.name} (line {symbol.first_line})" for symbol in matches)
    raise ToolError(f"{wanted!r} is not unique in {place.text}: {places}; use edit, or the name with what it is in")


def _fitted(file: FileText, symbol: Symbol, content: str) -> str:
    """The content as it goes where the symbol was: the line's indentation and endings, no blank lines around."""
    line_start = file.text.rfind("\n", 0, symbol.start) + 1
    indent = file.text[line_start : symbol.start]
    lines = content.strip("\r\n").replace("\r\n", "\n").split("\n")
    if indent and not indent.strip():
        lines = _reindented(lines, indent)
    ending = file.ending_near(symbol.start)
    return ending.join(lines)


def _reindented(lines: list[str], indent: str) -> list[str]:
    """Lines whose first stands at column 0 move to `indent`; those that are there already stay. The first line's own
    indentation is in the file already."""
    if lines[0].startswith(indent):
        return [lines[0][len(indent) :], *lines[1:]]
    own = lines[0][: len(lines[0]) - len(lines[0].lstrip(" \t"))]
    moved = [indent + line.removeprefix(own) if line.strip() else line for line in lines[1:]]
    return [lines[0].lstrip(" \t"), *moved]

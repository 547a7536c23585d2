"""The `outline` and `replace_symbol` tools: classes, functions and methods as tree-sitter sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tree_sitter import Node

from .atomic import require_writable
from .base import Access, BaseTool, FileChange, ToolContext, ToolError, ToolResult, object_schema
from .edit import describe_faults
from .filetext import FileText, decode, require_unicode, visible
from .languages import language_of
from .placeholders import placeholder_in
from .syntax import MAX_PARSED_BYTES, parse
from .workspace import Place, Workspace

MAX_SHOWN = 400
# Node types that make a symbol, by what we call them.
KINDS: dict[str, str] = {
    "function_definition": "function",
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "function_item": "function",
    "function_signature_item": "function",
    "method_definition": "method",
    "method_declaration": "method",
    "constructor_declaration": "constructor",
    "class_definition": "class",
    "class_declaration": "class",
    "abstract_class_declaration": "class",
    "class_specifier": "class",
    "struct_specifier": "struct",
    "struct_item": "struct",
    "union_specifier": "union",
    "union_item": "union",
    "enum_specifier": "enum",
    "enum_item": "enum",
    "enum_declaration": "enum",
    "record_declaration": "record",
    "interface_declaration": "interface",
    "annotation_type_declaration": "interface",
    "trait_item": "trait",
    "impl_item": "impl",
    "mod_item": "module",
    "namespace_definition": "namespace",
    "internal_module": "namespace",
    "type_alias_declaration": "type",
    "type_item": "type",
    "type_spec": "type",
    "type_definition": "type",
    "macro_definition": "macro",
    "preproc_function_def": "macro",
    "rule_set": "rule",
    "element": "element",
    "pair": "key",
}
DECORATED = ("decorated_definition", "export_statement", "template_declaration", "type_declaration")
VALUES = ("arrow_function", "function_expression", "function", "class")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named piece of code: its dotted name and the last part of it, kind, character span, lines (1-based, both
    included) and nesting."""

    name: str
    label: str
    kind: str
    start: int
    end: int
    first_line: int
    last_line: int
    depth: int


def symbols_of(file: FileText, language: str) -> list[Symbol]:
    """All symbols in order of place."""
    text = visible(file.text)
    data = text.encode("utf-8")
    tree = parse(text, language)
    chars = _CharOffsets(text, data)
    return list(_symbols(tree.root_node, language, chars, "", 0))


class _CharOffsets:
    """Byte offsets of the parsed UTF-8 back to characters."""

    def __init__(self, text: str, data: bytes) -> None:
        self._data = data
        self._ascii = len(text) == len(data)

    def __call__(self, offset: int) -> int:
        return offset if self._ascii else len(self._data[:offset].decode("utf-8", "ignore"))


def _symbols(node: Node, language: str, chars: _CharOffsets, prefix: str, depth: int) -> Iterator[Symbol]:
    for child in node.named_children:
        inner, whole = child, child
        while inner.type in DECORATED and (found := _definition(inner)) is not None:
            inner = found
        named = _named(inner, language, depth)
        if named is None:
            yield from _symbols(child, language, chars, prefix, depth)
            continue
        name, kind = named
        full = f"{prefix}.{name}" if prefix else name
        yield _symbol(whole, full, name, kind, chars, depth)
        if kind not in ("key", "element", "rule") or depth < 1:
            yield from _symbols(inner, language, chars, full, depth + 1)


def _definition(node: Node) -> Node | None:
    """What a decorator, `export` or template stands before."""
    for field in ("definition", "declaration", "value"):
        if (found := node.child_by_field_name(field)) is not None:
            return found
    wanted = [child for child in node.named_children if child.type in KINDS or child.type in DECORATED]
    return wanted[0] if len(wanted) == 1 else None


def _symbol(node: Node, name: str, label: str, kind: str, chars: _CharOffsets, depth: int) -> Symbol:
    end = node.end_point
    last = end.row + 1 if end.column else end.row
    return Symbol(
        name, label, kind, chars(node.start_byte), chars(node.end_byte), node.start_point.row + 1, last, depth
    )


def _named(node: Node, language: str, depth: int) -> tuple[str, str] | None:
    if node.type in ("lexical_declaration", "variable_declaration") and language in ("javascript", "typescript", "tsx"):
        return _variable(node)
    kind = KINDS.get(node.type)
    if kind is None:
        return None
    if node.type.endswith("_specifier") and node.child_by_field_name("body") is None:
        return None
    if kind == "function" and depth and language == "python":
        kind = "method" if _in_class(node) else kind
    name = _name(node, language)
    return (name, kind) if name else None


def _in_class(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type in ("block", *DECORATED):
        parent = parent.parent
    return parent is not None and parent.type == "class_definition"


def _variable(node: Node) -> tuple[str, str] | None:
    """`const f = () => …` and `const A = class …`."""
    declarators = [child for child in node.named_children if child.type == "variable_declarator"]
    if len(declarators) != 1:
        return None
    value, name = declarators[0].child_by_field_name("value"), declarators[0].child_by_field_name("name")
    if value is None or name is None or value.type not in VALUES:
        return None
    return _text(name), "class" if value.type == "class" else "function"


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _name(node: Node, language: str) -> str:
    match node.type:
        case "impl_item":
            kind, trait = node.child_by_field_name("type"), node.child_by_field_name("trait")
            own = _text(kind) if kind else ""
            return f"{_text(trait)} for {own}" if trait else own
        case "method_declaration" if language == "go":
            return _go_method(node)
        case "rule_set":
            return " ".join(_text(node.named_children[0]).split()) if node.named_children else ""
        case "element":
            return _element(node)
        case "pair":
            key = node.child_by_field_name("key")
            return _text(key).strip("\"'") if key else ""
        case "type_definition":
            return _declarator_name(node)
        case _:
            name = node.child_by_field_name("name")
            return _text(name) if name is not None else _declarator_name(node)


def _go_method(node: Node) -> str:
    name, receiver = node.child_by_field_name("name"), node.child_by_field_name("receiver")
    own = _text(receiver).strip("()").split()[-1].lstrip("*").split("[")[0] if receiver else ""
    return f"{own}.{_text(name) if name else ''}".strip(".")


def _element(node: Node) -> str:
    """An HTML element counts when it has an id, or is a head, body, script, style, main and the like."""
    tag = node.named_children[0] if node.named_children else None
    if tag is None or tag.type not in ("start_tag", "self_closing_tag"):
        return ""
    name = _text(tag.named_children[0]) if tag.named_children else ""
    for attribute in tag.named_children[1:]:
        parts = [_text(child).strip("\"'") for child in attribute.named_children]
        if len(parts) == 2 and parts[0] == "id":
            return f"{name}#{parts[1]}"
    return (
        name
        if name in ("head", "body", "header", "main", "footer", "nav", "section", "article", "form", "template")
        else ""
    )


def _declarator_name(node: Node) -> str:
    """The name inside C's nested declarators."""
    inner = node.child_by_field_name("declarator")
    while inner is not None and inner.child_by_field_name("declarator") is not None:
        inner = inner.child_by_field_name("declarator")
    return _text(inner) if inner is not None else ""


# ------------------------------------------------------------------------------------------------- tools
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

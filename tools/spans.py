"""Classes, functions, methods and other named pieces of a file, and the text that each of them takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from tree_sitter import Node

from .filetext import FileText, decode, visible
from .languages import language_of
from .syntax import MAX_PARSED_BYTES, parse

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


def symbols_in(name: str, text: str) -> list[Symbol]:
    """All symbols of a file of this name and text, in order of place; none of a kind or size that is not parsed."""
    language = language_of(PurePath(name))
    if language is None or len(text) > MAX_PARSED_BYTES:
        return []
    return symbols_of(decode(text.encode("utf-8", "replace")), language)


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

"""Tags of a source file: the names it defines, as tree-sitter sees them, and the words it uses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tree_sitter import Node, Query, QueryCursor

from .skeleton import without_bodies
from .syntax import grammar, parse_bytes

MAX_SIGNATURE = 100  # characters
MAX_DEPTH = 10  # of the syntax tree: a method in a class in a class in an `if`
MAX_WORDS = 400  # different ones that count, the most used first
_JAVASCRIPT = """
(function_declaration name: (identifier) @name) @def
(generator_function_declaration name: (identifier) @name) @def
(class_declaration name: (_) @name) @def
(method_definition name: (property_identifier) @name) @def
(lexical_declaration
  (variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)])) @def
"""
_TYPESCRIPT = (
    _JAVASCRIPT
    + """
(abstract_class_declaration name: (_) @name) @def
(interface_declaration name: (_) @name) @def
(type_alias_declaration name: (_) @name) @def
(enum_declaration name: (_) @name) @def
"""
)
_C = """
(function_definition declarator: (function_declarator declarator: (identifier) @name)) @def
(function_definition
  declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))) @def
(struct_specifier name: (type_identifier) @name body: (_)) @def
(union_specifier name: (type_identifier) @name body: (_)) @def
(enum_specifier name: (type_identifier) @name body: (_)) @def
(type_definition declarator: (type_identifier) @name) @def
(preproc_function_def name: (identifier) @name) @def
"""
_QUERIES = {
    "python": """
(function_definition name: (identifier) @name) @def
(class_definition name: (identifier) @name) @def
""",
    "javascript": _JAVASCRIPT,
    "typescript": _TYPESCRIPT,
    "tsx": _TYPESCRIPT,
    "rust": """
(function_item name: (identifier) @name) @def
(function_signature_item name: (identifier) @name) @def
(struct_item name: (type_identifier) @name) @def
(enum_item name: (type_identifier) @name) @def
(union_item name: (type_identifier) @name) @def
(trait_item name: (type_identifier) @name) @def
(type_item name: (type_identifier) @name) @def
(macro_definition name: (identifier) @name) @def
""",
    "go": """
(function_declaration name: (identifier) @name) @def
(method_declaration name: (field_identifier) @name) @def
(type_declaration (type_spec name: (type_identifier) @name)) @def
""",
    "c": _C,
    "cpp": _C
    + """
(class_specifier name: (type_identifier) @name body: (_)) @def
(function_definition declarator: (function_declarator declarator: (field_identifier) @name)) @def
(function_definition declarator: (function_declarator declarator: (qualified_identifier) @name)) @def
(function_definition declarator: (reference_declarator (function_declarator declarator: (_) @name))) @def
""",
    "java": """
(class_declaration name: (identifier) @name) @def
(interface_declaration name: (identifier) @name) @def
(enum_declaration name: (identifier) @name) @def
(record_declaration name: (identifier) @name) @def
(method_declaration name: (identifier) @name) @def
(constructor_declaration name: (identifier) @name) @def
""",
    "bash": "(function_definition name: (word) @name) @def",
}
TAGGED = frozenset(_QUERIES)
_CONTAINERS = re.compile(r"class|struct|union|interface|trait|enum|record")
# Splitting what this leaves takes half the time of a regular expression.
_ONLY_WORDS = bytes(b if (chr(b).isalnum() and b < 128) or b == ord("_") else ord(" ") for b in range(256))


class Tag(NamedTuple):  # a tuple: 100,000 of them are made from JSON and written to it
    """A definition: its name, the text up to its body on one line, its line (1-based), nesting below classes."""

    name: str
    signature: str
    line: int
    depth: int


@cache
def _cursor(language: str) -> QueryCursor:
    cursor = QueryCursor(Query(grammar(language), _QUERIES[language]))
    cursor.set_max_start_depth(MAX_DEPTH)
    return cursor


@cache
def _is_container(node_type: str) -> bool:
    return _CONTAINERS.search(node_type) is not None


def definitions(data: bytes, language: str) -> list[Tag]:
    """Classes, functions and methods in order of place; what is defined inside a function is left out."""
    data, bare = without_bodies(data) if language == "python" else (data, data)
    found: dict[tuple[int, int], tuple[Node, Node]] = {}
    for _, captured in _cursor(language).matches(parse_bytes(bare, language).root_node):
        whole = captured["def"][0]
        found[whole.start_byte, -whole.end_byte] = (whole, captured["name"][0])
    return list(_outermost([found[key] for key in sorted(found)], data))


def _outermost(pairs: list[tuple[Node, Node]], data: bytes) -> Iterator[Tag]:
    open_until: list[tuple[int, bool]] = []  # (end, is it a class or the like) of the definitions around
    for whole, name in pairs:
        while open_until and open_until[-1][0] <= whole.start_byte:
            open_until.pop()
        inside_function = any(not is_class for _, is_class in open_until)
        open_until.append((whole.end_byte, _is_container(whole.type)))
        if not inside_function:
            text = data[name.start_byte : name.end_byte].decode("utf-8", "replace")
            yield Tag(text.rpartition("::")[2], _signature(whole, data), whole.start_point.row + 1, len(open_until) - 1)


def _signature(whole: Node, data: bytes) -> str:
    body = whole.child_by_field_name("body")
    end = body.start_byte if body is not None else whole.end_byte
    text = data[whole.start_byte : min(end, whole.start_byte + 4 * MAX_SIGNATURE)].decode("utf-8", "replace")
    if body is None:
        text = text.split("\n", 1)[0]
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " for c in line)
    line = line.rstrip(" {:=;")
    return line if len(line) <= MAX_SIGNATURE else line[: MAX_SIGNATURE - 1] + "…"


def words(data: bytes) -> str:
    """The words of three characters or more in a file (names, keywords, comments alike) on one line, on the next how
    often each stands there. A text is kept and read faster than a dictionary."""
    counted = Counter(data.translate(_ONLY_WORDS).split())
    for word in [word for word in counted if len(word) < 3 or word[0] <= ord("9")]:
        del counted[word]
    most = counted.most_common(MAX_WORDS)
    return f"{b' '.join(word for word, _ in most).decode('ascii')}\n{' '.join(str(count) for _, count in most)}"

"""tree-sitter grammars by file name, and the syntax errors that a change brought in."""

from __future__ import annotations

import ast
import importlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from tree_sitter import Language, Node, Parser, Tree

from .languages import language_of

MAX_PARSED_BYTES = 2 << 20
MAX_PYTHON_CHARS = 400_000
MAX_REPORTED = 5


@dataclass(frozen=True, slots=True)
class SyntaxFault:
    """A place the grammar does not accept: 1-based line and column (in characters)."""

    line: int
    column: int
    what: str


@cache
def grammar(language: str) -> Language:
    """The tree-sitter grammar of one of LANGUAGES' values."""
    module = importlib.import_module(f"tree_sitter_{'typescript' if language == 'tsx' else language}")
    maker = getattr(module, f"language_{language}" if language in ("typescript", "tsx") else "language")
    pointer: object = maker()
    return Language(pointer)


@cache
def _parser(language: str) -> Parser:
    return Parser(grammar(language))


def parse(text: str, language: str) -> Tree:
    """Parse a text; faults stand in the tree."""
    return parse_bytes(text.encode("utf-8", "replace"), language)


def parse_bytes(data: bytes, language: str) -> Tree:
    """Parse UTF-8 bytes; bytes that are none stand in the tree as faults."""
    return _parser(language).parse(data)


def new_faults(path: PurePath, before: str, after: str) -> list[SyntaxFault]:
    """Syntax errors of `after` that `before` did not have, in order of place; [] for kinds of files we cannot parse."""
    language = language_of(path)
    if language is None or len(after) > MAX_PARSED_BYTES:
        return []
    found = list(faults(after, language))
    if not found:
        return _new_indentation_fault(before, after) if language == "python" else []
    known = Counter(_key(before, fault) for fault in faults(before, language)) if before else Counter[tuple[str, str]]()
    fresh: list[SyntaxFault] = []
    for fault in found:
        key = _key(after, fault)
        if known[key] > 0:
            known[key] -= 1
        else:
            fresh.append(fault)
    return fresh


def _new_indentation_fault(before: str, after: str) -> list[SyntaxFault]:
    """What the grammar overlooks: Python lines whose indentation fits nothing. One at most."""
    fault = _indentation_fault(after)
    return [fault] if fault is not None and (not before or _indentation_fault(before) is None) else []


def _indentation_fault(text: str) -> SyntaxFault | None:
    """Python's own word on it; other errors of its parser depend on its version and are not told."""
    if len(text) > MAX_PYTHON_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except IndentationError as error:
        return SyntaxFault(error.lineno or 1, error.offset or 1, error.msg)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass
    return None


def report(path: PurePath, before: str, after: str) -> str:
    """A paragraph for the model about new syntax errors; empty when there are none."""
    fresh = new_faults(path, before, after)
    if not fresh:
        return ""
    lines = [f"line {fault.line}, column {fault.column}: {fault.what}" for fault in fresh[:MAX_REPORTED]]
    if len(fresh) > MAX_REPORTED:
        lines.append(f"and {len(fresh) - MAX_REPORTED} more")
    return "\nWarning: the file now has a syntax error that it did not have before:\n" + "\n".join(lines)


def _key(text: str, fault: SyntaxFault) -> tuple[str, str]:
    lines = text.split("\n", fault.line)
    return (lines[fault.line - 1].strip() if fault.line <= len(lines) else "", fault.what)


def faults(text: str, language: str) -> Iterator[SyntaxFault]:
    """Every ERROR and MISSING node, outermost first."""
    tree = parse(text, language)
    if not tree.root_node.has_error:
        return
    stack = [tree.root_node]
    while stack:
        node = stack.pop()
        if node.is_missing:
            yield _fault(node, f"missing {node.type!r}")
        elif node.is_error:
            yield _fault(node, f"syntax error near {_excerpt(node)!r}")
        elif node.has_error:
            stack += reversed(node.children)


def _fault(node: Node, what: str) -> SyntaxFault:
    return SyntaxFault(node.start_point.row + 1, node.start_point.column + 1, what)


def _excerpt(node: Node) -> str:
    text = (node.text or b"").decode("utf-8", "replace")
    return text.split("\n", 1)[0][:40]

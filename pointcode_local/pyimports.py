"""Imports that a small model forgot in Python code: which names nothing binds, and the lines that bring them in."""

from __future__ import annotations

import ast
import builtins
import posixpath
import symtable
import sys
from collections.abc import Iterator, Mapping

_GIVEN = frozenset(dir(builtins)) | {"__file__", "__annotations__", "__path__", "__class__"}


def parsed(text: str) -> ast.Module | None:
    """Python code as a tree; None for what is none, or nested too deep."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def unbound_names(text: str) -> list[str]:
    """Names that the code uses and binds nowhere; none where that cannot be known (`import *`, `exec`, no Python)."""
    try:
        tree, top = ast.parse(text), symtable.symtable(text, "<text>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return []
    tables = list(_tables(top))
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree)):
        return []
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    bound |= {s.get_name() for t in tables for s in t.get_symbols() if s.is_declared_global() and s.is_assigned()}
    used: dict[str, None] = {}
    for table in tables:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                used[symbol.get_name()] = None
    order = {name: n for n, name in enumerate(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))}
    missing = [name for name in used if name not in bound and name not in _GIVEN and name in order]
    return [] if used.keys() & {"exec", "globals"} else sorted(missing, key=order.__getitem__)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def offered(path: str, text: str) -> dict[str, str]:
    """What a file of the project offers: name -> its module. Functions and classes at the top level."""
    stem, suffix = posixpath.splitext(path.removeprefix("src/"))
    parts = stem.removesuffix("/__init__").split("/")
    if suffix != ".py" or not all(part.isidentifier() for part in parts):
        return {}
    tree = parsed(text)
    body = tree.body if tree is not None else ()
    named = (node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef))
    return dict.fromkeys(named, ".".join(parts))


def unbound_modules(text: str) -> list[str]:
    """Modules of the standard library that the code uses as `module.name` and binds nowhere."""
    missing = [name for name in unbound_names(text) if name in sys.stdlib_module_names]
    return [name for name in missing if _is_used_as_module(text, name)]


def with_imports(text: str, before: str, known: Mapping[str, str]) -> str:
    """`text` with imports of the names that it binds nowhere and that `before`, the file's old text, did not lack too:
    modules of the standard library that it uses as `module.name`, and names of `known` (name -> module)."""
    lacked = set(unbound_names(before))
    missing = [name for name in unbound_names(text) if name not in lacked]
    modules = sorted(name for name in unbound_modules(text) if name not in lacked)
    by_module: dict[str, list[str]] = {}
    for name in missing:
        if name in known and name not in modules:
            by_module.setdefault(known[name], []).append(name)
    lines = [f"import {name}" for name in modules]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(by_module.items())]
    return _inserted(text, lines) if lines else text


def _is_used_as_module(text: str, name: str) -> bool:
    values = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return any(isinstance(value, ast.Name) and value.id == name for value in values)


def _inserted(text: str, imports: list[str]) -> str:
    """Behind the last import at the top, else behind the docstring, else first."""
    lines = text.split("\n")
    at, is_behind_imports = 0, False
    for i, node in enumerate(ast.parse(text).body):
        is_docstring = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if not (is_docstring or is_import):
            break
        at, is_behind_imports = node.end_lineno or at, is_import
    if not at and lines[0].startswith("#!"):
        at = 1
    new = imports if is_behind_imports or not at else ["", *imports]
    gap = [] if is_behind_imports or (len(lines) > at and not lines[at].strip()) else [""]
    return "\n".join([*lines[:at], *new, *gap, *lines[at:]])

"""The head of a Python file (docstring, comments, imports), which small models forget when they write a file again."""

from __future__ import annotations

import ast
import re

from pointcode_local.pyimports import parsed

_MEANT = re.compile(
    r"\b(?:docstring|comment|header|licen[cs]e|rewrite|replace|remove|delete|empty|only)s?\b", re.IGNORECASE
)

_LINE = re.compile(r"(?<=\n)|(?<=\r)(?!\n)")  # what ends a line for Python: not a form feed


def with_head(before: str, after: str, order: str) -> str:
    """`after` with the head of `before`, where it lost the docstring or an import that it uses; its own imports stay.

    A docstring stays lost where the order may have meant it.
    """
    old, new = parsed(before), parsed(after)
    if old is None or new is None:
        return after
    old_end, new_end = _head_end(old), _head_end(new)
    lost_text = bool(ast.get_docstring(old)) and not ast.get_docstring(new) and not _MEANT.search(order)
    if not old_end or not new_end or not (lost_text or _lost_imports(old, new)):
        return after
    known = {ast.dump(node) for node in _imports(old)}
    own = [ast.unparse(node) for node in _imports(new) if ast.dump(node) not in known and node.lineno < new_end]
    lines, new_lines = _LINE.split(before), _LINE.split(after)
    head = "".join(lines[: old_end - 1])
    text = head.rstrip("\n")
    gap = head[len(text) :]
    return text + "".join(f"\n{line}" for line in own) + gap + "".join(new_lines[new_end - 1 :])


def _head_end(tree: ast.Module) -> int:
    """The 1-based line of the first statement that is neither a docstring nor an import; 0 when there is none."""
    for i, node in enumerate(tree.body):
        is_text = i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not isinstance(node, ast.Import | ast.ImportFrom):
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            return min([node.lineno, *(one.lineno for one in decorators)])
    return 0


def _imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def _lost_imports(old: ast.Module, new: ast.Module) -> set[str]:
    """Names that the new text uses, does not bind, and that the old one imported."""
    used = {node.id for node in ast.walk(new) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return (_imported(old) - _imported(new) - _bound(new)) & used


def _imported(tree: ast.Module) -> set[str]:
    return {(alias.asname or alias.name).partition(".")[0] for node in _imports(tree) for alias in node.names}


def _bound(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case _:
                pass
    return found

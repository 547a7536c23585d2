"""The one function of a file that is meant (a failing check calls it, or it gets a docstring or a parameter): a small
model that writes only that cannot spoil the rest."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection
from dataclasses import replace

from pointcode_local.pyimports import parsed
from pointcode_local.shown_files import Part
from pointcode_local.tools.spans import symbols_in

_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_PLAIN_DEF = re.compile(r"([ \t]*(?:async +)?def +\w+ *\()([^()*\n]*)(\)[^\n]*:[ \t]*\n)")
_FUNCTIONS = ("function", "method")


def called_names(code: str) -> list[str]:
    """The names that a piece of code calls."""
    return list(dict.fromkeys(_CALLED.findall(code)))


def function_part(name: str, text: str, called: Collection[str]) -> Part | None:
    """The lines of the file's only function or method with one of these names; None for none, or several.

    `text` has `\\n` line endings.
    """
    lines = text.splitlines(keepends=True)
    if not called or len(lines) != len(text.rstrip("\n").split("\n")):  # other line ends: numbers would not fit
        return None
    meant = [one for one in symbols_in(name, text) if one.label in called and one.kind in _FUNCTIONS]
    if len(meant) != 1:
        return None
    first, last = meant[0].first_line - 1, meant[0].last_line
    return Part(first, last, "".join(lines[first:last]), is_whole=False, head=lines[first])


def with_parameter(part: Part, name: str, default: str) -> Part | None:
    """The part of a Python function with the beginning that it has once it takes a parameter more; None where that is
    not plain: no default, several lines of parameters, stars."""
    found = _PLAIN_DEF.fullmatch(part.head)
    if found is None or not default or re.search(rf"\b{name}\b", found[2]):
        return None
    comma = ", " if found[2].strip() else ""
    return replace(part, head=f"{found[1]}{found[2].rstrip(', ')}{comma}{name}={default}{found[3]}")


def unused_names(code: str) -> list[str]:
    """Names that a Python function takes or binds and never uses: what it forgets may be its fault."""
    tree = parsed(textwrap.dedent(code))
    if tree is None:
        return []
    bound: dict[str, None] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound[name] = None
            case ast.Name(id=name):
                used.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                used.update(names)
            case _:
                pass
    return [name for name in bound if name not in used and name not in ("self", "cls") and not name.startswith("_")]

"""How many functions, methods, classes and tests a file has: small models cannot count, tree-sitter can."""

from __future__ import annotations

import re

from pointcode_local.tools.spans import Symbol, symbols_in

_ASKED = re.compile(
    r"\b(?:how many|number of|count|list|names? of|which|what)\b[^.?!\n]{0,60}"
    r"\b(?:functions?|methods?|class(?:es)?|tests?(?: cases?)?)\b",
    re.IGNORECASE,
)
MAX_NAMES = 40


def asks_for_names(text: str) -> bool:
    """Whether a question is about the functions, methods, classes or tests there are."""
    return _ASKED.search(text) is not None


def counted(name: str, text: str) -> str:
    """Sentences that count and name what a file defines; "" for a file that defines nothing we know."""
    symbols = symbols_in(name, text)
    tests = [s for s in symbols if s.kind in ("function", "method") and s.label.lower().startswith("test")]
    told = [_sentence(name, "test", tests)] if tests else []
    others = [s for s in symbols if s not in tests]
    told.append(_sentence(name, "function", [s for s in others if s.kind == "function" and s.depth == 0]))
    told.append(_sentence(name, "class", [s for s in others if s.kind == "class"]))
    for one in (s for s in others if s.kind == "class"):
        methods = [s for s in others if s.kind == "method" and s.name == f"{one.name}.{s.label}"]
        told.append(_sentence(f"The class {one.label} in {name}", "method", methods))
    return " ".join(filter(None, told))


def _sentence(where: str, kind: str, symbols: list[Symbol]) -> str:
    if not symbols:
        return ""
    plural = "" if len(symbols) == 1 else "es" if kind.endswith("s") else "s"
    names = ", ".join(s.label for s in symbols[:MAX_NAMES])
    return f"{where} has {len(symbols)} {kind}{plural}: {names}{', …' if len(symbols) > MAX_NAMES else ''}."

"""Glob patterns with ripgrep's meaning: `*` and `?` stay within a name, `**` crosses folders, `{a,b}` and `[…]` work,
and a pattern without `/` is matched against the last name at any depth."""

from __future__ import annotations

import re
from functools import lru_cache

from .base import ToolError


@lru_cache(maxsize=256)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """A regular expression for relative paths; raises ToolError for an unclosed `[` or `{`."""
    body = pattern.removeprefix("./")
    if body.endswith("/"):
        body += "**"
    if "/" not in body and body != "**":
        body = "**/" + body
    return re.compile(_translate(body.lstrip("/"), pattern), re.DOTALL)


def _translate(body: str, pattern: str) -> str:
    out: list[str] = []
    depth = 0
    at = 0
    while at < len(body):
        char = body[at]
        if char == "*":
            piece, at = _stars(body, at)
            out.append(piece)
            continue
        at += 1
        if char == "?":
            out.append("[^/]")
        elif char == "[":
            piece, at = _class(body, at, pattern)
            out.append(piece)
        elif char == "{":
            depth += 1
            out.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            out.append(")")
        elif char == "," and depth:
            out.append("|")
        elif char == "\\" and at < len(body):
            out.append(re.escape(body[at]))
            at += 1
        else:
            out.append(re.escape(char))
    if depth:
        raise ToolError(f"the glob {pattern!r} has an unclosed {{; write \\{{ for a literal one")
    return "".join(out)


def _stars(body: str, at: int) -> tuple[str, int]:
    end = at
    while end < len(body) and body[end] == "*":
        end += 1
    whole = end - at >= 2 and (at == 0 or body[at - 1] in "/{,") and (end == len(body) or body[end] in "/},")
    if not whole:
        return "[^/]*", end
    if end < len(body) and body[end] == "/":
        return "(?:[^/]+/)*", end + 1
    return ".*", end


def _class(body: str, at: int, pattern: str) -> tuple[str, int]:
    end = body.find("]", at + (2 if body[at : at + 1] in ("!", "^") else 1))
    if end < 0:
        raise ToolError(f"the glob {pattern!r} has an unclosed [; write \\[ for a literal one")
    inside = body[at:end]
    negated = inside[:1] in ("!", "^")
    members = inside[1:] if negated else inside
    safe = (
        members.replace("\\", "\\\\")
        .replace("[", "\\[")
        .replace("^", "\\^")
        .replace("&&", "&\\&")
        .replace("||", "|\\|")
    )
    try:
        piece = f"(?!/)[{'^' if negated else ''}{safe}]"
        re.compile(piece)
    except re.error as error:
        raise ToolError(f"the glob {pattern!r} has a bad set [{inside}]: {error}") from error
    return piece, end + 1


def fixed_part(pattern: str) -> tuple[str, str]:
    """Split into the leading folders without wildcards and the rest, so that `../x/*.c` searches `../x` for `*.c`."""
    parts = pattern.split("/")
    count = 0
    while count < len(parts) - 1 and not re.search(r"[*?\[\]{}\\]", parts[count]):
        count += 1
    base = "/".join(parts[:count])
    if pattern.startswith("/") and not base:
        base = "/"
    return base, "/".join(parts[count:])

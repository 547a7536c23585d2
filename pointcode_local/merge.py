"""From a file that a small model wrote anew to the one exact edit that it amounts to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

_REMOVAL = re.compile(r"(?i)\b(?:remove|delete|drop|erase|without|clear|simplif|shorten|empty|only|replace|rewrite)")

_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that is not blank, and the blank lines below it."""

    text: str
    blanks: tuple[str, ...]


def merged(old: str, new: str, order: str) -> str:
    """`new`, with what it left out by the way put back: blank lines below lines that stay or are replaced one by one,
    the end of the file where the order asks for no removal, and the old file's last line ending.

    Line endings are `\\n` in both.
    """
    top, before = _lines(old)
    _, after = _lines(new)
    if not after and not before:
        return old
    keeps_end = not _REMOVAL.search(order)
    out: list[str] = [*top]
    codes = difflib.SequenceMatcher(
        None, [x.text for x in before], [x.text for x in after], autojunk=False
    ).get_opcodes()
    for at, (tag, a, b, c, d) in enumerate(codes):
        gone, come = before[a:b], after[c:d]
        if tag == "delete" and b == len(before) and a > 0 and keeps_end:
            come = gone
        elif tag == "replace" and b == len(before) and keeps_end and _begins_anew(gone[d - c :]):
            come = [*come[:-1], _Line(come[-1].text, gone[d - c - 1].blanks), *gone[d - c :]]
        elif b - a == d - c:
            follows = codes[at + 1][0] if at + 1 < len(codes) else "equal"
            kept = len(come) if follows in ("equal", "replace") else len(come) - 1
            come = [
                _Line(y.text, x.blanks if n < kept else y.blanks)
                for n, (x, y) in enumerate(zip(gone, come, strict=True))
            ]
        for line in come:
            out += [line.text, *line.blanks]
    return "\n".join(out) + ("\n" if old.endswith("\n") or not old else "")


def with_stray_bytes(old: str, new: str) -> str:
    """`new`, with the lines put back in which the old text holds bytes that are no characters: a model cannot copy
    those. Such a line is known by its ASCII characters; of several with the same, the one that looks like it, or the
    next."""
    left: dict[str, list[str]] = {}
    for line in old.split("\n"):
        if _SURROGATE.search(line):
            left.setdefault(_ascii(line), []).append(line)
    plain = set(old.split("\n")) if left else set[str]()
    return "\n".join(line if not line.strip() or line in plain else _put_back(line, left) for line in new.split("\n"))


def _put_back(line: str, left: dict[str, list[str]]) -> str:
    known = left.get(_ascii(line), [])
    if not known:
        return line
    same = next((each for each in known if _SURROGATE.sub("\ufffd", each) == line), known[0])
    known.remove(same)
    return same


def _ascii(line: str) -> str:
    return _NOT_ASCII.sub("", line)


def _begins_anew(lines: Sequence[_Line]) -> bool:
    """Whether these lines are things of their own, not the rest of one: the first is not indented."""
    return bool(lines) and not lines[0].text[0].isspace() and lines[0].text[0] not in ")]}"


def _lines(text: str) -> tuple[tuple[str, ...], list[_Line]]:
    """The blank lines at the top, and the others with the blank lines below them. Only `\n` ends a line: a form feed
    or U+2028 is part of one."""
    lines = text.removesuffix("\n").split("\n") if text else []
    starts = [n for n, line in enumerate(lines) if line.strip()] + [len(lines)]
    found = [_Line(lines[a], tuple(lines[a + 1 : b])) for a, b in zip(starts, starts[1:], strict=False)]
    return tuple(lines[: starts[0]]), found


def as_edit(old: str, new: str) -> dict[str, str] | None:
    """The exact edit (`old`, `new`) that makes `new` of `old`: whole lines, as few as are unique; None: no change."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if before == after:
        return None
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    first, last = head, len(before) - tail
    while not _is_unique(before, first, last):
        first, last = (first - 1, last) if first > 0 else (first, last + 1)
    return {"old": "".join(before[first:last]), "new": "".join(after[first : len(after) - (len(before) - last)])}


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _is_unique(lines: Sequence[str], first: int, last: int) -> bool:
    if (first, last) == (0, len(lines)):
        return True
    text, whole = "".join(lines[first:last]), "".join(lines)
    return bool(text.strip()) and whole.find(text, whole.find(text) + 1) < 0

"""Finding the text of an edit in a file, and building what replaces it.

A match must agree in every character that is not white space. In order: exact; line endings; typographic quotes, dashes
and spaces; trailing white space; indentation shifted by the same amount on every line. Whatever is unchanged between
`old` and `new` keeps the file's own bytes.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .filetext import FileText, without_ending

MAX_COMPARED = 4_000_000  # pairs of lines that the line comparison may look at
TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′", "'"),
        **dict.fromkeys("“”„‟″", '"'),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    }
)


@dataclass(frozen=True, slots=True)
class Match:
    """`text[start:end]` of the file stands for `old`; `new` goes there. `note` says what had to be overlooked."""

    start: int
    end: int
    new: str
    note: str = ""


def find(file: FileText, old: str, new: str) -> list[Match]:
    """All places of `old`, in order (they may overlap); [] when there is none. `old` is not empty."""
    for search in (_exact, _any_ending, _typographic, _by_lines, _shifted, _retabbed):
        found = list(search(file, old, new))
        if found:
            return found
    return []


def find_lines(file: FileText, old: str, new: str) -> list[Match]:
    """Like `find` for a block of whole lines: only places that begin and end with a line."""
    for search in (_exact, _any_ending, _typographic, _by_lines, _shifted, _retabbed):
        found = [match for match in search(file, old, new) if match.start == 0 or file.text[match.start - 1] == "\n"]
        if found:
            return found
    return []


def _occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


# ------------------------------------------------------------------------------------------------- exact
def _exact(file: FileText, old: str, new: str) -> Iterator[Match]:
    if "\n" in old.replace("\r\n", "") and "\r\n" in file.text:
        return  # endings may differ from place to place: _any_ending finds a superset
    literal = "\r\n" in old
    for at in _occurrences(file.text, old):
        end = at + len(old)
        yield Match(at, end, new if literal else _with_endings(file, at, end, old, new))


def _any_ending(file: FileText, old: str, new: str) -> Iterator[Match]:
    if "\n" not in old:
        return
    flat = _Flat(file.text)
    wanted = old.replace("\r\n", "\n")
    note = "" if "\r\n" not in old else "line endings"
    for at in _occurrences(flat.text, wanted):
        start, end = flat.original(at), flat.original(at + len(wanted))
        yield Match(start, end, _with_endings(file, start, end, wanted, new), note)


class _Flat:
    """A text with CRLF shown as LF, and the way back to its offsets."""

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self._removed: list[int] = []  # offsets in `self.text` of newlines that were CRLF
        at = text.find("\r\n")
        while at >= 0:
            self._removed.append(at - len(self._removed))
            at = text.find("\r\n", at + 2)

    def original(self, offset: int) -> int:
        return offset + bisect_left(self._removed, offset)


# ------------------------------------------------------------------------------------------------- normalised
def _typographic(file: FileText, old: str, new: str) -> Iterator[Match]:
    if file.text.isascii() and old.isascii():
        return
    flat = _Flat(file.text)
    wanted = old.replace("\r\n", "\n").translate(TYPOGRAPHIC)
    for at in _occurrences(flat.text.translate(TYPOGRAPHIC), wanted):
        start, end = flat.original(at), flat.original(at + len(wanted))
        kept = _keep_common(flat.text[at : at + len(wanted)], old.replace("\r\n", "\n"), new.replace("\r\n", "\n"))
        yield Match(
            start,
            end,
            _with_endings(file, start, end, flat.text[at : at + len(wanted)], kept),
            "typographic characters",
        )


def _keep_common(found: str, old: str, new: str) -> str:
    """`new`, with the file's own characters wherever `new` repeats `old` at its start and end."""
    head, tail = _common_ends(old, new)
    return found[:head] + new[head : len(new) - tail] + (found[len(found) - tail :] if tail else "")


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many characters or lines are the same at the start and, of what is left, at the end."""
    limit = min(len(old), len(new))
    head = 0
    while head < limit and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < limit - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _by_lines(file: FileText, old: str, new: str) -> Iterator[Match]:
    yield from _line_matches(file, old, new, shifted=False)


def _shifted(file: FileText, old: str, new: str) -> Iterator[Match]:
    yield from _line_matches(file, old, new, shifted=True)


def _retabbed(file: FileText, old: str, new: str) -> Iterator[Match]:
    """`old` indented by spaces where the file has tabs, or the other way round."""
    for unit in (4, 2, 8):
        for turn in (_to_tabs, _to_spaces):
            turned = turn(old, unit)
            if turned == old:
                continue
            for shifted in (False, True):
                found = list(_line_matches(file, turned, turn(new, unit), shifted=shifted))
                if found:
                    yield from (replace(match, note="indentation") for match in found)
                    return


def _to_tabs(text: str, unit: int) -> str:
    return re.sub(rf"(?m)^(?: {{{unit}}})+", lambda found: "\t" * (len(found.group()) // unit), text)


def _to_spaces(text: str, unit: int) -> str:
    return re.sub(r"(?m)^\t+", lambda found: " " * unit * len(found.group()), text)


def _plain(line: str) -> str:
    return line.translate(TYPOGRAPHIC).rstrip(" \t\r")


def _line_matches(file: FileText, old: str, new: str, *, shifted: bool) -> Iterator[Match]:
    """Whole-line matches of `old` that overlook trailing white space (and, with `shifted`, a common indentation)."""
    wanted = [_plain(line) for line in _lines(old)]
    whole = old.endswith("\n")
    if not any(wanted):
        return
    n_wanted = len(wanted)
    lines = [_plain(file.line(n)) for n in range(1, file.n_lines + 1)]
    first = wanted[0].lstrip(" \t")
    for at in range(len(lines) - n_wanted + 1):
        if lines[at].lstrip(" \t") != first:
            continue
        shift = _shift(wanted, lines[at : at + n_wanted], shifted)
        if shift is None:
            continue
        replacement = _shift_text(new, shift)
        if replacement is None:
            continue
        yield _whole_lines(file, at + 1, n_wanted, whole, _shift_text(old, shift) or old, replacement, shifted)


def _lines(text: str) -> list[str]:
    """Lines without endings; a final newline makes no extra line."""
    parts = text.split("\n")
    if parts[-1] == "":
        parts.pop()
    return [part.removesuffix("\r") for part in parts]


def _shift(wanted: list[str], present: list[str], shifted: bool) -> tuple[str, str] | None:
    """(indentation to take away, to put on) that turns `wanted` into `present`; None when there is none."""
    if not shifted:
        return ("", "") if wanted == present else None
    pair: tuple[str, str] | None = None
    for a, b in zip(wanted, present, strict=True):
        if not a and not b:
            continue
        if a.lstrip(" \t") != b.lstrip(" \t") or not a or not b:
            return None
        indent_a, indent_b = a[: len(a) - len(a.lstrip(" \t"))], b[: len(b) - len(b.lstrip(" \t"))]
        here = _indent_change(indent_a, indent_b, pair)
        if here is None or (pair is not None and here != pair):
            return None
        pair = here
    return pair


def _indent_change(a: str, b: str, expected: tuple[str, str] | None) -> tuple[str, str] | None:
    if expected is not None:
        take, put = expected
        return expected if a.startswith(take) and put + a[len(take) :] == b else None
    if b.endswith(a):
        return "", b[: len(b) - len(a)]
    if a.endswith(b):
        return a[: len(a) - len(b)], ""
    return None


def _shift_text(text: str, shift: tuple[str, str]) -> str | None:
    take, put = shift
    if not take and not put:
        return text
    out: list[str] = []
    for line in text.split("\n"):
        if not line.strip(" \t\r"):
            out.append(line)
        elif line.startswith(take):
            out.append(put + line[len(take) :])
        else:
            return None
    return "\n".join(out)


def _whole_lines(file: FileText, first: int, count: int, whole: bool, old: str, new: str, shifted: bool) -> Match:
    start = file.line_span(first)[0]
    last_start, end = file.line_span(first + count - 1)
    last = file.text[last_start:end]
    if not whole:
        end -= len(last) - len(without_ending(last))
    elif not last.endswith("\n"):
        new = new.removesuffix("\n")  # the file has no final newline there: it stays so
    note = "indentation" if shifted else "trailing white space"
    return Match(start, end, _with_endings(file, start, end, old, new), note)


# ------------------------------------------------------------------------------------------------- line endings
def _with_endings(file: FileText, start: int, end: int, old: str, new: str) -> str:
    """`new` with the file's own lines wherever a line of `old` is repeated, and the endings in use at that place."""
    if "\n" not in new:
        return new
    present = _split_keeping(file.text[start:end])
    old_lines, new_lines = _split_keeping(old.replace("\r\n", "\n")), _split_keeping(new)
    if len(present) != len(old_lines):
        return _end_like(file, start, new_lines)
    out: list[str] = []
    for equal, a, b, c, d in _blocks(old_lines, new_lines):
        if equal:
            out += present[a:b]
            continue
        for i, line in enumerate(new_lines[c:d]):
            at = min(a + i, b - 1) if b > a else max(a - 1, 0)
            out.append(_ended(line, _ending_of(present, at) or file.ending_near(start)))
    return "".join(out)


def _blocks(old: list[str], new: list[str]) -> Iterator[tuple[bool, int, int, int, int]]:
    """Runs of equal and of differing lines, as (equal, old from, old to, new from, new to)."""
    head, tail = _common_ends(old, new)
    yield True, 0, head, 0, head
    a, b, c, d = head, len(old) - tail, head, len(new) - tail
    if (b - a) * (d - c) > MAX_COMPARED:
        yield False, a, b, c, d
    else:
        for tag, i, j, k, m in difflib.SequenceMatcher(None, old[a:b], new[c:d], autojunk=False).get_opcodes():
            yield tag == "equal", a + i, a + j, c + k, c + m
    yield True, b, len(old), d, len(new)


def _end_like(file: FileText, start: int, lines: list[str]) -> str:
    return "".join(_ended(line, file.ending_near(start)) for line in lines)


def _split_keeping(text: str) -> list[str]:
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _ending_of(lines: list[str], at: int) -> str:
    if not 0 <= at < len(lines) or not lines[at].endswith("\n"):
        return ""
    return "\r\n" if lines[at].endswith("\r\n") else "\n"


def _ended(line: str, ending: str) -> str:
    if not line.endswith("\n") or line.endswith("\r\n"):
        return line
    return line[:-1] + ending

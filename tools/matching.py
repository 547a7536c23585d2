"""Finding the text of an edit in a file, and building what replaces it.

A match must agree in every character that is not white space. In order: exact; line endings; typographic quotes, dashes
and spaces; trailing white space; indentation shifted by the same amount on every line. Whatever is unchanged between
`old` and `new` keeps the file's own bytes. The work is bounded by the sizes of file and edit.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from .filetext import FileText, newline_offsets, without_ending

MAX_EQUAL = 30_000  # pairs of equal lines, of old and new text, that the line comparison may meet
MAX_VERIFIED = 1_000_000  # lines that candidates for a shifted block may have in all
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


def find(file: FileText, old: str, new: str, limit: int | None = None) -> list[Match]:
    """All places of `old`, or the first `limit`, in order; [] when there is none. `old` is not empty. With a limit
    they may overlap."""
    search = _Search(file, overlapping=limit is not None)
    for way in _WAYS:
        found = list(islice(way(search, old, new), limit))
        if found:
            return found
    return []


def find_lines(file: FileText, old: str, new: str, limit: int, floor: int = 0) -> list[Match]:
    """Like `find` for a block of whole lines: only places that begin and end with a line, from offset `floor` on."""
    search = _Search(file, overlapping=True)
    for way in _WAYS:
        whole = (
            match
            for match in way(search, old, new)
            if match.start >= floor and (match.start == 0 or file.text[match.start - 1] == "\n")
        )
        found = list(islice(whole, limit))
        if found:
            return found
    return []


@dataclass
class _Search:
    """A file being searched, and what several ways of searching need of it."""

    file: FileText
    overlapping: bool
    known_blocks: dict[tuple[str, str], list[_Block]] = field(default_factory=dict["tuple[str, str]", "list[_Block]"])

    @cached_property
    def flat(self) -> _Flat:
        return _Flat(self.file.text)

    @cached_property
    def lines(self) -> list[str]:
        """The file's lines as `_plain` has them."""
        text = self.file.text
        text = text if text.isascii() else text.translate(TYPOGRAPHIC)
        return [line.rstrip(" \t\r") for line in text.removesuffix("\n").split("\n")] if text else []

    @cached_property
    def _bare(self) -> tuple[str, list[int]]:
        """The lines without their indentation, a newline before each, and the offsets of those."""
        text = "\n" + "\n".join(line.lstrip(" \t") for line in self.lines) + "\n"
        return text, newline_offsets(text)

    def occurrences(self, text: str, part: str) -> Iterator[int]:
        step = 1 if self.overlapping else len(part)
        at = text.find(part)
        while at >= 0:
            yield at
            at = text.find(part, at + step)

    def blocks_like(self, wanted: list[str]) -> Iterator[int]:
        """Line indices where lines begin that are the wanted ones but for their indentation."""
        text, newlines = self._bare
        part = "\n" + "\n".join(line.lstrip(" \t") for line in wanted) + "\n"
        at = text.find(part)
        while at >= 0:
            yield bisect_left(newlines, at)
            at = text.find(part, at + 1)

    def blocks(self, old: str, new: str) -> list[_Block]:
        """See `_blocks`; once for all places."""
        if (old, new) not in self.known_blocks:
            old_lines, new_lines = _split_keeping(old), _split_keeping(new)
            self.known_blocks[old, new] = list(_blocks(old_lines, new_lines))
        return self.known_blocks[old, new]


# ------------------------------------------------------------------------------------------------- exact
def _exact(search: _Search, old: str, new: str) -> Iterator[Match]:
    file = search.file
    if "\n" in old.replace("\r\n", "") and "\r\n" in file.text:
        return  # endings may differ from place to place: _any_ending finds a superset
    literal = "\r\n" in old
    for at in search.occurrences(file.text, old):
        end = at + len(old)
        yield Match(at, end, new if literal else _with_endings(search, at, end, old, new))


def _any_ending(search: _Search, old: str, new: str) -> Iterator[Match]:
    if "\n" not in old:
        return
    flat = search.flat
    wanted = old.replace("\r\n", "\n")
    note = "" if "\r\n" not in old else "line endings"
    for at in search.occurrences(flat.text, wanted):
        start, end = flat.original(at), flat.original(at + len(wanted))
        yield Match(start, end, _with_endings(search, start, end, wanted, new), note)


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
def _typographic(search: _Search, old: str, new: str) -> Iterator[Match]:
    if search.file.text.isascii() and old.isascii():
        return
    flat = search.flat
    wanted = old.replace("\r\n", "\n").translate(TYPOGRAPHIC)
    for at in search.occurrences(flat.text.translate(TYPOGRAPHIC), wanted):
        start, end = flat.original(at), flat.original(at + len(wanted))
        kept = _keep_common(flat.text[at : at + len(wanted)], old.replace("\r\n", "\n"), new.replace("\r\n", "\n"))
        yield Match(
            start,
            end,
            _with_endings(search, start, end, flat.text[at : at + len(wanted)], kept),
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


def _by_lines(search: _Search, old: str, new: str) -> Iterator[Match]:
    yield from _line_matches(search, old, new, shifted=False)


def _shifted(search: _Search, old: str, new: str) -> Iterator[Match]:
    yield from _line_matches(search, old, new, shifted=True)


def _retabbed(search: _Search, old: str, new: str) -> Iterator[Match]:
    """`old` indented by spaces where the file has tabs, or the other way round."""
    for unit in (4, 2, 8):
        for turn in (_to_tabs, _to_spaces):
            turned = turn(old, unit)
            if turned == old:
                continue
            for shifted in (False, True):
                found = False
                for match in _line_matches(search, turned, turn(new, unit), shifted=shifted):
                    found = True
                    yield replace(match, note="indentation")
                if found:
                    return


_WAYS: tuple[Callable[[_Search, str, str], Iterator[Match]], ...] = (
    _exact,
    _any_ending,
    _typographic,
    _by_lines,
    _shifted,
    _retabbed,
)


def _to_tabs(text: str, unit: int) -> str:
    return re.sub(rf"(?m)^(?: {{{unit}}})+", lambda found: "\t" * (len(found.group()) // unit), text)


def _to_spaces(text: str, unit: int) -> str:
    return re.sub(r"(?m)^\t+", lambda found: " " * unit * len(found.group()), text)


def _plain(line: str) -> str:
    return line.translate(TYPOGRAPHIC).rstrip(" \t\r")


def _line_matches(search: _Search, old: str, new: str, *, shifted: bool) -> Iterator[Match]:
    """Whole-line matches of `old` that overlook trailing white space (and, with `shifted`, a common indentation)."""
    wanted = [_plain(line) for line in _lines(old)]
    whole = old.endswith("\n")
    if not any(wanted):
        return
    n_wanted = len(wanted)
    most = MAX_VERIFIED // n_wanted + 1 if shifted else None
    for at in islice(search.blocks_like(wanted), most):
        shift = _shift(wanted, search.lines[at : at + n_wanted], shifted)
        if shift is None:
            continue
        replacement = _shift_text(new, shift)
        if replacement is None:
            continue
        yield _whole_lines(search, at + 1, n_wanted, whole, _shift_text(old, shift) or old, replacement, shifted)


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


def _whole_lines(search: _Search, first: int, count: int, whole: bool, old: str, new: str, shifted: bool) -> Match:
    file = search.file
    start = file.line_span(first)[0]
    last_start, end = file.line_span(first + count - 1)
    last = file.text[last_start:end]
    if not whole:
        end -= len(last) - len(without_ending(last))
    elif not last.endswith("\n"):
        new = new.removesuffix("\n")  # the file has no final newline there: it stays so
    note = "indentation" if shifted else "trailing white space"
    return Match(start, end, _with_endings(search, start, end, old, new), note)


# ------------------------------------------------------------------------------------------------- line endings
_Block = tuple[bool, int, int, int, int]  # equal, old from, old to, new from, new to


def _with_endings(search: _Search, start: int, end: int, old: str, new: str) -> str:
    """`new` with the file's own lines wherever a line of `old` is repeated, and the endings in use at that place."""
    if "\n" not in new:
        return new
    file, old = search.file, old.replace("\r\n", "\n")
    present = _split_keeping(file.text[start:end])
    new_lines = _split_keeping(new)
    if len(present) != len(_split_keeping(old)):
        return _end_like(file, start, new_lines)
    out: list[str] = []
    for equal, a, b, c, d in search.blocks(old, new):
        if equal:
            out += present[a:b]
            continue
        for i, line in enumerate(new_lines[c:d]):
            at = min(a + i, b - 1) if b > a else max(a - 1, 0)
            out.append(_ended(line, _ending_of(present, at) or file.ending_near(start)))
    return "".join(out)


def _blocks(old: list[str], new: list[str]) -> Iterator[_Block]:
    """Runs of equal and of differing lines."""
    head, tail = _common_ends(old, new)
    yield True, 0, head, 0, head
    a, b, c, d = head, len(old) - tail, head, len(new) - tail
    counts = Counter(new[c:d])
    if sum(counts[line] for line in old[a:b]) > MAX_EQUAL:
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

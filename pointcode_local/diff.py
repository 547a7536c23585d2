"""File diffs as rows for people: unified or in two columns, with the changed words marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal

from pointcode_local.events import FileDiff
from pointcode_local.render import expand_tabs, plain, shortened

RowKind = Literal["same", "add", "del", "gap"]
Marks = tuple[tuple[int, int], ...]
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_COMPARED_LINES = 4000  # a larger changed region is shown as replaced: comparing is quadratic
_MAX_MARKED_LINE = 400
_MAX_SHOWN_LINE = 4000  # characters; the rest is said, not shown
_MIN_LIKENESS = 0.4  # below this, word marks are noise


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One line of a diff; line numbers are 1-based, `marks` are (start, end) of changed words in `text`."""

    kind: RowKind
    old_no: int | None
    new_no: int | None
    text: str
    marks: Marks = ()


Pair = tuple[DiffRow | None, DiffRow | None]


def _shown(line: str) -> str:
    end = "" if line.endswith("\n") else " (no newline at end)"
    return expand_tabs(plain(shortened(line.removesuffix("\n"), _MAX_SHOWN_LINE))) + end


def _opcodes(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """SequenceMatcher opcodes with the common head and tail taken off first."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old_end, new_end = len(old) - tail, len(new) - tail
    if head:
        yield "equal", 0, head, 0, head
    if max(old_end, new_end) - head > _MAX_COMPARED_LINES:
        yield "replace", head, old_end, head, new_end
    else:
        matcher = SequenceMatcher(None, old[head:old_end], new[head:new_end])
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            yield tag, i1 + head, i2 + head, j1 + head, j2 + head
    if tail:
        yield "equal", old_end, len(old), new_end, len(new)


def _spans(pieces: list[str]) -> list[int]:
    edges = [0]
    for piece in pieces:
        edges.append(edges[-1] + len(piece))
    return edges


def word_marks(old: str, new: str) -> tuple[Marks, Marks]:
    """Where the words of two versions of one line differ; empty when the lines have little in common."""
    if max(len(old), len(new)) > _MAX_MARKED_LINE:
        return (), ()
    old_words, new_words = _WORD.findall(old), _WORD.findall(new)
    matcher = SequenceMatcher(None, old_words, new_words, autojunk=False)
    if matcher.ratio() < _MIN_LIKENESS:
        return (), ()
    old_edges, new_edges = _spans(old_words), _spans(new_words)
    old_marks: list[tuple[int, int]] = []
    new_marks: list[tuple[int, int]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        if i1 < i2:
            old_marks.append((old_edges[i1], old_edges[i2]))
        if j1 < j2:
            new_marks.append((new_edges[j1], new_edges[j2]))
    return tuple(old_marks), tuple(new_marks)


def _changed(old: list[str], new: list[str], old_at: int, new_at: int) -> Iterator[DiffRow]:
    """A replaced region: its removed lines, then its added lines, marked pairwise where the counts agree."""
    old_shown, new_shown = [_shown(line) for line in old], [_shown(line) for line in new]
    pairs = list(zip(old_shown, new_shown, strict=False))
    marks = [word_marks(a, b) for a, b in pairs] if len(old) == len(new) else []
    for i, text in enumerate(old_shown):
        yield DiffRow("del", old_at + i + 1, None, text, marks[i][0] if marks else ())
    for i, text in enumerate(new_shown):
        yield DiffRow("add", None, new_at + i + 1, text, marks[i][1] if marks else ())


def diff_rows(diff: FileDiff, context: int = 3) -> list[DiffRow]:
    """The diff in unified order; runs of more than `2 * context` equal lines become one "gap" row."""
    old, new = diff.lines
    rows: list[DiffRow] = []
    codes = list(_opcodes(old, new))
    for n, (tag, i1, i2, j1, j2) in enumerate(codes):
        if tag != "equal":
            rows.extend(_changed(old[i1:i2], new[j1:j2], i1, j1))
            continue
        keep_head = 0 if n == 0 else context
        keep_tail = 0 if n == len(codes) - 1 else context
        hidden = (i2 - i1) - keep_head - keep_tail
        for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
            if hidden > 0 and i1 + keep_head <= i < i2 - keep_tail:
                if i == i1 + keep_head and n > 0 and keep_tail:
                    rows.append(DiffRow("gap", None, None, f"{hidden:,} unchanged"))
                continue
            rows.append(DiffRow("same", i + 1, j + 1, _shown(old[i])))
    return rows


@lru_cache(maxsize=16)
def change_counts(diffs: tuple[FileDiff, ...]) -> tuple[int, int]:
    """(added, removed) lines of all `diffs`."""
    added = removed = 0
    for diff in diffs:
        for tag, i1, i2, j1, j2 in _opcodes(*diff.lines):
            if tag != "equal":
                removed += i2 - i1
                added += j2 - j1
    return added, removed


def side_by_side(rows: list[DiffRow]) -> list[Pair]:
    """Unified rows as (old, new) pairs; removed lines face added ones, None stands where one side has no line."""
    pairs: list[Pair] = []
    at = 0
    while at < len(rows):
        row = rows[at]
        if row.kind in ("same", "gap"):
            pairs.append((row, row))
            at += 1
            continue
        removed = _run(rows, at, "del")
        added = _run(rows, at + len(removed), "add")
        for i in range(max(len(removed), len(added))):
            pairs.append((removed[i] if i < len(removed) else None, added[i] if i < len(added) else None))
        at += len(removed) + len(added)
    return pairs


def _run(rows: list[DiffRow], at: int, kind: RowKind) -> list[DiffRow]:
    end = at
    while end < len(rows) and rows[end].kind == kind:
        end += 1
    return rows[at:end]


def diff_title(diff: FileDiff) -> str:
    """`created src/app.py`, `deleted …`, or only the path."""
    verb = "created " if diff.before is None else "deleted " if diff.after is None else ""
    return verb + plain(diff.path).replace("\n", "␊")

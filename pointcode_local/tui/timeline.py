"""The timeline of one decode step: a row for each processor, two rows a line as half blocks, coloured by work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from textual.content import Content

from pointcode_local.frontend import Timeline, TimelineSpan
from pointcode_local.render import one_line

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#ff9da6")
_LETTERS = "abcdefghi"
_WAITING = "$foreground 20%"
_FAINT = "$foreground 50%"
_Row = list[int | None]  # by column: the index of the kind, -1 for waiting, None for nothing


def timeline_lines(timeline: Timeline, width: int, *, colours: bool = True) -> list[Content]:
    """Heading, rows and legend at `width` cells. Without colours each kind is a letter."""
    begin = min(span.begin_us for span in timeline.spans)
    end = max(span.end_us for span in timeline.spans)
    kinds = _kinds(timeline.spans)
    name = one_line(timeline.processor, 12)
    label_cells = cell_len(name) + len(str(max(span.processor for span in timeline.spans))) + 3
    columns = max(10, width - label_cells)
    rows = _rows(timeline.spans, kinds, begin, max(end - begin, 1e-9), columns)
    head = Content.assemble(
        ("Timeline", "bold"),
        (f"  of one decode step, {(end - begin) / 1e3:.3f} ms, {one_line(str(timeline.path), 200)}", _FAINT),
    )
    step = 2 if colours else 1
    lines = [head.truncate(width, ellipsis=True)]
    for at in range(0, len(rows), step):
        label = f"{name} {at}".ljust(label_cells)
        below: _Row = rows[at + 1] if at + 1 < len(rows) else [None] * columns
        lines.append(Content.assemble((label, _FAINT), _halves(rows[at], below) if colours else _lettered(rows[at])))
    return [*lines, *_legend(kinds, timeline.spans, colours).wrap(width)]


def _kinds(spans: Sequence[TimelineSpan]) -> list[str]:
    """The kinds of work, those that take most time first; the last colour is for all the rest."""
    totals: dict[str, float] = {}
    for span in spans:
        if span.kind:
            totals[span.kind] = totals.get(span.kind, 0.0) + span.end_us - span.begin_us
    return sorted(totals, key=lambda kind: -totals[kind])


def _rows(spans: Sequence[TimelineSpan], kinds: list[str], begin: float, time: float, columns: int) -> list[_Row]:
    """What each processor did longest in each column."""
    index = {kind: min(n, len(_COLOURS) - 1) for n, kind in enumerate(kinds)} | {"": -1}
    n_rows = max(span.processor for span in spans) + 1
    shares: list[list[dict[int, float]]] = [[{} for _ in range(columns)] for _ in range(n_rows)]
    scale = columns / time
    for span in spans:
        start, stop = (span.begin_us - begin) * scale, (span.end_us - begin) * scale
        for column in range(int(start), min(columns - 1, int(stop)) + 1):
            share = min(stop, column + 1) - max(start, column)
            cell = shares[span.processor][column]
            cell[index[span.kind]] = cell.get(index[span.kind], 0.0) + share
    return [[max(cell, key=cell.__getitem__) if cell else None for cell in row] for row in shares]


def _style(kind: int) -> str:
    return _WAITING if kind < 0 else _COLOURS[kind]


def _halves(upper: _Row, lower: _Row) -> Content:
    parts: list[tuple[str, str]] = []
    for (top, bottom), cells in groupby(zip(upper, lower, strict=True)):
        n = len(list(cells))
        if top is None and bottom is None:
            parts.append((" " * n, ""))
        elif bottom is None and top is not None:
            parts.append(("▀" * n, _style(top)))
        elif top is None and bottom is not None:
            parts.append(("▄" * n, _style(bottom)))
        elif top is not None and bottom is not None:
            parts.append(("▀" * n, f"{_style(top)} on {_style(bottom)}"))
    return Content.assemble(*parts)


def _lettered(row: _Row) -> Content:
    return Content("".join(" " if kind is None else "·" if kind < 0 else _LETTERS[kind] for kind in row))


def _legend(kinds: list[str], spans: Sequence[TimelineSpan], colours: bool) -> Content:
    everything = sum(span.end_us - span.begin_us for span in spans) or 1.0
    parts: list[Content] = []
    for n, kind in enumerate([*kinds[: len(_COLOURS)], ""]):
        share = sum(s.end_us - s.begin_us for s in spans if s.kind == kind) / everything
        mark = ("·" if n == len(kinds) or not kind else _LETTERS[n]) if not colours else "■"
        if share:
            style = _style(n if kind else -1) if colours else ""
            told = f" {one_line(kind) or 'waiting'} {share:.0%}".replace(" ", "\u00a0")  # kept on one line
            parts.append(Content.assemble((mark, style), told))
    return Content("  ").join(parts)

"""Markdown tables as lines: columns as wide as their text, narrower ones wrapped, a rule under the head."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

_GAP = 2
_MIN_COLUMN = 3


def table_lines(rows: Sequence[Sequence[Content]], is_right: Sequence[bool], width: int) -> list[Content]:
    """Head, rule, rows at `width` cells; the first row is the head, `is_right` says which columns end at the right."""
    natural = [max((row[n].cell_length for row in rows if n < len(row)), default=0) for n in range(len(is_right))]
    widths = fit_columns(natural, width - _GAP * (len(is_right) - 1))
    lines = [line.stylize("bold") for line in _row_lines(rows[0], widths, is_right)]
    lines.append(Content.assemble((("─" * (sum(widths) + _GAP * (len(widths) - 1)))[:width], "$foreground 25%")))
    for row in rows[1:]:
        lines.extend(_row_lines(row, widths, is_right))
    return lines


def _row_lines(row: Sequence[Content], widths: Sequence[int], is_right: Sequence[bool]) -> list[Content]:
    wrapped = [cell.wrap(max(1, width)) for cell, width in zip(row, widths, strict=False)]
    lines: list[Content] = []
    for n in range(max(map(len, wrapped), default=0)):
        parts: list[Content | str] = []
        for column, cell in enumerate(wrapped):
            piece = cell[n] if n < len(cell) else Content("")
            pad = " " * max(0, widths[column] - piece.cell_length)
            parts += [pad, piece] if is_right[column] else [piece, pad]
            parts.append(" " * _GAP if column < len(wrapped) - 1 else "")
        lines.append(Content.assemble(*parts))
    return lines


def fit_columns(natural: list[int], room: int) -> list[int]:
    """Column widths of at most `room` cells in all: the widest columns give way first, none below three cells."""
    widths = [max(1, n) for n in natural]
    while sum(widths) > room and max(widths) > _MIN_COLUMN:
        widest = max(widths)
        second = max((w for w in widths if w < widest), default=_MIN_COLUMN)
        n_widest = widths.count(widest)
        excess = sum(widths) - room
        target = max(second, _MIN_COLUMN, widest - -(-excess // n_widest))
        widths = [target if w == widest else w for w in widths]
    return widths

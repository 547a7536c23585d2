"""Markdown tables as one widget: columns as wide as their text, narrower ones wrapped, a rule under the head."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_it.token import Token
from textual.content import Content
from textual.widgets import Markdown

from pointcode_local.tui.flat import FlatBlock

_GAP = 2
_MIN_COLUMN = 3


class FlatTable(FlatBlock):
    """A table; the first row is its head."""

    def __init__(self, markdown: Markdown, tokens: Sequence[Token]) -> None:
        super().__init__(markdown, tokens)
        self._cells: list[list[Content]] = []
        self._is_right: list[bool] = []

    def read(self) -> bool:
        """Turn the tokens into rows of cells."""
        for token in self._tokens:
            match token.type:
                case "tr_open":
                    self._cells.append([])
                case "th_open":
                    self._is_right.append("right" in str(token.attrs.get("style", "")))
                case "inline":
                    self._cells[-1].append(self._token_to_content(token))
                case _:
                    pass
        return bool(self._cells and self._cells[0])

    def lay_out(self, width: int) -> list[Content]:
        """Head, rule, rows."""
        widths = fit_columns(self._natural_widths(), width - _GAP * (len(self._is_right) - 1))
        lines = [line.stylize("bold") for line in self._row_lines(self._cells[0], widths)]
        lines.append(Content.assemble((("─" * (sum(widths) + _GAP * (len(widths) - 1)))[:width], "$foreground 25%")))
        for row in self._cells[1:]:
            lines.extend(self._row_lines(row, widths))
        return lines

    def _natural_widths(self) -> list[int]:
        columns = range(len(self._is_right))
        return [max((row[n].cell_length for row in self._cells if n < len(row)), default=0) for n in columns]

    def _row_lines(self, row: list[Content], widths: list[int]) -> list[Content]:
        wrapped = [cell.wrap(max(1, width)) for cell, width in zip(row, widths, strict=False)]
        lines: list[Content] = []
        for n in range(max(map(len, wrapped), default=0)):
            parts: list[Content | str] = []
            for column, cell in enumerate(wrapped):
                piece = cell[n] if n < len(cell) else Content("")
                pad = " " * max(0, widths[column] - piece.cell_length)
                parts += [pad, piece] if self._is_right[column] else [piece, pad]
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

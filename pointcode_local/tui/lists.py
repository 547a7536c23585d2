"""Markdown lists as one widget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markdown_it.token import Token
from textual.content import Content
from textual.widgets import Markdown

from pointcode_local.tui.flat import FlatBlock
from pointcode_local.tui.highlight import highlighted

_IGNORED = {"paragraph_open", "paragraph_close", "list_item_close"}
_BULLETS = ("•", "◦", "‣", "▪")
_MAX_INDENT = 24


@dataclass(frozen=True, slots=True)
class _Row:
    """One paragraph or code block of an item; `mark` is its bullet or number, "" below the first paragraph."""

    indent: int
    mark: str
    content: Content


@dataclass(slots=True)
class _Level:
    """An open list: its next number (None: bullets), the width of its marks, and where its text begins."""

    number: int | None
    mark_cells: int
    indent: int


class FlatList(FlatBlock):
    """A list whose items hold only text, code and lists. Wrapped here, so that text hangs under its item."""

    def __init__(self, markdown: Markdown, tokens: Sequence[Token]) -> None:
        super().__init__(markdown, tokens)
        self._rows: list[_Row] = []

    def read(self) -> bool:
        """Turn the tokens into rows."""
        rows: list[_Row] = []
        levels: list[_Level] = []
        mark = ""
        for at, token in enumerate(self._tokens):
            match token.type:
                case "bullet_list_open" | "ordered_list_open":
                    if mark:
                        rows.append(_Row(levels[-1].indent, mark, Content("")))
                        mark = ""
                    levels.append(self._open_level(at, levels))
                case "bullet_list_close" | "ordered_list_close":
                    levels.pop()
                case "list_item_open":
                    if mark:
                        rows.append(_Row(levels[-1].indent, mark, Content("")))
                    mark = _next_mark(levels)
                case "inline":
                    rows.append(_Row(levels[-1].indent, mark, self._token_to_content(token)))
                    mark = ""
                case "fence" | "code_block":
                    code = highlighted(token.content.rstrip(), token.info or "")
                    rows.append(_Row(levels[-1].indent, mark, code))
                    mark = ""
                case other if other not in _IGNORED:
                    return False
                case _:
                    pass
        if mark:
            rows.append(_Row(0, mark, Content("")))
        self._rows = rows
        return True

    def _open_level(self, at: int, levels: list[_Level]) -> _Level:
        opening = self._tokens[at]
        indent = min(levels[-1].indent if levels else 0, _MAX_INDENT)
        if opening.type == "bullet_list_open":
            return _Level(None, 3, indent + 3)
        start = int(opening.attrs.get("start", 1))
        n_items = 0
        for token in self._tokens[at + 1 :]:
            if token.level == opening.level and token.type == "ordered_list_close":
                break
            n_items += token.type == "list_item_open" and token.level == opening.level + 1
        cells = len(str(start + max(0, n_items - 1))) + 3
        return _Level(start, cells, indent + cells)

    def lay_out(self, width: int) -> list[Content]:
        """The rows, wrapped beside their marks."""
        lines: list[Content] = []
        for row in self._rows:
            for n, line in enumerate(row.content.wrap(max(4, width - row.indent))):
                mark = row.mark if n == 0 else ""
                lines.append(Content.assemble((mark.rjust(row.indent), "$primary"), line))
        return lines


def _next_mark(levels: list[_Level]) -> str:
    level = levels[-1]
    if level.number is None:
        depth = sum(other.number is None for other in levels) - 1
        return _BULLETS[depth % len(_BULLETS)] + " "
    level.number += 1
    return f"{level.number - 1}. "

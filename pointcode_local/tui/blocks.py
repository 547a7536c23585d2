"""Blocks of Markdown: what the parser's tokens say, and how each block is laid out in lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markdown_it.token import Token
from textual.content import Content

from pointcode_local.tui.highlight import highlighted
from pointcode_local.tui.inline import inline_text
from pointcode_local.tui.lines import BLANK, Line, behind, folded, wrapped
from pointcode_local.tui.tables import table_lines

Look = Literal["colour", "ansi", "plain"]  # our colours, the terminal's, none
RULE = "$foreground 25%"
_BULLETS = ("•", "◦", "‣", "▪")
_MAX_INDENT = 24
_MIN_CELLS = 4  # what is left for text however deep it is nested


class Block(ABC):
    """A block keeps its lines for the width it was last laid out at."""

    def __init__(self) -> None:
        self._laid_out: tuple[int, list[Line]] = (0, [])

    def lines_at(self, width: int) -> list[Line]:
        """The lines at `width` cells."""
        if self._laid_out[0] != width:
            self._laid_out = (width, self.lay_out(width))
        return self._laid_out[1]

    @abstractmethod
    def lay_out(self, width: int) -> list[Line]:
        """Make the lines."""


class Paragraph(Block):
    """Text that is wrapped."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content

    def lay_out(self, width: int) -> list[Line]:
        """Broken between words."""
        return wrapped(self._content, width)


class Rule(Block):
    """A line across."""

    def lay_out(self, width: int) -> list[Line]:
        """One line."""
        return [Line(Content.assemble(("─" * width, RULE)))]


class Code(Block):
    """A code block; its long lines are cut, so that nothing is hidden, and joined again when they are copied."""

    def __init__(self, code: str, info: str, look: Look) -> None:
        super().__init__()
        self._content = highlighted(code.rstrip("\n"), info, is_ansi=look != "colour")
        self._look: Look = look

    def lay_out(self, width: int) -> list[Line]:
        """On a ground of its own; without colours, behind a bar."""
        return code_lines(self._content, width, self._look)


def code_lines(content: Content, width: int, look: Look) -> list[Line]:
    """Highlighted code as lines."""
    lines = folded(content, max(_MIN_CELLS, width - 2))
    if look == "colour":
        lead = Content.assemble((" ", "on $surface"))
        return [Line(line.body, lead, line.joint, "$foreground on $surface") for line in lines]
    return behind(Content.assemble(("│ ", RULE)) if look == "plain" else Content(" "), lines)


class Quote(Block):
    """Blocks behind a bar."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self._blocks = blocks

    def lay_out(self, width: int) -> list[Line]:
        """The blocks of a narrower column."""
        bar = Content.assemble(("│ ", "$foreground 30%"))
        return behind(bar, stacked(self._blocks, max(_MIN_CELLS, width - 2)))


class Table(Block):
    """Rows of cells."""

    def __init__(self, rows: list[list[Content]], is_right: list[bool]) -> None:
        super().__init__()
        self._rows = rows
        self._is_right = is_right

    def lay_out(self, width: int) -> list[Line]:
        """Head, rule, rows."""
        return [Line(line) for line in table_lines(self._rows, self._is_right, width)]


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a list: its bullet or number, and what it holds."""

    mark: str
    blocks: list[Block]


class Items(Block):
    """A list; text hangs under its item, and no empty lines come between."""

    def __init__(self, items: list[Item], indent: int) -> None:
        super().__init__()
        self._items = items
        self._indent = indent  # cells before the text

    def lay_out(self, width: int) -> list[Line]:
        """Item after item."""
        lead = Content(" " * self._indent)
        room = max(_MIN_CELLS, width - self._indent)
        lines: list[Line] = []
        for item in self._items:
            mark = Content.assemble((item.mark.rjust(self._indent), "$primary"))
            body = [line for block in item.blocks for line in block.lines_at(room)]
            lines += behind(lead, body or [BLANK], mark)
        return lines


def stacked(blocks: Sequence[Block], width: int) -> list[Line]:
    """The lines of `blocks` with an empty line between two."""
    lines: list[Line] = []
    for n, block in enumerate(blocks):
        if n:
            lines.append(BLANK)
        lines += block.lines_at(width)
    return lines


class Reader:
    """Makes blocks of the parser's tokens (without their insides, see `make_block_parser`)."""

    def __init__(self, tokens: Sequence[Token], look: Look) -> None:
        self._tokens = iter(tokens)
        self._look: Look = look
        self._n_bulleted = 0  # lists around the present token
        self._indent = 0

    def read(self) -> list[Block]:
        """All blocks of the top level."""
        return list(self._blocks(""))

    def _text(self, token: Token) -> Content:
        return inline_text(token.content, self._look != "colour")

    def _blocks(self, end: str) -> Iterator[Block]:
        """Blocks up to the token `end`."""
        for token in self._tokens:
            if token.type == end:
                return
            match token.type:
                case "heading_open":
                    style = "bold underline $primary" if token.tag == "h1" else "bold $primary"
                    yield Paragraph(self._text(next(self._tokens)).stylize_before(style))
                case "inline":
                    yield Paragraph(self._text(token))
                case "fence" | "code_block":
                    yield Code(token.content, token.info, self._look)
                case "hr":
                    yield Rule()
                case "blockquote_open":
                    yield Quote(list(self._blocks("blockquote_close")))
                case "bullet_list_open":
                    yield self._bullets()
                case "ordered_list_open":
                    yield self._numbered(int(token.attrs.get("start", 1)))
                case "table_open":
                    yield self._table()
                case _:
                    pass  # the beginnings and ends of paragraphs and headings

    def _bullets(self) -> Items:
        mark = _BULLETS[self._n_bulleted % len(_BULLETS)]
        self._n_bulleted += 1
        cells = 3 if self._indent < _MAX_INDENT else 2
        contents = self._item_contents("bullet_list_close", cells)
        self._n_bulleted -= 1
        return Items([Item(f"{mark} ", blocks) for blocks in contents], cells)

    def _numbered(self, start: int) -> Items:
        contents = self._item_contents("ordered_list_close", 4)
        cells = len(str(start + max(0, len(contents) - 1))) + 3
        return Items([Item(f"{n}. ", blocks) for n, blocks in enumerate(contents, start)], cells)

    def _item_contents(self, end: str, cells: int) -> list[list[Block]]:
        self._indent += cells
        contents: list[list[Block]] = []
        for token in self._tokens:
            if token.type == end:
                break
            contents.append(list(self._blocks("list_item_close")))
        self._indent -= cells
        return contents

    def _table(self) -> Table:
        rows: list[list[Content]] = []
        is_right: list[bool] = []
        for token in self._tokens:
            match token.type:
                case "table_close":
                    break
                case "tr_open":
                    rows.append([])
                case "th_open":
                    is_right.append("right" in str(token.attrs.get("style", "")))
                case "inline":
                    rows[-1].append(self._text(token))
                case _:
                    pass
        return Table(rows, is_right)

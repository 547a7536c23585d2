"""Markdown of untrusted text that grows: settled blocks are read and laid out once, only the last ones again.

The streamed and the one-piece reading of a text give the same lines.
"""

from __future__ import annotations

import re

from pointcode_local.tui.blocks import Block, Code, Look, Reader, code_lines
from pointcode_local.tui.highlight import highlighted
from pointcode_local.tui.inline import make_block_parser
from pointcode_local.tui.lines import BLANK, Line

_OPENING = re.compile(r"(?P<marks>`{3,}+|~{3,}+)(?P<info>[^\n]*)\n")
_FIRST_COLOURED = 2000  # characters of an open code block at which its colours are made for the first time


class OpenCode(Block):
    """The code block at the end of a text that is not closed yet: grows without being read again.

    New lines are coloured on their own; the whole is coloured again each time it has doubled, so that a block costs
    about twice what it costs to colour it once. `takes` says whether a piece of text only adds lines.
    """

    def __init__(self, marks: str, info: str, look: Look) -> None:
        super().__init__()
        self._closing = re.compile(rf"^[ \t]*{re.escape(marks[0])}{{{len(marks)},}}[ \t]*$", re.MULTILINE)
        self._info = info
        self._look: Look = look
        self._done = ""  # whole lines
        self._last = ""  # the line that is being written
        self._recolour_at = _FIRST_COLOURED
        self._width = 0
        self._lines: list[Line] = []  # of `_done`

    def takes(self, text: str) -> bool:
        """Whether the block goes on after `text`; then it is added."""
        new = self._last + text
        if self._closing.search(new):
            return False
        at = new.rfind("\n") + 1
        added, self._last = new[:at], new[at:]
        self._done += added
        if len(self._done) >= self._recolour_at:
            self._recolour_at = 2 * len(self._done)
            self._width = 0
        elif added and self._width:
            self._lines += self._coloured(added)
        self._laid_out = (0, [])
        return True

    def lay_out(self, width: int) -> list[Line]:
        """The lines so far."""
        if self._width != width:
            self._width = width
            self._lines = self._coloured(self._done) if self._done else []
        lines = [*self._lines, *(self._coloured(self._last) if self._last else [])]
        while len(lines) > 1 and not lines[-1].body.plain:
            lines.pop()
        return lines or self._coloured("")

    def _coloured(self, code: str) -> list[Line]:
        content = highlighted(code.removesuffix("\n"), self._info, is_ansi=self._look != "colour")
        return code_lines(content, self._width, self._look)


class MarkdownText:
    """Takes text already passed through `plain`, in pieces; gives lines."""

    def __init__(self, look: Look) -> None:
        self._parser = make_block_parser()
        self._look: Look = look
        self._parts: list[str] = []
        self._unsettled = ""  # the text whose blocks may still change
        self._settled: list[Block] = []
        self._open: list[Block] = []
        self._code: OpenCode | None = None  # the last of `_open`, when it is one
        self._width = 0
        self._lines: list[Line] = []
        self._n_settled_lines = 0  # how many of `_lines` stay
        self._n_laid_out = 0  # blocks of `_settled` that they are of
        self._is_stale = True

    @property
    def source(self) -> str:
        """The whole text."""
        return "".join(self._parts)

    def feed(self, text: str) -> None:
        """Add a piece at the end."""
        self._parts.append(text)
        self._unsettled += text
        self._is_stale = True
        if self._code is None or not self._code.takes(text):
            self._read()
            self._code = self._open_code()

    def finish(self) -> None:
        """No more comes: a code block that was not closed gets its final colours."""
        if self._code is not None:
            self._code = None
            self._is_stale = True
            self._read()

    def _read(self) -> None:
        """Read the unsettled text anew.

        A block that begins in an unfinished line (`3`, before it becomes `3. item`) may still turn out to belong to
        the one before; so all blocks before the last one that began in a whole line are settled.
        """
        tokens = self._parser.parse(self._unsettled)
        blocks = Reader(tokens, self._look).read()
        starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
        n_whole_lines = self._unsettled.count("\n")
        keep = max((n for n, line in enumerate(starts) if line < n_whole_lines), default=0)
        self._settled += blocks[:keep]
        self._open = blocks[keep:]
        if starts:
            self._unsettled = "\n".join(self._unsettled.split("\n")[starts[keep] :])

    def _open_code(self) -> OpenCode | None:
        """The open code block that the unsettled text consists of, if it does."""
        opening = _OPENING.match(self._unsettled)
        if opening is None or len(self._open) != 1 or not isinstance(self._open[0], Code):
            return None
        code = OpenCode(opening["marks"], opening["info"], self._look)
        if not code.takes(self._unsettled[opening.end() :]):
            return None
        self._open = [code]
        return code

    def lines_at(self, width: int) -> list[Line]:
        """All lines at `width` cells. The list is the text's own and grows with it."""
        if width != self._width:
            self._width, self._lines = width, []
            self._n_settled_lines = self._n_laid_out = 0
            self._is_stale = True
        if self._is_stale:
            self._is_stale = False
            del self._lines[self._n_settled_lines :]
            self._add_lines(self._settled[self._n_laid_out :])
            self._n_laid_out = len(self._settled)
            self._n_settled_lines = len(self._lines)
            self._add_lines(self._open)
        return self._lines

    @property
    def n_settled_lines(self) -> int:
        """How many lines from the top will not change, at the width of the last `lines_at`."""
        return self._n_settled_lines

    def _add_lines(self, blocks: list[Block]) -> None:
        for block in blocks:
            if self._lines:
                self._lines.append(BLANK)
            self._lines += block.lines_at(self._width)

"""Markdown blocks of many parts as one widget, laid out as lines of text.

Textual makes several widgets per list item and table cell, about 10 ms per item; a long streamed list would stall the
screen, and a streamed table ends up with other widgets than one read at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from markdown_it.token import Token
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Markdown
from textual.widgets._markdown import MarkdownBlock  # the block classes have no public home


class FlatBlock(MarkdownBlock):
    """A block that lays its tokens out for a width. Grows by taking over the layout of its next version."""

    DEFAULT_CSS = "FlatBlock { margin: 0 0 1 0; text-wrap: nowrap; }"

    def __init__(self, markdown: Markdown, tokens: Sequence[Token]) -> None:
        super().__init__(markdown, tokens[0])
        self._tokens = tokens
        self._source: FlatBlock = self  # whose layout is shown
        self._laid_out: tuple[int, int, Content] = (0, 0, Content(""))  # width, lines, text

    @abstractmethod
    def read(self) -> bool:
        """Understand the tokens; False when they hold what only widgets can show."""

    @abstractmethod
    def lay_out(self, width: int) -> list[Content]:
        """The lines at `width` cells."""

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if type(block) is type(self):
            self._copy_context(block)
            self._source = block
            self._laid_out = (0, 0, Content(""))
            self.refresh(layout=True)
        else:
            await super()._update_from_block(block)

    def text_at(self, width: int) -> tuple[int, Content]:
        """The number of lines and the text at `width` cells."""
        if self._laid_out[0] != width:
            lines = self._source.lay_out(width)
            self._laid_out = (width, len(lines), Content("\n").join(lines))
        return self._laid_out[1:]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines at `width`."""
        return self.text_at(width)[0] if width else 0

    def render(self) -> Content:
        """The text at the present width."""
        return self.text_at(self.content_size.width)[1] if self.content_size.width else Content("")

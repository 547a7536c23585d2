"""Textual's Markdown widget with inert text, and with growing blocks updated in place.

The streamed and the one-piece rendering of a text are the same: raw HTML and link definitions, which produce no block
of their own (and would make `append` replace the wrong block), are shown as the text they are.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.app import ComposeResult
from textual.widgets import Markdown
from textual.widgets._markdown import (  # the block classes have no public home
    MarkdownBlock,
    MarkdownBulletList,
    MarkdownOrderedList,
)

from pointcode_local.render import plain


def _inert_text(state: StateCore) -> None:
    """Entities and percent escapes are decoded by the parser, so its output is made inert again."""
    for token in state.tokens:
        for child in token.children or ():
            child.content = plain(child.content)


def make_parser() -> MarkdownIt:
    """GitHub-like Markdown without raw HTML, link definitions and guessed links (`main.py` is not a host)."""
    parser = MarkdownIt("gfm-like", {"html": False}).disable("reference")
    if parser.linkify is not None:
        parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    parser.core.ruler.push("inert_text", _inert_text)
    return parser


async def _grow_list(old: MarkdownBulletList | MarkdownOrderedList, new: MarkdownBlock) -> None:
    """Replace the last item of `old` and add what follows it, leaving the items before untouched."""
    rows = list(new.compose())
    n_kept = max(0, len(old.children) - 1)
    await old.remove_children(list(old.children)[n_kept:])
    await old.mount_all(rows[n_kept:])


class GrowingBulletList(MarkdownBulletList):
    """A bullet list that grows without being rebuilt."""

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, GrowingBulletList):
            await _grow_list(self, block)
        else:
            await super()._update_from_block(block)


class GrowingOrderedList(MarkdownOrderedList):
    """A numbered list that grows without being rebuilt, unless its numbers get wider."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        self._widest = 0

    def compose(self) -> ComposeResult:
        self._widest = len(str(len(self._blocks)))
        yield from super().compose()

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, GrowingOrderedList) and len(str(len(block._blocks))) == self._widest:
            await _grow_list(self, block)
        else:
            await super()._update_from_block(block)


class InertMarkdown(Markdown):
    """Markdown of untrusted text. `append` and `update` take text already passed through `plain`."""

    BLOCKS = {
        **Markdown.BLOCKS,
        "bullet_list_open": GrowingBulletList,
        "ordered_list_open": GrowingOrderedList,
    }
    BULLETS = ["• ", "◦ ", "‣ ", "▪ ", "- "]

    def __init__(self, markdown: str | None = None, *, classes: str | None = None) -> None:
        super().__init__(markdown, classes=classes, parser_factory=make_parser, open_links=False)

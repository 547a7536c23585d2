"""Textual's Markdown widget with inert text and blocks that are cheap to grow.

The streamed and the one-piece rendering of a text are the same: raw HTML and link definitions, which produce no block
of their own (and would make `append` replace the wrong block), are shown as the text they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.await_complete import AwaitComplete
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown
from textual.widgets._markdown import (  # the block classes have no public home
    MarkdownBlock,
    MarkdownFence,
    MarkdownParagraph,
)

from pointcode_local.render import plain
from pointcode_local.tui.flat import FlatBlock
from pointcode_local.tui.highlight import known_language
from pointcode_local.tui.lists import FlatList
from pointcode_local.tui.tables import FlatTable

_FLAT: dict[str, type[FlatBlock]] = {
    "bullet_list_open": FlatList,
    "ordered_list_open": FlatList,
    "table_open": FlatTable,
}


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


class PlainFence(MarkdownFence):
    """A code block that never guesses its language."""

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Highlighted `code`."""
        return super().highlight(code, known_language(language), ansi, dark)


class InertMarkdown(Markdown):
    """Markdown of untrusted text that grows. `append` and `update` take text already passed through `plain`.

    Textual's own `append` starts again at the last block; but a block that begins in an unfinished line (`3`, before
    it becomes `3. item`) may still turn out to belong to the one before. Here only blocks that were closed by a whole
    line are settled; the text after them is parsed anew with each piece. Await one `append` before the next.
    """

    BLOCKS = {**Markdown.BLOCKS, "fence": PlainFence, "code_block": PlainFence}

    def __init__(self, markdown: str | None = None, *, classes: str | None = None) -> None:
        super().__init__(markdown, classes=classes, parser_factory=make_parser, open_links=False)
        self._parser = make_parser()
        self._unsettled = ""  # the text whose blocks may still change
        self._n_unsettled = 0  # how many of the last children they are

    def update(self, markdown: str) -> AwaitComplete:
        """Show another text."""

        async def replace() -> None:
            self._markdown, self._unsettled, self._n_unsettled = "", "", 0
            await self.remove_children()
            await self.append(markdown)

        return AwaitComplete(replace())

    @property
    def n_settled(self) -> int:
        """Blocks that will not change any more."""
        return len(self.children) - self._n_unsettled

    async def split(self) -> str:
        """Keep only the settled blocks; returns the text of the others, for another widget to go on with."""
        async with self.lock:
            text, self._unsettled = self._unsettled, ""
            children = list(self.children)
            await self.remove_children(children[len(children) - self._n_unsettled :])
            self._n_unsettled = 0
            self._markdown = self._markdown.removesuffix(text)
        return text

    def append(self, markdown: str) -> AwaitComplete:
        """Add a piece of text at the end."""
        return AwaitComplete(self._grow(markdown))

    async def _grow(self, text: str) -> None:
        async with self.lock:
            self._markdown += text
            self._unsettled += text
            tokens = self._parser.parse(self._unsettled)
            blocks = list(self._parse_markdown(tokens))
            old = list(self.children)[len(self.children) - self._n_unsettled :]
            with self.app.batch_update():
                await self._replace(old, blocks)
            self._settle([token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map])

    async def _replace(self, old: list[Widget], new: list[MarkdownBlock]) -> None:
        """Make `new` of `old`: in place as far as the kinds agree, the rest anew."""
        n_kept = 0
        for widget, block in zip(old, new, strict=False):
            if type(widget) is not type(block) or not isinstance(widget, FlatBlock | PlainFence | MarkdownParagraph):
                break
            await widget._update_from_block(block)  # pyright: ignore[reportPrivateUsage]
            n_kept += 1
        if old[n_kept:]:
            await self.remove_children(old[n_kept:])
        if new[n_kept:]:
            await self.mount_all(new[n_kept:])

    def _settle(self, first_lines: list[int]) -> None:
        """Keep the last block that began in a whole line, and what follows it; `first_lines` has one entry a block."""
        n_whole_lines = self._unsettled.count("\n")
        keep = max((n for n, line in enumerate(first_lines) if line < n_whole_lines), default=0)
        if not first_lines:
            return
        self._n_unsettled = len(first_lines) - keep
        lines = self._unsettled.split("\n")
        self._unsettled = "\n".join(lines[first_lines[keep] :])

    def _parse_markdown(self, tokens: Iterable[Token]) -> Iterable[MarkdownBlock]:
        group: list[Token] = []
        kind: type[FlatBlock] | None = None
        for token in tokens:
            if token.level == 0 and token.type in _FLAT:
                yield from super()._parse_markdown(group)
                group, kind = [], _FLAT[token.type]
            group.append(token)
            if kind is not None and token.level == 0 and token.type.endswith("_close"):
                block = kind(self, group)
                yield from [block] if block.read() else super()._parse_markdown(group)
                group, kind = [], None
        yield from super()._parse_markdown(group)

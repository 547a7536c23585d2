"""The inside of a paragraph: emphasis, code, links. Every text is parsed once, however often its block grows."""

from __future__ import annotations

import re
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.content import Content, Span
from textual.style import Style

from pointcode_local.render import expand_tabs, plain

_SPACE = re.compile(r"\s+")
_STYLES = {"em_open": "italic", "strong_open": "bold", "s_open": "strike"}
_CODE = "$foreground on $foreground 10%"
_KEPT_TEXTS = 4096
_INLINE = ("inline", "linkify", "inert_text")  # what the block parser leaves to `inline_text`


def _inert_text(state: StateCore) -> None:
    """Entities and percent escapes are decoded by the parser, so its output is made inert again."""
    for token in state.tokens:
        for child in token.children or ():
            child.content = plain(child.content)


def make_parser() -> MarkdownIt:
    """GitHub-like Markdown without raw HTML, link definitions and guessed links (`main.py` is not a host).

    Raw HTML and link definitions, which produce no block of their own, are shown as the text they are.
    """
    parser = MarkdownIt("gfm-like", {"html": False}).disable("reference")
    if parser.linkify is not None:
        parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    parser.core.ruler.push("inert_text", _inert_text)
    return parser


def make_block_parser() -> MarkdownIt:
    """The same, but the insides of paragraphs stay text: `inline_text` reads them."""
    return make_parser().disable(_INLINE)


_parser = make_parser()


@lru_cache(_KEPT_TEXTS)
def inline_text(text: str, is_ansi: bool) -> Content:
    """`text`, the inside of a block, with its styles; `is_ansi` when the terminal's own colours are used."""
    tokens = _parser.parseInline(text)
    return _styled(tokens[0].children or [], is_ansi) if tokens else Content("")


def _styled(tokens: list[Token], is_ansi: bool) -> Content:
    parts: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[str | Style, int]] = []
    at = 0
    for token in tokens:
        text = ""
        match token.type:
            case "text":
                text = _SPACE.sub(" ", token.content)
            case "hardbreak":
                text = "\n"
            case "softbreak":
                text = " "
            case "code_inline":
                text = expand_tabs(token.content)
                spans.append(Span(at, at + len(text), "bold" if is_ansi else _CODE))
            case "em_open" | "strong_open" | "s_open":
                opened.append((_STYLES[token.type], at))
            case "link_open":
                opened.append((_link(str(token.attrs.get("href", ""))), at))
            case "image":
                text = f"[image] {plain(token.content)}".rstrip()
                spans.append(Span(at, at + len(text), _link(str(token.attrs.get("src", "")))))
            case kind if kind.endswith("_close") and opened:
                style, start = opened.pop()
                spans.append(Span(start, at, style))
            case _:
                text = token.content
        parts.append(text)
        at += len(text)
    return Content("".join(parts), spans)


def _link(href: str) -> Style:
    return Style(underline=True) + Style.from_meta({"@click": f"link({href!r})"})

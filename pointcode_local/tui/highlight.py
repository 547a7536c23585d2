"""Syntax colours for code blocks, without ever guessing a language."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import get_all_lexers, get_lexer_by_name
from textual.content import Content, Span
from textual.highlight import ANSIDarkHighlightTheme, HighlightTheme

from pointcode_local.render import expand_tabs

MOST_COLOURED = 50_000  # characters; Pygments reads about 400 in a millisecond


@cache
def _languages() -> frozenset[str]:
    return frozenset(alias for _, aliases, _, _ in get_all_lexers(plugins=False) for alias in aliases)


def known_language(info: str) -> str:
    """The language of a fence, "text" when Pygments has none of that name.

    Pygments guesses a missing name by trying every lexer and looks an unknown one up in all installed packages; both
    take longer than a frame.
    """
    name = info.split()[0].lower() if info.strip() else ""
    return name if name in _languages() else "text"


@cache
def _lexer(language: str) -> Lexer:
    return get_lexer_by_name(language, stripnl=False, ensurenl=True)


@lru_cache(64)
def highlighted(code: str, info: str, *, is_ansi: bool = False) -> Content:
    """`code` in the theme's colours (or the terminal's own); `info` is what stands after the fence."""
    code = expand_tabs(code)
    language = known_language(info) if len(code) <= MOST_COLOURED else "text"
    if language == "text":
        return Content(code).stylize_before("" if is_ansi else "$text")
    styles = (ANSIDarkHighlightTheme if is_ansi else HighlightTheme).STYLES
    spans: list[Span] = [] if is_ansi else [Span(0, len(code), "$text")]
    at = 0
    for kind, text in _lexer(language).get_tokens(code):
        if style := _style(kind, styles):
            spans.append(Span(at, min(at + len(text), len(code)), style))
        at += len(text)
    return Content(code, spans)


def _style(kind: Any, styles: dict[tuple[str, ...], str]) -> str:
    """The style of the nearest kind of token (Pygments's own tuple type, with a parent) that has one."""
    while kind is not None:
        if kind in styles:
            return styles[kind]
        kind = kind.parent
    return ""

"""Syntax colours for code blocks, without ever guessing a language."""

from __future__ import annotations

from functools import cache

from pygments.lexers import get_all_lexers
from textual.content import Content
from textual.highlight import ANSIDarkHighlightTheme, HighlightTheme, highlight

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


def highlighted(code: str, info: str, *, is_ansi: bool = False) -> Content:
    """`code` in the theme's colours (or the terminal's own); `info` is what stands after the fence."""
    language = known_language(info) if len(code) <= MOST_COLOURED else "text"
    theme = ANSIDarkHighlightTheme if is_ansi else HighlightTheme
    return highlight(expand_tabs(code), language=language, theme=theme)

"""Syntax colours for code blocks, without ever guessing a language."""

from __future__ import annotations

from functools import cache

from pygments.lexers import get_all_lexers
from textual.content import Content
from textual.highlight import highlight


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


def highlighted(code: str, info: str) -> Content:
    """`code` in the theme's colours; `info` is what stands after the fence."""
    return highlight(code, language=known_language(info))

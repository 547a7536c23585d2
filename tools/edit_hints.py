"""Why a text that a model wants to replace was not found, when that can be said: the mistakes models make in copying.

Nothing is replaced on such a likeness; the model is told what to write instead.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable

from . import matching
from .filetext import FileText

MAX_CHARS = 2_000_000  # of a file that is looked through once more for each mistake
_NUMBERED = re.compile(r"[ \t]*\d+(?:\t|→|[:|][ \t]?)")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "'": "'", "\\": "\\"}
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))


def hint(file: FileText, old: str) -> str:
    """A sentence with the cure; "" when no known mistake explains it."""
    if len(file.text) > MAX_CHARS:
        return ""
    for mended, told in _MISTAKES:
        text = mended(old)
        if text != old and text.strip() and matching.find(file, text, text, 1):
            return f"\n{told}"
    if _squeezed(old) and _squeezed(old) in _squeezed(file.text):
        return "\nIt differs in blanks, blank lines or invisible characters only: copy it exactly as the file has it."
    return ""


def _without_numbers(old: str) -> str:
    lines = old.split("\n")
    if not all(_NUMBERED.match(line) for line in lines if line.strip()):
        return old
    return "\n".join(_NUMBERED.sub("", line, count=1) for line in lines)


def _without_escapes(old: str) -> str:
    return re.sub(r"\\([nt\"'\\])", lambda found: _ESCAPES[found[1]], old)


def _without_invisible(old: str) -> str:
    return old.translate(_INVISIBLE)


def _composed(old: str) -> str:
    return unicodedata.normalize("NFC", old)


def _decomposed(old: str) -> str:
    return unicodedata.normalize("NFD", old)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text.translate(matching.TYPOGRAPHIC).translate(_INVISIBLE))


_ACCENTS = "The file writes its accents in another Unicode form; choose a part of the line without them."
_MISTAKES: tuple[tuple[Callable[[str], str], str], ...] = (
    (_without_numbers, "`old` holds the line numbers that `read` puts in front: leave them out of `old` and `new`."),
    (_without_escapes, "`old` is escaped once too often: write line breaks, tabs and quotes as they are in the file."),
    (html.unescape, "`old` holds HTML entities where the file has the characters themselves, such as < and &."),
    (_without_invisible, "`old` holds invisible characters that the file does not have."),
    (_composed, _ACCENTS),
    (_decomposed, _ACCENTS),
)

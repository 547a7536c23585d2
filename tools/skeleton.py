"""Python source without its imports and the bodies of its functions: no outline shows what they hold, and parsing it
is three quarters of the parser's work (it reads 5 MB/s). Bytes go, line numbers stay.

Cautious by construction: a function that the pattern does not recognize (brackets nested over four deep, a colon in its
return type) keeps its body, and is merely parsed in full.
"""

from __future__ import annotations

import re

# Possessive and bounded everywhere: no text makes the search go back, or look far ahead from each of many places.
_LONG_STRING = r'''"""(?:[^"\\]++|\\.|"(?!"")){0,2000}+"""|\'\'\'(?:[^'\\]++|\\.|'(?!\'\')){0,2000}+\'\'\''''
_STRING = r""""(?:[^"\\\n]++|\\.)*+"|'(?:[^'\\\n]++|\\.)*+\'"""
_COMMENT = r"\#[^\n]*+"
# A line of a body is indented more than the `def`, or goes on with something that a line before opened.


def _brackets(depth: int) -> str:
    inner = rf"|{_brackets(depth - 1)}" if depth > 1 else ""
    return rf"\((?:[^()]++{inner}){{0,200}}+\)"


_PATTERN = re.compile(
    rf"""
    {_LONG_STRING} | {_STRING} | {_COMMENT}
    | ^(?P<import>(?:from|import)[ ][^\n()\\;]++)$
    | ^(?P<indent>[ \t]*+)(?:async[ ]++)?def[ ]++\w++[ ]*+(?P<rest>{_brackets(4)}[^\n:]*+):[ \t]*+(?:{_COMMENT}|\r)?\n
      (?P<body>(?:
        [ \t]*+(?:{_COMMENT}|\r)?\n
        | (?:(?P=indent)[ \t]++(?![\s\#]) | [ \t]*+(?=[)\]}}]|\"{{3}}|'{{3}}))
          (?:[^\n"'\#\\]++|{_LONG_STRING}|{_STRING}|\\.|{_COMMENT})*+\n
      )++)
    """.encode(),
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


_BLANK = bytes(b if b == ord("\n") else ord(" ") for b in range(256))


def without_bodies(data: bytes) -> tuple[bytes, bytes]:
    """The source with empty lines where it had imports, and functions their bodies; and the same for the parser, of
    the same length: that has also no parameters and return types."""
    parts: list[bytes] = []
    bare: list[bytes] = []
    at = 0
    for match in _PATTERN.finditer(data):
        if match.lastgroup is None:
            continue
        start, end = match.span(match.lastgroup)
        first, last = match.span("rest")
        newlines = b"\n" * data.count(b"\n", start, end)
        parts += data[at:start], newlines
        if first < 0:
            bare += data[at:start], newlines
        else:
            bare += data[at:first], b"(", data[first + 1 : last - 1].translate(_BLANK), b")", data[last:start], newlines
        at = end
    return b"".join((*parts, data[at:])), b"".join((*bare, data[at:]))

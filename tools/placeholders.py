"""Recognises text that stands for code the model left out, such as `// ... rest of the methods ...`."""

from __future__ import annotations

import re

_WORDS = (
    r"(?:rest|remain\w*|existing|unchanged|previous|original|other|same|omitted|elided|truncated|snip\w*|keep|"
    r"kept|more|etc|as before|"
    r"unmodified|here|code|implementation|methods?|functions?|content|lines?|imports?|above|below)"
)
_DOTS = r"(?:\.{3,}|…)"
_OPEN = r"(?:(?://+|#+|/\*+|<!--|--|;+|%+|\{/\*|\*)\s*)"
_CLOSE = r"\s*(?:\*+/\}?|-->)?\s*"
PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\s*{_OPEN}{_DOTS}{_CLOSE}",
        rf"\s*{_OPEN}?[\[(<{{]?\s*{_DOTS}\s*(?:[^.…]*\b{_WORDS}\b[^.…]*)\s*(?:{_DOTS})?\s*[\])>}}]?{_CLOSE}",
        rf"\s*{_OPEN}[\[(<{{]?[^.…\"'=;]{{0,80}}\b{_WORDS}\b[^.…\"'=;]{{0,80}}{_DOTS}\s*[\])>}}]?{_CLOSE}",
        rf"\s*{_OPEN}(?:the )?(?:rest|remainder) of (?:the |this |your )?[\w ]{{1,60}}(?:unchanged|the same|"
        rf"as before|as is|here|omitted)?{_CLOSE}",
        rf"\s*{_OPEN}(?:existing|remaining|previous|original|other|same) [\w ]{{0,40}}\b(?:code|methods?|"
        rf"functions?|content|implementation|lines|items)\b"
        rf"(?: (?:here|unchanged|stays?|remains?|goes|as before|the same)[\w ]*)?{_CLOSE}",
    )
)


def placeholder_in(new: str, present: str) -> str | None:
    """The first line of `new` that stands for left-out code and is not a line of `present`; None when there is none."""
    if (
        "..." not in new
        and "…" not in new
        and not re.search(r"(?i)rest|remain|exist|previous|original|other|same", new)
    ):
        return None
    known = {line.strip() for line in present.split("\n")}
    for line in new.split("\n"):
        text = line.strip()
        if text and len(text) < 200 and text not in known and any(p.fullmatch(text) for p in PATTERNS):
            return text
    return None

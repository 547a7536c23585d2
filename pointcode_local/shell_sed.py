"""Which scripts of `sed` only read."""

from __future__ import annotations

import re

from .shell_words import split_options

# A delimiter within brackets ends the expression in some versions of sed and not in others: it stands in none of these.
_SED_BRACKET = r"\[\^?\]?(?:[^\]\[\\\n{0}]|\[:[a-z]+:\])*\]"
_SED_REGEX = rf"/(?:[^/\[\\]|\\.|{_SED_BRACKET.format('/')})*/I?"
_SED_ADDRESS = rf"(?:\d+|\$|{_SED_REGEX})?(?:,(?:\+?\d+|\$|{_SED_REGEX}))?!?"
_SED_SUBSTITUTE = "|".join(
    rf"s{mark}(?:[^{mark}\[\\\n]|\\.|{_SED_BRACKET.format(mark)})*{mark}(?:[^{mark}\\\n]|\\.)*{mark}[gpiI0-9]*"
    for mark in map(re.escape, "/|,#:@!%")
)
SED_SAFE = re.compile(rf"\s*(?:{_SED_ADDRESS}\s*(?:[pdqDNnGgHhxP=]|q\d*|{_SED_SUBSTITUTE})?\s*;?\s*)")


def sed_danger(words: list[str]) -> str | None:
    """The script of a `sed` that may write or run something, by its words; None when there is none."""
    if "--sandbox" in split_options(words)[0]:
        return None
    scripts = _sed_scripts(words)
    return next((script for script in scripts if not _sed_is_safe(script)), None)


def _sed_scripts(words: list[str]) -> list[str]:
    scripts: list[str] = []
    for at, word in enumerate(words):
        if re.fullmatch(r"-[nErsuz]*e", word):
            scripts += words[at + 1 : at + 2]
        elif found := re.fullmatch(r"(?:-[nErsuz]*e|--e\w*=)(.+)", word, re.DOTALL):
            scripts.append(found.group(1))
        elif word.startswith("--e"):
            scripts += words[at + 1 : at + 2]
    return scripts or split_options(words)[1][:1]


def _sed_is_safe(script: str) -> bool:
    at = 0
    while at < len(script):
        found = SED_SAFE.match(script, at)
        if found is None or found.end() == at:
            return False
        at = found.end()
    return True

"""Greetings, thanks and questions about the assistant itself: the files of the folder have nothing to say to them."""

from __future__ import annotations

import re

ABOUT = (
    "[note] You are pointcode. You can create and change files in this folder, rename things in them, run commands and "
    "tests, and answer questions about the files. Answer the user in one or two sentences."
)
_GREETING = (
    r"(?:hi|hello|hey|good (?:morning|afternoon|evening|day)|thanks?|thank you|thx|bye|cool|great|nice|ok|okay|ping|"
    r"test|testing|say (?:hi|hello))\b[^.?]{0,30}"
)
_ABOUT_IT = (
    r"(?:(?:hi|hello|hey)\b\W*)?(?:what (?:can|do) you do(?: for me)?|(?:who|what|how) are you|can you help(?: me)?|"
    r"help(?: me)?|how does this work)"
)
_SMALL_TALK = re.compile(rf"\W*(?:{_GREETING}|{_ABOUT_IT})\W*", re.IGNORECASE)


def is_small_talk(text: str) -> bool:
    """Whether a prompt is nothing but that."""
    return _SMALL_TALK.fullmatch(text) is not None

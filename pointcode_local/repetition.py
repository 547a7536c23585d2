"""Notices that a model has begun to say the same thing without end, as small and quantised ones sometimes do."""

from __future__ import annotations

import re

MAX_PERIOD = 200  # characters of what is said again and again
ANSWER_WINDOW = 2_000  # characters that must be nothing else
COUNTING_WINDOW = 1_600  # with numbers that only go up, in what a small model writes
CALL_WINDOW = 16_000  # in a call's arguments, where tables and data may be monotonous
KEPT_TIMES = 3  # repetitions that stay in the history, so that it does not teach the model to go on
_CHECK_EVERY = 400
_SAMPLE = 24
_NUMBER = re.compile(r"\d+")


class Repetition:
    """Takes a text in pieces. With `counts`, what differs in its numbers only is a repetition too."""

    def __init__(self, window: int, *, counts: bool = False) -> None:
        self._window = window
        self._counts = counts
        self._tail = ""
        self._new = 0

    def feed(self, text: str) -> int:
        """Add a piece. Once the text only repeats itself: how many characters at its end can go; until then 0."""
        self._tail += text
        self._new += len(text)
        if self._new < _CHECK_EVERY or len(self._tail) < self._window:
            return 0
        self._new = 0
        self._tail = self._tail[-self._window :]
        text = _NUMBER.sub("0", self._tail) if self._counts else self._tail
        kept = KEPT_TIMES * _period(text)
        return len(self._tail) - (_written_length(self._tail, kept) if self._counts else kept) if kept else 0


def _written_length(text: str, n: int) -> int:
    """How long the beginning of `text` is that has `n` characters where each number counts as one."""
    more = 0
    for number in _NUMBER.finditer(text):
        if number.start() - more >= n:
            break
        more += len(number.group()) - 1
    return n + more


def _period(text: str) -> int:
    """The length of the piece that `text` is nothing but repetitions of; 0 when there is none."""
    end = text[-_SAMPLE:]
    at = len(text) - _SAMPLE
    while (at := text.rfind(end, 0, at + _SAMPLE - 1)) >= 0:
        period = len(text) - _SAMPLE - at
        if period > MAX_PERIOD:
            return 0
        if text[period:] == text[:-period]:
            return period
    return 0

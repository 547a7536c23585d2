"""Notices that a model has begun to say the same thing without end, as small and quantised ones sometimes do."""

from __future__ import annotations

MAX_PERIOD = 200  # characters of what is said again and again
ANSWER_WINDOW = 2_000  # characters that must be nothing else
CALL_WINDOW = 16_000  # in a call's arguments, where tables and data may be monotonous
KEPT_TIMES = 3  # repetitions that stay in the history, so that it does not teach the model to go on
_CHECK_EVERY = 400
_SAMPLE = 24


class Repetition:
    """Takes a text in pieces."""

    def __init__(self, window: int) -> None:
        self._window = window
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
        period = _period(self._tail)
        return len(self._tail) - KEPT_TIMES * period if period else 0


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

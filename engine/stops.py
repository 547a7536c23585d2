"""Stop strings over token borders: text that might begin a stop string is held back until it is decided."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Feeds text through; what comes out never contains a stop string or a piece of one.

    The earliest stop string wins; of two that begin at the same place, the one that is complete first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False
        self.matched: str | None = None  # the stop string that was found

    def feed(self, text: str) -> str:
        """The text that may be shown now. After `stopped` everything is swallowed."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        self._held += text
        ends = [
            (self._held.find(stop) + len(stop), self._held.find(stop), stop)
            for stop in self._stops
            if stop in self._held
        ]
        if ends:
            _, begin, self.matched = min(ends)
            self.stopped = True
            shown, self._held = self._held[:begin], ""
            return shown
        keep = self._pending()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The text held back at the end of the stream: no stop string came of it."""
        shown, self._held = self._held, ""
        return "" if self.stopped else shown

    def _pending(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in self._stops):
                return n
        return 0

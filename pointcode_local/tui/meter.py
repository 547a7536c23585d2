"""Looks at the engine now and then and keeps the last speeds, for the status line and the engine screen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pointcode_local.engine_text import Rates, rates
from pointcode_local.frontend import EngineView

SAMPLE_S = 0.5
N_SPEEDS = 8
_NO_TIME_S = 1e-3


class Meter:
    """`look` samples; `view`, `now` and `speeds` are of the last look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = 0.0
        self.view: EngineView | None = None
        self.now = Rates()
        self.since_start = Rates()
        self._speeds: deque[float] = deque(maxlen=N_SPEEDS)

    @property
    def speeds(self) -> list[float]:
        """The last tokens per second, oldest first."""
        return list(self._speeds)

    def look(self, view: EngineView | None) -> None:
        """Take the engine as it is now; None forgets everything (another model, or none in this process)."""
        at = self._clock()
        before, seconds = self.view, at - self._looked_at
        if view is None or (before is not None and (before.model != view.model or before.steps > view.steps)):
            self._speeds.clear()
            before = None
        self.view, self._looked_at = view, at
        if view is None:
            self.now = self.since_start = Rates()
            return
        self.since_start = rates(None, view, 0.0)
        if before is None or seconds < _NO_TIME_S:
            return
        self.now = rates(before, view, seconds)
        if self.now.step_s:
            self._speeds.append(self.now.tokens_per_s)

    @property
    def is_live(self) -> bool:
        """Whether tokens came since the last look."""
        return self.now.step_s > 0

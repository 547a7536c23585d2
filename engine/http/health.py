"""Is the engine well? Judged by whether its counters move while work is pending."""

from __future__ import annotations

from collections.abc import Callable

from ..engine import EngineStats

STALL_S = 30.0  # longer than a layer of a chunk or a step takes, also on a busy machine


class HealthWatch:
    """Looks at the engine's counters whenever it is asked; `now_s` is a clock that never goes back."""

    def __init__(
        self, stats: Callable[[], EngineStats], now_s: Callable[[], float], *, stall_s: float = STALL_S
    ) -> None:
        self._stats = stats
        self._now_s = now_s
        self._stall_s = stall_s
        self._seen: tuple[object, ...] = ()
        self._moved_s = now_s()

    def problem(self) -> str | None:
        """What is wrong, or None."""
        stats = self._stats()
        if stats.error is not None:
            return f"the engine stopped: {stats.error}"
        seen = (stats.steps, stats.prefill_layers, stats.n_finished, stats.n_restarts)
        if seen != self._seen or not (stats.n_rows or stats.n_waiting):
            self._seen, self._moved_s = seen, self._now_s()
            return None
        still_s = self._now_s() - self._moved_s
        if still_s < self._stall_s:
            return None
        return f"no step for {still_s:.0f} s with {stats.n_rows} sequences and {stats.n_waiting} requests waiting"

    @property
    def dead(self) -> str | None:
        """Why the engine will never answer again, or None."""
        return self._stats().error

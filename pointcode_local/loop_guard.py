"""Stops a model that goes in circles: the same calls with the same arguments and the same results, again and again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

Verdict = Literal["go on", "warn", "stop"]
NOTE = "[note] These calls were just made before, with the same results. Do something else, or give your answer."
_REPEATS = {1: 3, 2: 2, 3: 3, 4: 3}  # length of a cycle -> how often it must occur to count as one


class LoopGuard:
    """Judges after each reply that made calls. A step is the whole set of calls of one reply with their results."""

    def __init__(self) -> None:
        self._steps: list[str] = []
        self._warned = False

    def judge(self, calls: Sequence[tuple[str, dict[str, Any], str]]) -> Verdict:
        """Take one reply's (tool, arguments, result text): a circle is warned about once, the next step in it stops."""
        canonical = json.dumps([[n, a, t] for n, a, t in calls], sort_keys=True, default=str)
        self._steps.append(hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest())
        if not self._circles():
            self._warned = False
            return "go on"
        if self._warned:
            return "stop"
        self._warned = True
        return "warn"

    def _circles(self) -> bool:
        return any(self._repeats(period, times) for period, times in _REPEATS.items())

    def _repeats(self, period: int, times: int) -> bool:
        tail = self._steps[-period * times :]
        return len(tail) == period * times and all(tail[i] == tail[i - period] for i in range(period, len(tail)))

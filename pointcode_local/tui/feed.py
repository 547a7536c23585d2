"""Events on their way to the screen: drawn in batches, at most one a frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from pointcode_local.events import AgentEvent


class Feed:
    """`post` takes an event; `run` draws what arrived and never uses more than half of the event loop's time."""

    def __init__(self, draw: Callable[[list[AgentEvent]], Awaitable[None]], frame_s: float) -> None:
        self._draw = draw
        self._frame_s = frame_s  # 0: draw at once, for tests
        self._inbox: list[AgentEvent] = []
        self._mail = asyncio.Event()
        self._painting = False

    @property
    def is_settled(self) -> bool:
        """Whether everything that arrived is on the screen."""
        return not self._inbox and not self._painting

    def post(self, event: AgentEvent) -> None:
        """Take one event; it is drawn with the next frame."""
        self._inbox.append(event)
        self._mail.set()

    def wake(self) -> None:
        """Draw the next frame even if no event comes."""
        self._mail.set()

    async def run(self) -> None:
        """For as long as the screen lives."""
        while True:
            await self._mail.wait()
            self._painting = True
            self._mail.clear()
            batch, self._inbox = self._inbox, []  # all of it: a large frame costs less a token than several small ones
            started = time.perf_counter()
            await self._draw(batch)
            self._painting = False
            await asyncio.sleep(max(self._frame_s, (time.perf_counter() - started) if self._frame_s else 0))

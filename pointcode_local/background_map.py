"""The repository's map beside a session: made in the background, handed out when it is there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from pointcode_local.tools.repo_map import MapStore, RepoMap, is_worth_a_map

FIRST_WAIT_S = 0.3  # a map from an earlier run is there by then; a new one comes with a later prompt
SHOWN_TOKENS = 4000


class BackgroundMap:
    """The map of one folder. Everything but `text` belongs to the event loop that called `start`."""

    def __init__(self, root: Path, cache: Path, hidden: Callable[[str], bool]) -> None:
        self._store = MapStore(root, cache)
        self._hidden = hidden
        self._map: RepoMap | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun_s = 0.0

    async def begin(self) -> None:
        """Begin to bring the map up to date; small folders need none."""
        if self._task is None and await asyncio.to_thread(is_worth_a_map, self._store.root):
            self._task = asyncio.create_task(self._refresh(), name="repository map")
            self._begun_s = time.monotonic()

    async def start(self) -> None:
        """`begin` where that was not done, and wait until a moment has passed since."""
        await self.begin()
        if self._task is not None:
            left_s = self._begun_s + FIRST_WAIT_S - time.monotonic()
            await asyncio.wait({self._task}, timeout=max(0.0, left_s))

    async def _refresh(self) -> None:
        with contextlib.suppress(OSError):
            self._map = await self._store.refresh()

    def text(self, max_tokens: int) -> str:
        """The map within a budget, the same for the same files whatever the prompt; "" while there is none."""
        if self._map is None and self._task is not None:
            self._map = self._store.read()
        return self._map.text(max_tokens, self._hidden) if self._map is not None else ""

    async def shown(self) -> str:
        """The map as it now is, for people; waits for it."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._refresh(), name="repository map")
        await asyncio.wait({self._task})
        return self.text(SHOWN_TOKENS) or "no source files here that the map knows"

    async def close(self) -> None:
        """Stop what still runs."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

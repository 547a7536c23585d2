"""Opening a model behind the screen: its progress, and what is said when it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pointcode_local.frontend import AgentLike, HostError, OnProgress, Progress

_log = logging.getLogger(__name__)


class Opening:
    """At most one model is opened at a time. `changed` draws, `complain` shows an error."""

    def __init__(self, changed: Callable[[], None], complain: Callable[[str], Awaitable[None]]) -> None:
        self._changed = changed
        self._complain = complain
        self.is_under_way = True  # an app that starts is about to open one
        self.progress: Progress | None = None

    async def run(self, text: str, open_it: Callable[[OnProgress], Awaitable[AgentLike]]) -> AgentLike | None:
        """The agent over the model that was opened; None after a failure, which has been shown."""
        loop = asyncio.get_running_loop()

        def on_progress(progress: Progress) -> None:  # from any thread
            loop.call_soon_threadsafe(self._show, progress)

        self.is_under_way = True
        self._show(Progress(text))
        try:
            return await open_it(on_progress)
        except HostError as error:
            await self._complain(str(error))
        except Exception as error:  # noqa: BLE001  (front-end loop: the screen says what went wrong)
            _log.exception("opening failed")
            await self._complain(f"{type(error).__name__}: {error}")
        finally:
            self.is_under_way = False
            self.progress = None
            self._changed()
        return None

    def _show(self, progress: Progress) -> None:
        if self.is_under_way:
            self.progress = progress
            self._changed()

"""Signals as calls in the event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def on_signals(act: Callable[[], object], numbers: Iterable[signal.Signals] = ENDING) -> Generator[None]:
    """Each of these signals calls `act` instead of ending the program; outside of the main thread none does."""
    loop = asyncio.get_running_loop()
    added: list[signal.Signals] = []
    for number in numbers:
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            loop.add_signal_handler(number, act)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)

"""What another program or a file gives on standard input beside the prompt: `git diff | pointcode -p "Review this."`"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable

MAX_BYTES = 4 << 20  # far more than any context holds
GIVEN = "[standard input]"
WAIT_S = 3.0  # for the first byte, of a pipe that nobody may ever write to
NOTHING_CAME = (
    f"nothing came on standard input for {WAIT_S:.0f} s, so it is left out (`-p PROMPT -` waits for it, </dev/null is "
    "sooner done)"
)


def is_piped(fd: int) -> bool:
    """Whether a file, a pipe or a socket stands behind a descriptor; terminals and /dev/null give nothing."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class PipedInput:
    """Reads a descriptor to its end in a thread, beside the opening of the model."""

    def __init__(self, fd: int, *, must_come: bool) -> None:
        """`must_come`: wait for it without limit. To be made inside the event loop."""
        self._fd = fd
        self._must_come = must_come
        self._loop = asyncio.get_running_loop()
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._pieces: list[bytes] = []
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    def _read(self) -> None:
        size = 0
        while piece := self._next():
            size += len(piece)
            if size <= MAX_BYTES:
                self._pieces.append(piece)
            self._tell(self._begun)
        self._tell(self._begun)
        self._tell(self._ended)

    def _next(self) -> bytes:
        try:
            return os.read(self._fd, 1 << 16)
        except OSError:
            return b""

    def _tell(self, event: asyncio.Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event.set)

    async def text(self, complain: Callable[[str], None]) -> str:
        """All of it, bytes that are no UTF-8 replaced; "" when nothing came."""
        try:
            await asyncio.wait_for(self._begun.wait(), None if self._must_come else WAIT_S)
        except TimeoutError:
            complain(NOTHING_CAME)
            return ""
        await self._ended.wait()
        return b"".join(self._pieces).decode("utf-8", "replace")


def as_context(text: str) -> str:
    """How the model reads it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{GIVEN}\n{fence}\n{text.rstrip()}\n{fence}"

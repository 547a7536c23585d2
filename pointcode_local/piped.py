"""What another program or a file gives on standard input beside the prompt: `git diff | pointcode -p "Review this."`"""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
import threading
from collections.abc import Callable

from pointcode_local.exits import UsageError
from pointcode_local.render import short_bytes

MAX_BYTES = 4 << 20  # far more than any context holds
GIVEN = "[standard input]"
_LOOKED_AT = 1 << 16  # characters
_FEW = 16  # that are none
_CONTROLS = "\t\n\r\f\v\b\a\x1b"  # of terminals, in texts too
WAIT_S = 3.0  # for the first byte, of a pipe that nobody may ever write to
NOTHING_CAME = (
    f"nothing came on standard input for {WAIT_S:.0f} s, so it is left out (`-p PROMPT -` waits for it, </dev/null is "
    "sooner done)"
)
CUT_TO_FIT = "what came on standard input is too long for the model's context: its middle is left out"


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
        self._n_bytes = 0  # of all that came
        threading.Thread(target=self._read, name="standard input", daemon=True).start()

    def _read(self) -> None:
        while piece := self._next():
            self._n_bytes += len(piece)
            if self._n_bytes <= MAX_BYTES:
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
        """All of it, single bytes that are no UTF-8 replaced; "" when nothing came. Raises UsageError for no text."""
        try:
            await asyncio.wait_for(self._begun.wait(), None if self._must_come else WAIT_S)
        except TimeoutError:
            complain(NOTHING_CAME)
            return ""
        await self._ended.wait()
        data = b"".join(self._pieces)
        text = _as_text(data)
        if text is None:
            raise UsageError(f"what came on standard input ({short_bytes(self._n_bytes)}) is no text in UTF-8")
        if self._n_bytes > len(data):
            size = f"{short_bytes(len(data))} of the {short_bytes(self._n_bytes)}"
            complain(f"only the first {size} that came on standard input are used")
        return text


def _as_text(data: bytes) -> str | None:
    """The text of some bytes, with a few replaced; None when too many are none."""
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if is_wide else "utf-8", "replace").removeprefix("\ufeff")
    looked_at = text[:_LOOKED_AT]
    n_bad = sum(c == "\N{REPLACEMENT CHARACTER}" or (c < " " and c not in _CONTROLS) for c in looked_at)
    return None if n_bad > max(_FEW, len(looked_at) // 10) else text


def as_context(text: str) -> str:
    """How the model reads it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{GIVEN}\n{fence}\n{text.rstrip()}\n{fence}"

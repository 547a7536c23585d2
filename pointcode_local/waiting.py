"""What the scripted mode tells on stderr beside its result: lines, and on a terminal why nothing comes yet."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from pointcode_local.events import AgentEvent, PrefillChanged, ReasoningDelta, TextDelta
from pointcode_local.frontend import Progress
from pointcode_local.render import one_line, plain, short_bytes, short_count

REDRAW_AFTER_S = 0.1
TELLS_FROM_BYTES = 10_000_000  # a download of less is over before it is missed
_CLEAR = "\r\x1b[K"


class StderrLines:
    """Inert lines that nobody need read. `wait` shows one line that the next one replaces, on a terminal only."""

    def __init__(self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._now = now
        self._can_redraw = self._stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._is_waiting = False
        self._drawn_at = -REDRAW_AFTER_S
        self._told = ("", -1)  # of a download: what, and how many tenths
        self._n_written = 0  # characters of the reply

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(f"{self._cleared()}{plain(text)}\n")

    def wait(self, text: str) -> None:
        """What it waits for; "" takes that away."""
        if not text:
            self._write(self._cleared())
        elif self._can_redraw and self._now() - self._drawn_at >= REDRAW_AFTER_S:
            self._is_waiting, self._drawn_at = True, self._now()
            self._write(_CLEAR + one_line(text, max(20, shutil.get_terminal_size().columns - 1)))

    def opening(self, progress: Progress) -> None:
        """A step of opening the model; a long download tells each tenth where no line can be rewritten."""
        text = progress.text
        if progress.total:
            text += f": {progress.done * 100 // progress.total} % of {short_bytes(progress.total)}"
        if self._can_redraw:
            self.wait(f"{text} …")
            return
        told = (progress.text, progress.done * 10 // progress.total if progress.total else -1)
        if progress.total >= TELLS_FROM_BYTES and told != self._told:
            self._told = told
            self.line(f"pointcode: {text}")

    def playing(self, event: AgentEvent) -> None:
        """What the turn does now, where that takes its time."""
        match event:
            case PrefillChanged():
                percent = 100 * event.done_tokens // max(1, event.total_tokens)
                self._n_written = 0
                self.wait(f"reading the prompt: {percent} % of {short_count(event.total_tokens)} tokens …")
            case TextDelta() | ReasoningDelta():
                self._n_written += len(event.text)
                doing = "thinking" if isinstance(event, ReasoningDelta) else "writing"
                self.wait(f"{doing}: {short_count(self._n_written)} characters …")
            case _:
                pass

    def _cleared(self) -> str:
        was_waiting, self._is_waiting = self._is_waiting, False
        return _CLEAR if was_waiting else ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads it, or it is closed: the result on stdout is what counts
            return

"""Bounded keeping of a command's cleaned output: head and tail in memory, all of it in a file when it is long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

HEAD_CHARS = 12_000
TAIL_CHARS = 12_000
MAX_LOG_CHARS = 64 << 20
LIVE_CHARS = 64_000  # live output passes whole up to here,
LIVE_PIECE_CHARS = 2_000  # then only the last of it,
LIVE_PAUSE_S = 0.25  # this often


class LiveOutput:
    """Thins out the live output of a noisy command, so that showing it costs little however much there is."""

    def __init__(self, emit: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._emit, self._clock = emit, clock
        self._used = 0
        self._last_s = 0.0

    def add(self, text: str) -> None:
        """Pass a piece on, or a part of it, or drop it."""
        self._used += len(text)
        if self._used > LIVE_CHARS:
            now_s = self._clock()
            if now_s - self._last_s < LIVE_PAUSE_S:
                return
            self._last_s = now_s
            text = text[-LIVE_PIECE_CHARS:]
            text = "…\n" + text[text.find("\n") + 1 :]
        self._emit(text)


class KeptOutput:
    """Takes pieces of text. `text()` is what to show; a log is opened only when head and tail cannot hold it all."""

    def __init__(self, log_path: Path, head_chars: int = HEAD_CHARS, tail_chars: int = TAIL_CHARS) -> None:
        self._log_path = log_path
        self._head_chars, self._tail_chars = head_chars, tail_chars
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_used = 0
        self._log: TextIO | None = None
        self._logged = 0
        self.n_chars = 0

    def add(self, text: str) -> None:
        """Keep the next piece."""
        self.n_chars += len(text)
        if self._log is not None:
            self._write_log(text)
        room = self._head_chars - len(self._head)
        if room > 0:
            self._head, text = self._head + text[:room], text[room:]
        if not text:
            return
        self._tail.append(text[-2 * self._tail_chars :] if self._log is not None else text)
        self._tail_used += len(self._tail[-1])
        if self._log is None and self._tail_used > self._tail_chars:
            self._open_log()
        while len(self._tail) > 1 and self._tail_used - len(self._tail[0]) >= self._tail_chars:
            self._tail_used -= len(self._tail.popleft())

    def _open_log(self) -> None:
        try:
            self._log = self._log_path.open("w", encoding="utf-8", errors="replace", newline="")
        except OSError:
            return
        self._write_log(self._head + "".join(self._tail))

    def _write_log(self, text: str) -> None:
        if self._log is None or self._logged >= MAX_LOG_CHARS:
            return
        self._log.write(text[: MAX_LOG_CHARS - self._logged])
        self._logged += len(text)

    def text(self) -> str:
        """Everything, or the head and the tail on whole lines with a notice between them."""
        tail = "".join(self._tail)
        if self.n_chars <= len(self._head) + len(tail) and len(tail) <= self._tail_chars:
            return self._head + tail
        tail = tail[-self._tail_chars :]
        head = self._head[: self._head.rfind("\n") + 1] or self._head
        cut = tail.find("\n") + 1
        tail = tail[cut:] if 0 < cut < len(tail) else tail
        left_out = self.n_chars - len(head) - len(tail)
        return f"{head}\n[… {left_out:,} characters left out; {self._where()} …]\n\n{tail}"

    def last_line(self) -> str:
        """The last line that is not empty, or ""."""
        kept = f"{self._head}\n{''.join(self._tail)}" if self._tail else self._head
        return kept.rstrip().rpartition("\n")[2]

    def _where(self) -> str:
        if self._log is None:
            return "the log could not be written"
        self._log.flush()
        cut = f" (its first {MAX_LOG_CHARS:,} characters)" if self._logged > MAX_LOG_CHARS else ""
        return f"the full output{cut} is in {self._log_path}"

    def close(self) -> None:
        """Close the log file; it stays on disk."""
        if self._log is not None:
            self._log.close()

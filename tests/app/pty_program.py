"""The real program on a pseudo-terminal of its own, as a terminal window would run it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.app.program import Program

_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;:?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_=>])")
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"


class PtyProgram:
    """`pointcode` with these arguments; use as a context manager. Every wait ends with the test's own time-out."""

    def __init__(
        self,
        program: Program,
        *arguments: str,
        size: tuple[int, int] = (100, 30),
        command: Sequence[str] = (sys.executable, "-P", "-m", "pointcode_local"),
        **env: str,
    ) -> None:
        self.master, self.slave = pty.openpty()
        self.raw = b""  # everything written so far
        self._from = 0  # where `text` begins
        self._resize_terminal(*size)
        self.settings_before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=program.ws,
            env={**program.env, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # one thread at this time
        )

    def __enter__(self) -> PtyProgram:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for end in (self.master, self.slave):
            if end >= 0:
                os.close(end)

    def _resize_terminal(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        """As when the window changes: the kernel sends SIGWINCH to the foreground group."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def read_more(self, wait_s: float = 0.05) -> bool:
        """Take what has been written; False when nothing came in that time."""
        ready, _, _ = select.select([self.master], [], [], wait_s)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.raw += data
        return bool(data)

    @property
    def text(self) -> str:
        """What was written since the last `forget`, without escape sequences."""
        return _ESCAPES.sub(b"", self.raw[self._from :]).decode("utf-8", "replace")

    def wait_for(self, text: str) -> None:
        """Until this was written (since the last `forget`)."""
        while text not in self.text:
            self.read_more()
            assert text in self.text or self.process.poll() is None, f"ended without {text!r}: {self.text[-2000:]}"

    def forget(self) -> None:
        """Only what comes from now on counts."""
        while self.read_more(0.0):
            pass
        self._from = len(self.raw)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        while self.process.poll() is None:
            self.read_more()
        while self.read_more(0.0):
            pass
        return self.process.returncode

    def check_restored(self) -> None:
        """The terminal is as it was: line settings, main screen, visible cursor, no mouse or paste reports."""
        assert termios.tcgetattr(self.slave) == self.settings_before
        last = {name: self.raw.rfind(name) for name in (b"\x1b[?1049h", LEFT_ALTERNATE_SCREEN)}
        assert last[LEFT_ALTERNATE_SCREEN] > last[b"\x1b[?1049h"] >= 0
        for on, off in (
            (b"\x1b[?25l", b"\x1b[?25h"),
            (b"\x1b[?1000h", b"\x1b[?1000l"),
            (b"\x1b[?2004h", b"\x1b[?2004l"),
        ):
            assert self.raw.rfind(off) >= self.raw.rfind(on), on
        assert self.raw.rfind(b"\x1b[?25h") >= self.raw.rfind(b"\x1b[?25l")
        assert "Traceback" not in self.text


def session_of(program: Program) -> str:
    """The text of the newest session's log."""
    logs = sorted((program.state / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return logs[-1].read_text(encoding="utf-8") if logs else ""


def has_stopped(pid: int) -> bool:
    """Whether the process is stopped (job control)."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"

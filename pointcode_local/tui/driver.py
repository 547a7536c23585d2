"""Textual's terminal driver, safe against stops that a program cannot see and continuations without a stop."""

from __future__ import annotations

import os
import signal
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

from pointcode_local.tui.keyboard import read_keys

_PUSH_TITLE, _POP_TITLE = "\x1b[22;2t", "\x1b[23;2t"


def _takes_titles() -> bool:
    """Consoles have no window, and old ones would print the text."""
    kind = os.environ.get("TERM", "")
    return bool(kind) and not kind.startswith(("cons", "dumb", "linux", "vt"))


class TerminalDriver(LinuxDriver):
    """As Textual's; only how keys are read (keyboard.py) and what SIGTSTP and SIGCONT do differ.

    Textual takes every SIGCONT for the end of a ctrl+z: it would start a second reader of the keys and take the
    program's own line settings for those that the shell had. Before the screen is there, and after, both signals
    are what they are for every program.
    """

    _has_screen = False
    _title = ""

    def run_input_thread(self) -> None:
        """Read keys and pastes until the driver ends."""
        read_keys(self.fileno, self.exit_event.is_set, self.process_message)

    def start_application_mode(self) -> None:
        """Take the terminal."""
        super().start_application_mode()
        self._has_screen = True
        if _takes_titles():
            self.write(_PUSH_TITLE)
            self._write_title()

    def stop_application_mode(self) -> None:
        """Give the terminal back, and its title."""
        if self._has_screen and _takes_titles():
            self.write(_POP_TITLE)
        self._has_screen = False
        super().stop_application_mode()

    def set_title(self, title: str) -> None:
        """The title of the terminal's window or tab; it is inert."""
        if title != self._title:
            self._title = title
            self._write_title()

    def _write_title(self) -> None:
        if self._title and self._has_screen and _takes_titles():
            self.write(f"\x1b]2;{self._title}\x1b\\")
            self.flush()

    def _sigtstp_application(self, *_: Any) -> None:
        if self._has_screen:
            super()._sigtstp_application()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _sigcont_application(self, *_: Any) -> None:
        if self._must_signal_resume:
            super()._sigcont_application()
        elif not self._has_screen:
            return
        elif os.isatty(self.fileno) and os.tcgetpgrp(self.fileno) != os.getpgrp():
            os.kill(os.getpid(), signal.SIGSTOP)  # continued in the background: wait for the terminal
        else:
            self._must_signal_resume = True
            self.suspend_application_mode()
            self.resume_application_mode()


def forget_stops() -> None:
    """The driver has ended: stops and continuations are again what they are for every program."""
    for number in (signal.SIGTSTP, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)

"""Textual's terminal driver, safe against stops that a program cannot see and continuations without a stop."""

from __future__ import annotations

import os
import signal
from typing import Any

from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """As Textual's; only what SIGCONT does differs.

    Textual takes every SIGCONT for the end of a ctrl+z: it would start a second reader of the keys and take the
    program's own line settings for those that the shell had.
    """

    def _sigcont_application(self, *_: Any) -> None:
        if not self._auto_restart:  # an editor has the terminal
            return
        if not self._must_signal_resume:
            if os.isatty(self.fileno) and os.tcgetpgrp(self.fileno) != os.getpgrp():
                os.kill(os.getpid(), signal.SIGSTOP)  # continued in the background: wait for the terminal
                return
            self._must_signal_resume = True
            self.suspend_application_mode()
        self.resume_application_mode()


def forget_stops() -> None:
    """The driver has ended: stops and continuations are again what they are for every program."""
    for number in (signal.SIGTSTP, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)

"""Commands must not outlive the program, even when it is killed: a small process of its own waits for our end.

It holds the reading end of a pipe whose other end is ours alone, so the system tells it when we are gone; it then ends
the process groups it was told about and everything that carries our mark.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import uuid
from pathlib import Path

from .reaper_exec import MARK

log = logging.getLogger(__name__)
HELPER = Path(__file__).absolute().parent / "reaper_exec.py"


class Reaper:
    """Watches over process groups from the first one on. `mark` goes, as the value of MARK and with a tail that begins
    with a dot, into the environment of what is to end with us."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._helper: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start watching, before the first command starts; a failure is logged and keeps no command from running."""
        if self._helper is not None and self._helper.poll() is None:
            return
        self._drop()
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        try:
            self._helper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HELPER), f"{self.mark}."],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            log.warning("commands would outlive a kill of this program: %s", error)
            return
        for pid in self._groups:
            self._tell(f"+{pid}\n")

    def add(self, pid: int) -> None:
        """Watch a process group."""
        self._groups.add(pid)
        self._tell(f"+{pid}\n")

    def remove(self, pid: int) -> None:
        """The group's leader has ended, its number may be used again."""
        self._groups.discard(pid)
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Stop watching: what runs still is ended, as at our end."""
        self._groups.clear()
        self._drop()

    def _tell(self, line: str) -> None:
        if self._helper is None or self._helper.stdin is None:
            return
        try:
            self._helper.stdin.write(line.encode("ascii"))
        except OSError as error:
            log.warning("the process that ends commands with this program has gone: %s", error)
            self._drop()

    def _drop(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None and helper.stdin is not None:
            helper.stdin.close()
            helper.wait()

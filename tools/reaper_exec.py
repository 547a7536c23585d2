"""Ends what a program has started when that program ends, however it ends. Run as a script by `reaper.py`; standard
library only.

argv: the mark of the program's commands. stdin: a pipe that only the program holds, with lines `+PID` and `-PID` for
process groups that run and that have ended. At its end all groups that run are killed, and all that carries the mark.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

MARK = "POINTCODE_COMMAND"  # in the environment of all that a command starts: finds those that left the process group
ROUNDS = 50  # what is killed may have started something in between


def marked(mark: str) -> list[int]:
    """Processes in whose environment the mark is so or begins so (Linux only; elsewhere none are found)."""
    needle = f"{MARK}={mark}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def end_all(mark: str) -> None:
    """Kill all that carries the mark, until nothing is left that may be killed."""
    for _ in range(ROUNDS):
        killed = False
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed = True
        if not killed:
            return


def main() -> None:
    """Wait for the end of stdin, then kill."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for pid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    end_all(sys.argv[1])


if __name__ == "__main__":
    main()

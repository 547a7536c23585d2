"""Ends what a program has started when that program ends, however it ends. Run as a script by `reaper.py`; standard
library only.

argv: the mark of the program's commands. stdin: a pipe that only the program holds, with lines `+PID` and `-PID` for
process groups that run and that have ended. At its end all groups that run are killed, and all that carries the mark.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
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


def family(roots: Iterable[int]) -> dict[int, int]:
    """The descendants of these processes with when each was started (Linux only; elsewhere none are found): those are
    known too that left both the group and the environment they were given."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()  # a name may hold anything
            parents[int(entry.name)] = int(fields[1]), int(fields[19])
        except (OSError, IndexError):
            continue
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in parents.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, int] = {}
    left = [child for root in roots for child in children.get(root, [])]
    while left:
        pid = left.pop()
        if pid not in found and pid != os.getpid():
            found[pid] = parents[pid][1]
            left += children.get(pid, [])
    return found


def started(pid: int) -> int:
    """When a process was started, in ticks of the system; 0 when it is not there."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


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
    strays = family(groups)
    for pid in strays:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for pid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    end_all(sys.argv[1])


if __name__ == "__main__":
    main()

"""Tags of many files, by as many processes as there are processors (`map_tagger.py`).

A thread stands between this process and each of those: it asks for one batch after another and passes the answers on.
A process that dies leaves its batch to be done here; all of them end with the iterator, and when this process does.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

from .map_tagger import Record, tag_files
from .own_process import own_command
from .tags import Tag

PARALLEL_FROM = 400  # files: a process needs 0.15 s to start, and a file 0.5 ms
MAX_PROCESSES = 16
BATCH = 32  # files

_Batches: TypeAlias = deque[Sequence[str]]
_Answers: TypeAlias = SimpleQueue[tuple[Sequence[str], bytes] | None]  # None: a thread has ended


def tagged(
    root: Path, names: Sequence[str], n_processes: int | None = None, parallel_from: int = PARALLEL_FROM
) -> Generator[tuple[str, Record]]:
    """The record of each file, not in order. Closing the iterator ends what was started for it."""
    batches: _Batches = deque(names[at : at + BATCH] for at in range(0, len(names), BATCH))
    n = min(_n_processors() if n_processes is None else n_processes, MAX_PROCESSES)
    if len(names) >= parallel_from and n > 1:
        yield from _by_processes(root, batches, n)
    while batches:
        batch = batches.popleft()
        yield from zip(batch, tag_files(root, batch), strict=True)


def _n_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _by_processes(root: Path, batches: _Batches, n: int) -> Iterator[tuple[str, Record]]:
    """What `n` processes say of the batches; leaves those that none of them has done."""
    answers: _Answers = SimpleQueue()
    n_running = 0
    with ExitStack() as stack:
        for _ in range(n):
            with suppress(OSError):  # no room for another process: those that are there do it all
                process = _start(root)
                thread = threading.Thread(target=_drive, args=(process, batches, answers))
                stack.callback(_end, process, thread)
                thread.start()
                n_running += 1
        while n_running:
            answer = answers.get()
            if answer is None:
                n_running -= 1
                continue
            for name, (tags, words) in zip(answer[0], json.loads(answer[1]), strict=True):
                yield name, ([Tag._make(tag) for tag in tags], words)


def _start(root: Path) -> subprocess.Popen[bytes]:
    command = own_command("map_tagger", os.fspath(root))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes], thread: threading.Thread) -> None:
    process.kill()
    thread.join()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what it was not asked any more
            if pipe is not None:
                pipe.close()
    process.wait()


def _drive(process: subprocess.Popen[bytes], batches: _Batches, answers: _Answers) -> None:
    """Have batches done until there are none, or the process is dead."""
    while (batch := _next(batches)) is not None:
        line = _ask(process, json.dumps(batch).encode("ascii") + b"\n")
        if not line.endswith(b"\n"):
            batches.append(batch)
            break
        answers.put((batch, line))
    answers.put(None)


def _next(batches: _Batches) -> Sequence[str] | None:
    try:
        return batches.popleft()
    except IndexError:
        return None


def _ask(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """The answering line; without its end when the process is dead."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return b""

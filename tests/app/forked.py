"""The program without its start: a process that has imported it forks for each run. What a start does and how long it
takes is tested with `Program`; here it would be most of the work of tests that run the program many times."""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.app.program import Program

_IMPORTED = (
    *(f"pointcode_local.{name}" for name in ("endpoint", "headless", "hosts", "kit", "launch", "local_models")),
    *("pointcode_local.httpx_alone", "httpcore", "anyio._backends._asyncio"),
)
_LONGEST_S = 60.0


class ForkingProcess:
    """A process with the modules of a scripted run; it does one run at a time."""

    def __init__(self, env: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "tests.app.forked", str(theirs.fileno())]
        pipe = subprocess.PIPE  # as a run has it: Python asks once whether it can be gone back in
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._answers = self._ours.makefile("r")

    def run(self, files: tuple[int, int, int], **asked: Any) -> int:
        """The exit code of a run with these standard files."""
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(asked).encode()], files)
            pid = int(self._answers.readline())
            end = threading.Timer(_LONGEST_S, os.killpg, (pid, 9))
            end.start()
            code = int(self._answers.readline())
            end.cancel()
            return code

    def close(self) -> None:
        self._ours.close()
        self._answers.close()
        self._process.communicate(timeout=_LONGEST_S)


class ForkedProgram(Program):
    """A `Program` whose runs are forks. What Python itself reads of the environment is as in `env`."""

    def __init__(self, folder: Path, process: ForkingProcess) -> None:
        super().__init__(folder)
        self._process = process

    def run(
        self, *arguments: str, data: bytes | None = None, stdin_is_open: bool = False, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        assert data is None and not stdin_is_open
        with ExitStack() as ends, ThreadPoolExecutor(2) as readers, open(os.devnull, "rb") as nothing:  # noqa: PTH123
            pipes = [os.pipe() for _ in range(2)]
            out, err = (readers.submit(ends.enter_context(os.fdopen(reads, "rb")).read) for reads, _ in pipes)
            files = (nothing.fileno(), pipes[0][1], pipes[1][1])
            try:
                asked = {"arguments": arguments, "cwd": str(self.ws), "env": {**self.env, **env}}
                code = self._process.run(files, **asked)
            finally:
                for _, writes in pipes:
                    os.close(writes)
            return subprocess.CompletedProcess(arguments, code, out.result(), err.result())


def _serve(channel: socket.socket) -> None:
    """Forks for what is asked, until nobody asks any more."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    while True:
        asked, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not asked:
            return
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become(json.loads(asked), files)
            from pointcode_local.__main__ import main

            sys.exit(main())
        for file in files:
            os.close(file)
        with suppress(BrokenPipeError):
            channel.sendall(b"%d\n" % pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            channel.sendall(b"%d\n" % code)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    """What a process that is started is born with."""
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["pointcode", *asked["arguments"]]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

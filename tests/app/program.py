"""Starts the real program in a folder of its own against a scripted server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.app.openai_server import ScriptedServer, Step

ROOT = Path(__file__).parents[2]


class Program:
    """A workspace `ws`, a POINTCODE_HOME and a HOME below `folder`."""

    command = (sys.executable, "-P", "-m", "pointcode_local")

    def __init__(self, folder: Path) -> None:
        self.ws, self.state = folder / "ws", folder / "state"
        for path in (self.ws, self.state, folder / "home", folder / "tmp"):
            path.mkdir()
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "POINTCODE_HOME": str(self.state),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
        }

    def start(self, *arguments: str, stdin: Any = subprocess.DEVNULL, **env: str) -> subprocess.Popen[bytes]:
        """Start it with these arguments, in a process group of its own."""
        command = [*self.command, *arguments]
        return subprocess.Popen(
            command,
            cwd=self.ws,
            env={**self.env, **env},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, data: bytes | None = None, stdin_is_open: bool = False, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end; `data` is its stdin; `stdin_is_open`: a pipe through which nothing comes."""
        ours, theirs = os.pipe()
        piped = subprocess.DEVNULL if data is None else subprocess.PIPE
        process = self.start(*arguments, stdin=ours if stdin_is_open else piped, **env)
        out, err = process.communicate(data, timeout=60)
        os.close(theirs)
        os.close(ours)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def ask(
        self,
        *steps: Step,
        prompt: str = "Go.",
        mode: str = "auto",
        flags: Sequence[str] = (),
        data: bytes | None = None,
    ) -> tuple[dict[str, Any], subprocess.CompletedProcess[bytes], ScriptedServer]:
        """One scripted prompt: the result object, the finished process, the server."""
        with ScriptedServer(list(steps)) as server:
            base = ("-p", prompt, "--output-format", "json", "--permission-mode", mode, "--endpoint", server.url)
            done = self.run(*base, *flags, data=data)
        return (json.loads(done.stdout) if done.stdout.strip() else {}), done, server

"""`!command`: a command that the person runs, shown like a tool call; the model reads it with the next prompt."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from pointcode_local.events import AgentEvent, ToolFinished, ToolProgress, ToolStarted
from pointcode_local.render import one_line
from pointcode_local.tools.reaper import Reaper
from pointcode_local.tools.terminal_text import TerminalText

_KEPT_CHARS = 400_000
_TOLD_CHARS = 8_000
_PIPE_GRACE_S = 0.5  # a background child may hold the pipe after the shell is gone


async def run_user_shell(command: str, cwd: Path, call_id: str) -> AsyncIterator[AgentEvent]:
    """Run `command` in the person's shell; yields started, progress and finished. Cancelling ends the command, which
    then finishes as stopped; closing the iterator ends it too."""
    arguments = {"command": command}
    yield ToolStarted(call_id, "shell", arguments, f"!{one_line(command)}")
    reaper = Reaper()
    try:
        process = await _start(command, cwd, reaper)
    except OSError as error:
        reaper.close()
        yield ToolFinished(call_id, "shell", arguments, f"cannot start the shell: {error.strerror}", is_error=True)
        return
    settled: list[str] = []  # what no cursor movement can change any more
    live: list[str] = []  # not yet shown
    screen = TerminalText(settled.append, live.append)
    note = ""
    try:
        async for data in _read(process):
            screen.feed(data)
            if sum(map(len, settled)) > 2 * _KEPT_CHARS:
                settled[:] = ["".join(settled)[-_KEPT_CHARS:]]
            if live:
                yield ToolProgress(call_id, "".join(live))
                live.clear()
        code = await process.wait()
        note = f"exit code {code}" if code else ""
    except asyncio.CancelledError:  # the only thing that is cancelled; the card must not run for ever
        note = "stopped"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        reaper.remove(process.pid)  # what it leaves in the background is the person's
        reaper.close()
    screen.finish()
    output = "".join(settled)[-_KEPT_CHARS:].rstrip("\n")
    text = "\n".join(part for part in (output, note) if part)
    yield ToolFinished(call_id, "shell", arguments, text, is_error=bool(note))


def note_for_model(event: ToolFinished) -> str:
    """What the model is told about a command that the person ran."""
    shown = event.text if len(event.text) <= _TOLD_CHARS else "…" + event.text[-_TOLD_CHARS:]
    return f"The user ran this command: {event.arguments['command']}\nIts output:\n{shown or '(none)'}"


async def _start(command: str, cwd: Path, reaper: Reaper) -> asyncio.subprocess.Process:
    reaper.start()
    process = await asyncio.create_subprocess_exec(
        os.environ.get("SHELL") or "/bin/sh",
        "-c",
        command,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    reaper.add(process.pid)
    return process


async def _read(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    ended = asyncio.create_task(process.wait())
    chunk = asyncio.create_task(process.stdout.read(65536))
    try:
        while True:
            await asyncio.wait({chunk, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not chunk.done():
                await asyncio.wait({chunk}, timeout=_PIPE_GRACE_S)
            data = chunk.result() if chunk.done() else b""
            if not data:
                return
            yield data
            chunk = asyncio.create_task(process.stdout.read(65536))
    finally:
        chunk.cancel()
        ended.cancel()

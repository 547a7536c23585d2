"""`!command`: a command that the person runs themselves, shown like a tool call. The model does not see it."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from pointcode_local.events import AgentEvent, ToolFinished, ToolProgress, ToolStarted
from pointcode_local.render import one_line

_KEPT_CHARS = 400_000
_PIPE_GRACE_S = 0.5  # a background child may hold the pipe after the shell is gone


async def run_user_shell(command: str, cwd: Path, call_id: str) -> AsyncIterator[AgentEvent]:
    """Run `command` in the person's shell; yields started, progress and finished. Closing the iterator kills it."""
    arguments = {"command": command}
    yield ToolStarted(call_id, "shell", arguments, f"!{one_line(command)}")
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
    output = ""
    try:
        async for text in _read(process):
            output = (output + text)[-_KEPT_CHARS:]
            yield ToolProgress(call_id, text)
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    note = f"exit code {code}" if code else ""
    text = "\n".join(part for part in (output.rstrip("\n"), note) if part)
    yield ToolFinished(call_id, "shell", arguments, text, is_error=code != 0)


async def _read(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ended = asyncio.create_task(process.wait())
    chunk = asyncio.create_task(process.stdout.read(65536))
    try:
        while True:
            await asyncio.wait({chunk, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not chunk.done():
                await asyncio.wait({chunk}, timeout=_PIPE_GRACE_S)
            data = chunk.result() if chunk.done() else b""
            if text := decoder.decode(data, final=not data):
                yield text
            if not data:
                return
            chunk = asyncio.create_task(process.stdout.read(65536))
    finally:
        chunk.cancel()
        ended.cancel()

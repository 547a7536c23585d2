"""MCP messages over a program's standard input and output, a line each.

The package's own transport joins a line with all that came of it so far whenever more comes, so that a message of
60 MB takes a minute in which nothing else runs, and it bounds none. Here a line is put together once, and one that is
too long ends the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import anyio

from .byte_lines import ByteLines

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 32 << 20
READ_BYTES = 1 << 16
TERM_GRACE_S = 2.0  # after its input was closed, and after SIGTERM
_POLL_S = 0.01


class StdioServer:
    """A program that speaks MCP. `fault` says what it did that ended the connection; "" while there is none."""

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], errors: IO[str] | None = None
    ) -> None:
        self._command = command
        self._cwd = cwd
        self._environment = environment
        self._errors = errors
        self.fault = ""

    @asynccontextmanager
    async def streams(
        self,
    ) -> AsyncGenerator[
        tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
    ]:
        """What came, and what is to be sent, while the program runs; raises OSError when it cannot be started."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._cwd,
            env=dict(self._environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        came, received = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        outgoing, to_send = anyio.create_memory_object_stream["SessionMessage"](0)
        assert process.stdout is not None and process.stdin is not None
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, process.stdout, came)
            group.start_soon(_write, process.stdin, to_send, came)
            try:
                yield received, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    received.close()
                    outgoing.close()
                    process.stdin.close()  # what was written is still sent
                    await _end(process, wait_first=not self.fault)
                group.cancel_scope.cancel()

    async def _read(
        self, source: asyncio.StreamReader, came: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        """One message at a time. What still comes at the end is thrown away, so that the program can end."""
        lines = ByteLines()
        async with came:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while not self.fault and (data := await source.read(READ_BYTES)):
                    for line in lines.feed(data):
                        await came.send(_message(line))
                    if lines.n_bytes > MAX_MESSAGE_BYTES:
                        self.fault = f"sent a message of more than {MAX_MESSAGE_BYTES / (1 << 20):g} MB"
        while not self.fault and await source.read(READ_BYTES):
            pass


def _message(line: bytes) -> SessionMessage | Exception:
    """The message of a line; for one that is none the error, which the session passes over."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(
    target: asyncio.StreamWriter,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    came: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    try:
        async with to_send:
            async for sent in to_send:
                line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                target.write(line.encode() + b"\n")
                await target.drain()
    except OSError:  # it reads no more: nothing that waits for an answer will get one
        await came.aclose()


async def _end(process: asyncio.subprocess.Process, *, wait_first: bool) -> None:
    """It has been told by the end of its input; its whole group is ended when that does not help."""
    if not wait_first:
        _signal_group(process, signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_GRACE_S):
                # wait() would also wait for whoever else holds its pipes.
                while process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
                break
        if number is not None:
            _signal_group(process, number)
    with contextlib.suppress(PermissionError):
        process._transport.close()  # type: ignore[attr-defined]  # its pipes may be held by others


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)

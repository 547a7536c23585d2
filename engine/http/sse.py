"""Answers as server-sent events, and what happens when their reader is slow or gone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .state import ABORT, Served

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_LINE_BREAKS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})  # some clients cut there
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def event(value: object, name: str = "") -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_LINE_BREAKS)
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class EventStream(Response):
    """Sends `chunks` as they come. Closes them, which cancels the request, when the client leaves or does not read."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        source: AsyncGenerator[Any, None],
        state: Served,
        failed: Callable[[Exception], bytes],
    ) -> None:
        super().__init__()
        self._failed = failed  # the last event when the chunks end with an error
        self._chunks = chunks
        self._source = source  # what the chunks are made from: closed even when no chunk was ever asked for
        self._state = state
        self._pending: deque[bytes] = deque()
        self._n_unsent = 0
        self._more = asyncio.Event()
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until the stream is complete, the client has left, or too much is unread."""
        filling = asyncio.create_task(self._fill())
        sending = asyncio.create_task(self._send(send))
        watching = asyncio.create_task(disconnected(receive))
        tasks = (filling, sending, watching)
        try:
            await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
            if self._complete:
                await asyncio.wait((sending, watching), return_when="FIRST_COMPLETED")
            sent, left = sending.done() and sending.exception() is None, watching.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._chunks.aclose()
            await self._source.aclose()
        if left and not sent:
            self._state.metrics.n_gone += 1
        elif not sent:
            self._cut(scope)

    async def _fill(self) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self._add(chunk)
                    if self._n_unsent > self._state.options.limits.unread_bytes:
                        return
        except Exception as error:  # noqa: BLE001 - the headers are out: the client learns of it from an event
            self._add(self._failed(error))
        self._complete = True
        self._more.set()

    def _add(self, chunk: bytes) -> None:
        self._pending.append(chunk)
        self._n_unsent += len(chunk)
        self._more.set()

    async def _send(self, send: Send) -> None:
        timeout_s = self._state.options.limits.send_timeout_s
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while not self._complete or self._pending:
            await self._more.wait()
            self._more.clear()
            data = b"".join(self._pending)
            self._pending.clear()
            async with asyncio.timeout(timeout_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
            self._n_unsent -= len(data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _cut(self, scope: Scope) -> None:
        self._state.metrics.n_cut += 1
        _LOG.warning("cut a connection whose client left %d bytes unread", self._n_unsent)
        abort: Any = scope.get("extensions", {}).get(ABORT)
        if abort is not None:
            abort()


async def disconnected(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The work's result; cancels it and raises ClientGone when the client leaves first."""
    working, watching = asyncio.create_task(work), asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when="FIRST_COMPLETED")
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)

"""From the decode thread's ring to asyncio: one eventfd, registered in every loop that has an open stream.

Whoever is woken drains the ring for all streams. Items enter a stream's mailbox under one lock, so their order is the
ring's; only waking another loop's stream crosses threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress

from . import _native
from ._native import TokenFlag
from .errors import EngineError
from .types import FinishReason, PrefillProgress, StreamFinished, TokenEvent, TokensDecoded, Usage

_ENDS: dict[int, FinishReason] = {
    TokenFlag.END_STOP: "stop",
    TokenFlag.END_LENGTH: "length",
    TokenFlag.END_NAN: "error",
    TokenFlag.END_BACKEND: "error",
}
_END_BITS = TokenFlag.END_STOP | TokenFlag.END_LENGTH | TokenFlag.END_NAN | TokenFlag.END_BACKEND
_DRAIN_LIMIT = 1024

Record = tuple[int, dict[int, float] | None, int, float]  # token, logprobs, flags, when (perf_counter)


class TokenStream:
    """The mailbox of one request and its clock. `next` belongs to the loop that made the stream."""

    def __init__(self, request: int, n_prompt: int) -> None:
        self.request = request
        self.loop = asyncio.get_running_loop()
        self._items: deque[Record | PrefillProgress | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._n_prompt = n_prompt
        self._n_cached = 0
        self._n_tokens = 0
        self._submitted_s = time.perf_counter()
        self._first_s = self._last_s = 0.0
        self._error = ""
        self._pending_end = 0

    def put(self, item: Record | PrefillProgress | EngineError, error: str = "") -> None:
        """Adds an item (the hub's lock is held); `error` explains END_BACKEND."""
        self._error = error or self._error
        self._items.append(item)

    def wake(self) -> None:
        """Lets `next` look again; only in the stream's loop."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def n_tokens(self) -> int:
        """Tokens handed out so far."""
        return self._n_tokens

    async def next(self) -> TokenEvent:
        """The next event: all tokens that have arrived are one. Raises the EngineError that ended the request early."""
        if self._pending_end:
            return self._finish(self._pending_end)
        while not self._items:
            self._waiter = self.loop.create_future()
            await self._waiter
        item = self._items.popleft()
        if isinstance(item, PrefillProgress):
            self._n_cached = item.cached_tokens
            return item
        if isinstance(item, EngineError):
            if self._n_tokens == 0:
                raise item
            return StreamFinished("error", self._usage(), str(item))
        return self._tokens(item)

    def _tokens(self, first: Record) -> TokenEvent:
        records = [first]
        while self._items and isinstance(self._items[0], tuple):
            records.append(self._items.popleft())  # type: ignore[arg-type]
        ids = tuple(token for token, _, flags, _ in records if flags & TokenFlag.VALID)
        self._pending_end = records[-1][2] & _END_BITS
        if not ids:
            return self._finish(self._pending_end)
        self._first_s = self._first_s or records[0][3]
        self._last_s = records[-1][3]
        self._n_tokens += len(ids)
        logprobs = tuple(values for _, values, flags, _ in records if flags & TokenFlag.VALID and values is not None)
        return TokensDecoded(ids, logprobs)

    def _finish(self, end: int) -> StreamFinished:
        error = self._error if end & TokenFlag.END_BACKEND else None
        if end & TokenFlag.END_NAN:
            error = "the model's logits were not numbers"
        return StreamFinished(_ENDS[end], self._usage(), error)

    def _usage(self) -> Usage:
        waited_s = self._first_s - self._submitted_s if self._first_s else 0.0
        return Usage(self._n_prompt, self._n_cached, self._n_tokens, waited_s, max(0.0, self._last_s - self._first_s))


class StreamHub:
    """All open streams of an engine."""

    def __init__(self, service: _native.DecodeService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._streams: dict[int, TokenStream] = {}
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def n_tokens(self) -> dict[int, int]:
        """Tokens that each open stream has given so far; a snapshot, from any thread."""
        with self._lock:
            return {number: stream.n_tokens for number, stream in self._streams.items()}

    @contextmanager
    def open(self, request: int, n_prompt: int) -> Generator[TokenStream]:
        """A stream in the running loop, which watches the eventfd as long as it has streams."""
        stream = TokenStream(request, n_prompt)
        loop = stream.loop
        with self._lock:
            self._streams[request] = stream
            self._loops[loop] = self._loops.get(loop, 0) + 1
            if self._loops[loop] == 1:
                loop.add_reader(self._service.event_fd, self._on_readable)
        try:
            yield stream
        finally:
            with self._lock:
                for number in [n for n, other in self._streams.items() if other is stream]:
                    del self._streams[number]
                self._loops[loop] -= 1
                if not self._loops[loop]:
                    del self._loops[loop]
                    loop.remove_reader(self._service.event_fd)

    def alias(self, request: int, row: int) -> None:
        """Tokens of the row `row` belong to the request from now on."""
        with self._lock:
            stream = self._streams.get(request)
            if stream is not None:
                self._streams[row] = stream

    def report(self, request: int, item: PrefillProgress | EngineError) -> None:
        """From the control thread: an item that comes after all tokens the request has in the ring."""
        with self._lock:
            woken = self._drain()
            stream = self._streams.get(request)
            if stream is not None:
                stream.put(item)
                woken.add(stream)
        self._wake(woken, None)

    def _on_readable(self) -> None:
        with suppress(BlockingIOError):  # another loop was faster
            os.eventfd_read(self._service.event_fd)
        with self._lock:
            woken = self._drain()
        self._wake(woken, asyncio.get_running_loop())

    def _drain(self) -> set[TokenStream]:
        woken: set[TokenStream] = set()
        while records := self._service.drain(_DRAIN_LIMIT):
            now_s = time.perf_counter()
            for request, token, flags, logprobs in records:
                stream = self._streams.get(request)
                if stream is None:
                    continue  # closed: the row ends within a step
                error = self._service.error if flags & TokenFlag.END_BACKEND else ""
                stream.put((token, logprobs, flags, now_s), error)
                woken.add(stream)
        return woken

    @staticmethod
    def _wake(streams: set[TokenStream], here: asyncio.AbstractEventLoop | None) -> None:
        for stream in streams:
            if stream.loop is here:
                stream.wake()
            elif not stream.loop.is_closed():
                stream.loop.call_soon_threadsafe(stream.wake)

"""The engine as an HTTP server: the app, and the process that serves it.

`create_app` is the ASGI app (tests call it in process). `run_server` listens on TCP and on a Unix socket, drains on
SIGTERM, and ends when the engine has died: the exit code says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Generator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .chat_model import LocalChatModel
from .http import chat, completions, info, messages, responses, tokens
from .http.gate import Gate
from .http.handler import api, not_found
from .http.health import HealthWatch
from .http.state import ABORT, LOCAL, Served, ServerOptions

_LOG = logging.getLogger(__name__)
_WATCH_S = 0.5
_MORE_LOCAL = 64  # connections through the Unix socket, when there are too many of others
_TAKEN_AT_ONCE = 16  # connections: asyncio opens several times that many before it can close the first
_BACKLOG = 1024  # connections that the kernel keeps for us meanwhile
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_DRAIN_S = 30
EXIT_ENGINE_DIED = 1


def create_app(model: LocalChatModel, options: ServerOptions | None = None) -> Starlette:
    """The ASGI app over one model. The caller keeps the model and closes it."""
    options = options or ServerOptions()
    routes = [
        Route("/health", api(info.health), methods=["GET"]),
        Route("/metrics", api(info.metrics), methods=["GET"]),
        Route("/v1/models", api(info.models), methods=["GET"]),
        Route("/v1/models/{name:path}", api(info.model), methods=["GET"]),
        Route("/v1/chat/completions", api(chat.chat_completions), methods=["POST"]),
        Route("/v1/completions", api(completions.completions), methods=["POST"]),
        Route("/v1/responses", api(responses.responses), methods=["POST"]),
        Route("/v1/responses/{id}", api(responses.stored), methods=["GET", "DELETE"]),
        Route("/v1/messages", api(messages.messages), methods=["POST"]),
        Route("/v1/messages/count_tokens", api(messages.count_tokens), methods=["POST"]),
        Route("/tokenize", api(tokens.tokenize), methods=["POST"]),
        Route("/detokenize", api(tokens.detokenize), methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, options)],
        exception_handlers={HTTPException: not_found},
    )
    app.router.redirect_slashes = False
    app.state.served = Served(model, options, HealthWatch(model.engine.stats, time.monotonic))
    return app


# ----------------------------------------------------------------------------------------------- connections
class _Connection(H11Protocol):
    """A connection whose requests know whether they came through the Unix socket, and how to end it at once.

    One that does not send the head of a request in time is closed, and so is one too many at once: a process can only
    have so many files open, and the engine needs some.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        served: Served = self.config.app.state.served  # type: ignore[union-attr]
        peer: Any = transport.get_extra_info("socket")
        is_local = peer is not None and peer.family == socket.AF_UNIX
        if len(self.connections) > served.options.limits.n_connections + is_local * _MORE_LOCAL:
            transport.write(_TOO_MANY)
            transport.close()
            return
        marks = {ABORT: transport.abort, LOCAL: is_local}
        app: ASGIApp = self.app  # type: ignore[assignment]

        async def marked(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app({**scope, "extensions": {**scope.get("extensions", {}), **marks}}, receive, send)
            except asyncio.CancelledError:  # the server ends and has waited long enough: no failure to be logged
                transport.abort()
                await asyncio.sleep(0)  # the connection learns of it

        self.app = marked  # type: ignore[assignment]
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        before: Any = self.cycle  # None before the first request
        if self._late is None and (before is None or before.response_complete):
            self._expect_request()
        super().data_received(data)
        if self.cycle is not before:
            self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        served: Served = self.config.app.state.served  # type: ignore[union-attr]
        self._late = self.loop.call_later(served.options.limits.receive_timeout_s, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the signals to `run_server`."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


# ----------------------------------------------------------------------------------------------- the process
async def run_server(
    app: Starlette,
    sockets: Sequence[socket.socket],
    *,
    stop: asyncio.Event | None = None,
    signals: bool = True,
    drain_s: int = _DRAIN_S,
) -> int:
    """Serves until SIGTERM, SIGINT or `stop` (0, after what runs is answered; a second signal does not wait for that),
    or until the engine has died (1)."""
    state: Served = app.state.served
    config = uvicorn.Config(
        app,
        http=_Connection,
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_s,
        timeout_keep_alive=75,
        backlog=_TAKEN_AT_ONCE,
    )
    server = _Server(config)
    stop, at_once = stop or asyncio.Event(), asyncio.Event()
    with _stopping(stop, at_once) if signals else contextlib.nullcontext():
        ending = asyncio.create_task(_end_at(stop, at_once, server, state))
        watching = [ending, asyncio.create_task(_watch(server, state))]
        try:
            await server.serve(list(sockets))
        finally:
            for task in watching:
                task.cancel()
    if state.health.dead is None:
        return 0
    _LOG.critical("the engine stopped, so the server ends: %s", state.health.dead)
    return EXIT_ENGINE_DIED


@contextlib.contextmanager
def _stopping(stop: asyncio.Event, at_once: asyncio.Event) -> Generator[None]:
    """SIGTERM and SIGINT set the first event, after that the second."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, lambda: (at_once if stop.is_set() else stop).set())
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _end_at(stop: asyncio.Event, at_once: asyncio.Event, server: uvicorn.Server, state: Served) -> None:
    await stop.wait()
    server.should_exit = True
    if state.metrics.n_live:
        _LOG.info("no new requests; %d are still answered (a second signal cuts them off)", state.metrics.n_live)
    await at_once.wait()
    for task in server.server_state.tasks:
        task.cancel()


async def _watch(server: uvicorn.Server, state: Served) -> None:
    """Looks at the engine's health, and ends the server when the engine is dead."""
    was_well = True
    while True:
        await asyncio.sleep(_WATCH_S)
        problem = state.health.problem()
        if problem is not None and was_well:
            _LOG.error("%s", problem)
        was_well = problem is None
        if state.health.dead is not None:
            server.should_exit = True
            return

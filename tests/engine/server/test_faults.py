"""Faults under a running server: it goes on answering, or it ends with a non-zero code and says why."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.http.state import Served, ServerLimits, ServerOptions
from pointcode_local.engine.model_files import ModelFiles, open_model
from pointcode_local.engine.parts import EngineParts
from pointcode_local.engine.server import create_app, run_server
from pointcode_local.engine.sockets import listen_tcp

from ..engines import until
from ..hooked import Hook, broken_backend, hooked
from ..tiny_models import make_tiny
from .kit import OPTIONS, close, events_of, tiny_chat_model

PATH = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults")
    make_tiny("qwen2", path / "qwen2")
    return path


def files_of(folder: Path) -> ModelFiles:
    return open_model(folder / "qwen2")


@asynccontextmanager
async def asked(model: LocalChatModel, options: ServerOptions | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(model, options))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def with_hook(folder: Path, hook: Hook) -> LocalChatModel:
    return tiny_chat_model(folder, change=hooked(files_of(folder), hook))


# ----------------------------------------------------------------------------------------------- the engine
def test_a_step_that_throws_ends_its_requests_and_the_next_one_is_answered(folder: Path) -> None:
    faults = iter([True])

    def hook(positions: np.ndarray, logits: np.ndarray) -> None:
        if 30 in positions and next(faults, False):
            raise RuntimeError("thrown at step 30")

    async def main() -> None:
        async with asked(model) as client:
            events = events_of((await client.post(PATH, json={**LONG})).text)
            assert "thrown at step 30" in events[-1]["error"]["message"]
            assert events[-1]["error"]["code"] == "generation_failed"
            assert len(events) > 1
            answer = await client.post(PATH, json=SHORT)
            assert answer.json()["usage"]["completion_tokens"] == 20
            assert (await client.get("/health")).status_code == 200
            assert "pointcode_backend_restarts_total 1" in (await client.get("/metrics")).text

    model = with_hook(folder, hook)
    asyncio.run(main())
    close(model)


def test_logits_that_are_no_numbers_end_one_request_and_the_others_go_on(folder: Path) -> None:
    def hook(positions: np.ndarray, logits: np.ndarray) -> None:
        logits[positions == 101] = np.nan  # only the long prompt comes there

    async def main() -> None:
        async with asked(model) as client:
            alone = (await client.post(PATH, json=SHORT)).json()["choices"]
            long = {**SHORT, "prompt": [40] * 100}
            bad, *good = await asyncio.gather(
                client.post(PATH, json=long), *(client.post(PATH, json=SHORT) for _ in range(3))
            )
            assert bad.status_code == 500
            assert "not numbers" in bad.json()["error"]["message"]
            assert all(answer.json()["choices"] == alone for answer in good)
            assert (await client.post(PATH, json={**long, "max_tokens": 1})).status_code == 200

    model = with_hook(folder, hook)
    asyncio.run(main())
    close(model)


def test_a_stuck_barrier_is_given_up_and_the_next_request_is_answered(folder: Path) -> None:
    files = files_of(folder)

    def change(parts: EngineParts) -> EngineParts:
        backends = iter([lambda: broken_backend(files, parts)])
        return replace(parts, make_backend=lambda: next(backends, parts.make_backend)())

    async def main() -> None:
        async with asked(model) as client:
            answer = await client.post(PATH, json={**SHORT})
            assert answer.status_code == 500
            assert "counter" in answer.json()["error"]["message"]
            assert (await client.post(PATH, json=SHORT)).json()["usage"]["completion_tokens"] == 20

    model = tiny_chat_model(folder, change=change)
    asyncio.run(main())
    close(model)


def test_with_too_few_pages_everybody_is_answered_as_alone(folder: Path) -> None:
    files = files_of(folder)
    geometry = tiny_chat_model(folder).engine._parts.kv.geometry
    few = replace(OPTIONS, kv_bytes=12 * geometry.page_bytes(0))
    wanted = [{"prompt": [30 + i] * 100, "max_tokens": 300, "ignore_eos": True} for i in range(4)]

    async def main() -> None:
        async with asked(model) as client:
            alone = [(await client.post(PATH, json=body)).json()["choices"] for body in wanted]
            together = await asyncio.gather(*(client.post(PATH, json=body) for body in wanted))
            assert [answer.json()["choices"] for answer in together] == alone

    model = tiny_chat_model(folder, options=few)
    assert model.engine.stats().pages[0].total == 12
    assert files.config.n_layers == 3
    asyncio.run(main())
    close(model)


def test_a_dead_engine_ends_the_server_with_a_code_and_a_last_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(parts: EngineParts) -> EngineParts:
        def no_device() -> Any:
            raise RuntimeError("no device")

        backends = iter([parts.make_backend])
        return replace(parts, make_backend=lambda: next(backends, no_device)())

    def hook(positions: np.ndarray, logits: np.ndarray) -> None:
        raise RuntimeError("the first step fails")

    async def main() -> int:
        listener = listen_tcp("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = asyncio.create_task(run_server(create_app(model), [listener], signals=False, drain_s=5))
        async with httpx.AsyncClient() as client:
            answer = await client.post(url + PATH, json=SHORT)
            assert answer.status_code == 500
        return await running

    files = files_of(folder)
    model = tiny_chat_model(folder, change=lambda parts: change(hooked(files, hook)(parts)))
    with caplog.at_level(logging.INFO):
        assert asyncio.run(main()) == 1
    critical = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "no device" in critical[-1].getMessage()
    asyncio.run(model.aclose())


# ----------------------------------------------------------------------------------------------- clients
@asynccontextmanager
async def listening(
    model: LocalChatModel, options: ServerOptions | None = None
) -> AsyncGenerator[tuple[tuple[str, int], Served]]:
    """The server on a real socket whose kernel buffers are small: its address and its state."""
    listener = listen_tcp("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stop = asyncio.Event()
    app = create_app(model, options)
    task = asyncio.create_task(run_server(app, [listener], signals=False, stop=stop, drain_s=5))
    try:
        yield listener.getsockname()[:2], app.state.served
    finally:
        stop.set()
        await task


async def post_raw(address: tuple[str, int], body: dict[str, Any], path: str = PATH) -> socket.socket:
    """A connection that has sent a request and reads nothing yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, address)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    await loop.sock_sendall(connection, head.encode() + b"\r\n\r\n" + data)
    return connection


def is_idle(model: LocalChatModel) -> bool:
    stats = model.engine.stats()
    return not stats.n_rows and not stats.n_waiting and not any(pool.used for pool in stats.pages)


def test_a_client_that_reads_nothing_is_cut_and_disturbs_nobody(model: LocalChatModel) -> None:
    options = ServerOptions(limits=ServerLimits(unread_bytes=16_384))

    async def main() -> None:
        async with listening(model, options) as (address, state):
            slow = await post_raw(address, {**LONG, "n": 2})
            async with httpx.AsyncClient() as client:
                answer = await client.post(f"http://{address[0]}:{address[1]}{PATH}", json=SHORT)
            assert answer.json()["usage"]["completion_tokens"] == 20
            await until(lambda: state.metrics.n_cut == 1 and is_idle(model))
            slow.close()

    asyncio.run(main())


class Gate:
    """A hook that holds every step from position 30 on until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, positions: np.ndarray, logits: np.ndarray) -> None:
        if positions.max() >= 30:
            self.reached.set()
            self.open.wait()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_stops_its_request_and_frees_its_pages(folder: Path, stream: bool) -> None:
    gate = Gate()
    model = with_hook(folder, gate)

    async def main() -> None:
        async with listening(model) as (address, state):
            gone = await post_raw(address, {**LONG, "stream": stream})
            await until(gate.reached.is_set)
            gone.close()
            await until(lambda: state.metrics.n_gone == 1)
            gate.open.set()
            await until(lambda: is_idle(model))
            assert model.engine.stats().steps < 40

    asyncio.run(main())
    close(model)


def test_a_client_that_vanishes_from_the_queue_is_never_computed(folder: Path) -> None:
    gate = Gate()
    one_row = replace(OPTIONS, limits=ControlLimits(max_rows=1, max_waiting=2, chunk_tokens=64))
    model = tiny_chat_model(folder, options=one_row, change=hooked(files_of(folder), gate))

    async def main() -> None:
        async with listening(model) as (address, state):
            running = await post_raw(address, LONG)
            await until(gate.reached.is_set)
            waiting = [await post_raw(address, {**LONG, "prompt": [50 + i] * 90}) for i in range(2)]
            await until(lambda: model.engine.stats().n_waiting == 2)
            async with httpx.AsyncClient() as client:
                full = await client.post(f"http://{address[0]}:{address[1]}{PATH}", json=SHORT)
            assert (full.status_code, full.headers["retry-after"]) == (429, "1")
            computed = model.engine.stats().prefill_tokens
            for connection in (*waiting, running):
                connection.close()
            await until(lambda: state.metrics.n_gone == 3)
            gate.open.set()
            await until(lambda: is_idle(model))
            assert model.engine.stats().prefill_tokens == computed

    asyncio.run(main())
    close(model)


def test_a_send_that_never_ends_is_given_up(model: LocalChatModel) -> None:
    """In process, where no kernel buffers anything: the first byte is never taken."""
    options = ServerOptions(limits=ServerLimits(unread_bytes=2000))
    app = create_app(model, options)
    body = json.dumps(LONG).encode()
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])
    aborted: list[bool] = []

    async def receive() -> Any:
        try:
            return next(requests)
        except StopIteration:
            await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def main() -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b""}
        extensions = {"pointcode.abort": lambda: aborted.append(True)}
        await app({**scope, "extensions": extensions, "http_version": "1.1"}, receive, send)
        await until(lambda: is_idle(model))

    asyncio.run(main())
    assert aborted == [True]

"""What the server's tests share: an app over a tiny model, asked in process or through a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pointcode_local.engine.assembly import assemble
from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.http.state import ServerOptions
from pointcode_local.engine.model_files import open_model
from pointcode_local.engine.parts import EngineOptions, EngineParts
from pointcode_local.engine.server import create_app, run_server
from pointcode_local.engine.sockets import listen_tcp

from ..tiny_models import Family, make_tiny

OPTIONS = EngineOptions(backend="cpu", n_threads=1, kv_bytes=24 << 20, limits=ControlLimits(chunk_tokens=64))
HELLO: Any = [{"role": "user", "content": "Hello there"}]
READ: Any = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a file",
        "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
    },
}


def tiny_chat_model(
    folder: Path,
    family: Family = "qwen2",
    options: EngineOptions = OPTIONS,
    change: Callable[[EngineParts], EngineParts] = lambda parts: parts,
    **overrides: Any,
) -> LocalChatModel:
    """A chat model over a tiny random checkpoint, made in `folder` unless it is there."""
    path = folder / family
    files = open_model(path if path.exists() else make_tiny(family, path, **overrides))
    return LocalChatModel(Engine(change(assemble(files, "tiny", options))), files)


def close(model: LocalChatModel) -> None:
    """Closes the model; its page books must balance."""
    asyncio.run(model.aclose())
    model.engine.check()
    assert all(pool.used == 0 for pool in model.engine.stats().pages)


@contextmanager
def tiny(folder: Path, *arguments: Any, **options: Any) -> Generator[LocalChatModel]:
    """`tiny_chat_model`, closed with balanced books at the end."""
    model = tiny_chat_model(folder, *arguments, **options)
    try:
        yield model
    finally:
        close(model)


class Asked:
    """An app asked in process: `post` and `get` give (status, JSON); `stream` gives the events' data."""

    def __init__(self, model: LocalChatModel, options: ServerOptions | None = None, host: str = "localhost") -> None:
        self.app = create_app(model, options)
        self._host = host

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=f"http://{self._host}")

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def main() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(main())

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        answer = self.request("POST", path, json=body)
        return answer.status_code, answer.json()

    def stream(self, path: str, **body: Any) -> list[Any]:
        answer = self.request("POST", path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)


def events_of(text: str) -> list[Any]:
    """The data of server-sent events, "[DONE]" as it is."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass
class Running:
    """A server on a real socket in a thread of its own."""

    url: str
    app: Any
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop


@contextmanager
def running(model: LocalChatModel, options: ServerOptions | None = None, send_buffer: int = 0) -> Generator[Running]:
    """Serves over TCP until the block ends; clients may be blocking ones."""
    listener = listen_tcp("127.0.0.1", 0)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    app = create_app(model, options)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        serving = asyncio.create_task(run_server(app, [listener], signals=False, stop=stop, drain_s=5))
        ready.set()
        await serving

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", app, thread, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def serving(model: LocalChatModel, options: ServerOptions | None = None) -> AsyncGenerator[str]:
    """Serves over TCP in the running loop."""
    listener = listen_tcp("127.0.0.1", 0)
    stop = asyncio.Event()
    task = asyncio.create_task(run_server(create_app(model, options), [listener], signals=False, stop=stop, drain_s=5))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        await task

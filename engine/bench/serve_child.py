"""A server for `bench serve` in a process of its own: ours, or llama.cpp's over the same file.

Prints the base URL on a line of its own when it answers, and ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any


async def _ours(model: str, n_threads: int | None) -> None:
    from ..chat_model import open_chat_model
    from ..parts import EngineOptions
    from ..server import create_app, run_server
    from ..sockets import listen_tcp

    chat = await asyncio.to_thread(open_chat_model, model, EngineOptions(n_threads=n_threads))
    listener, stop = listen_tcp("127.0.0.1", 0), asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    _say(f"http://127.0.0.1:{listener.getsockname()[1]}")
    await run_server(create_app(chat), [listener], stop=stop)
    await chat.aclose()


def _llamacpp(model: Path, n_threads: int, n_slots: int, context_tokens: int) -> None:
    peer: Any = importlib.import_module("xllamacpp")
    params = peer.CommonParams()
    params.model.path = str(model)
    params.n_ctx = context_tokens * n_slots
    params.n_parallel = n_slots
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.verbosity = -1
    server = peer.Server(params)
    _say(server.listening_address)
    sys.stdin.read()


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """The command line that `bench serve` uses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("ours", "llamacpp"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    if options.kind == "ours":
        asyncio.run(_ours(options.model, options.threads))
    else:
        _llamacpp(Path(options.model), options.threads, options.slots, options.context)


if __name__ == "__main__":
    main()

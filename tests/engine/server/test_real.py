"""The server with SmolLM2-135M: forced calls, a cached prefix, many clients.

POINTCODE_REAL_CALLS says how many forced calls are made (default 40; 200 for a thorough run), and with it how many
requests each client sends (a quarter).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pointcode_local.engine.chat_model import LocalChatModel, open_chat_model
from pointcode_local.engine.parts import EngineOptions
from pointcode_local.engine.server import create_app

from ..engines import until
from .kit import events_of
from .test_traps import client_runs, essence

pytestmark = pytest.mark.real_model
MODEL = "smollm2-135m"
CHAT = "/v1/chat/completions"
WORD = {"type": "string", "maxLength": 24}
N_CALLS = int(os.environ.get("POINTCODE_REAL_CALLS", "40"))
N_CLIENTS, N_REQUESTS = 16, N_CALLS // 4


def tool(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


# Closed, as every schema that is to end: an open object may grow until the tokens are used up.
ROOM = {"type": "object", "properties": {"room": WORD}, "required": ["room"], "additionalProperties": False}
TOOLS = [
    tool("weather", "The weather of a city", {"city": WORD, "unit": {"enum": ["celsius", "fahrenheit"]}}),
    tool("add", "Adds two numbers", {"a": {"type": "integer"}, "b": {"type": "integer"}}),
    tool("tag", "Tags a file", {"path": WORD, "tags": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 3}}),
    tool("switch", "Switches", {"on": {"type": "boolean"}, "where": ROOM}),
]


def is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 24


FITS: dict[str, Callable[[Any], bool]] = {
    "weather": lambda a: a.keys() == {"city", "unit"} and is_word(a["city"]) and a["unit"] in ("celsius", "fahrenheit"),
    "add": lambda a: a.keys() == {"a", "b"} and all(type(v) is int for v in a.values()),
    "tag": lambda a: a.keys() == {"path", "tags"} and 1 <= len(a["tags"]) <= 3 and all(map(is_word, a["tags"])),
    "switch": lambda a: a.keys() == {"on", "where"} and type(a["on"]) is bool and is_word(a["where"]["room"]),
}


@pytest.fixture(scope="module")
def model() -> Iterator[LocalChatModel]:
    opened = open_chat_model(MODEL, EngineOptions(n_threads=1))
    yield opened
    asyncio.run(opened.aclose())
    opened.engine.check()


@asynccontextmanager
async def asked(model: LocalChatModel) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(model))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
        yield client


@pytest.mark.timeout(900)
def test_forced_calls_fit_their_schemas(model: LocalChatModel) -> None:
    async def one(client: httpx.AsyncClient, seed: int) -> None:
        name = TOOLS[seed % 4]["function"]["name"]
        choice: Any = "required" if seed % 2 else {"type": "function", "function": {"name": name}}
        body = {
            "messages": [
                {"role": "user", "content": f"Call a tool for case {seed}: Paris, 12 and 30, notes.txt, kitchen."}
            ],
            "tools": TOOLS,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": 800,
            "stream": True,
        }
        chunks = events_of((await client.post(CHAT, json=body)).text)
        pieces = [p for c in chunks[:-1] for p in c["choices"][0]["delta"].get("tool_calls", [])]
        called = pieces[0]["function"]["name"]
        assert called == name or choice == "required"
        assert len(pieces) > 2, "the arguments are streamed"
        written = "".join(p["function"]["arguments"] for p in pieces)
        assert FITS[called](json.loads(written)), written
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"

    async def main() -> None:
        async with asked(model) as client:
            for begin in range(0, N_CALLS, 8):
                await asyncio.gather(*(one(client, seed) for seed in range(begin, begin + 8)))

    asyncio.run(main())


@pytest.mark.timeout(600)
def test_a_cached_prefix_makes_the_first_token_ten_times_faster_also_after_a_restart(tmp_path: Path) -> None:
    system = "You are a careful assistant who answers in one word. " * 140  # about 1,500 tokens

    async def first_token(client: httpx.AsyncClient, question: str) -> tuple[float, int]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": 2, "temperature": 0}
        began_s = time.perf_counter()
        usage = (await client.post(CHAT, json=body)).json()["usage"]
        assert usage["prompt_tokens"] > 1500
        return time.perf_counter() - began_s, usage["prompt_tokens_details"]["cached_tokens"]

    async def ask(*questions: str) -> list[tuple[float, int]]:
        model = open_chat_model(MODEL, EngineOptions(n_threads=1, cache_dir=tmp_path))
        async with asked(model) as client:
            taken = [await first_token(client, question) for question in questions]
        await model.aclose()
        return taken

    (cold_s, n_cold), (warm_s, n_warm) = asyncio.run(ask("Is the sky blue?", "Is the grass green?"))
    ((disk_s, n_disk),) = asyncio.run(ask("Is snow white?"))
    print(f"first answer: cold {cold_s:.2f} s, cached {warm_s:.3f} s, from disk after a restart {disk_s:.3f} s")
    assert n_cold == 0
    assert min(n_warm, n_disk) >= 1472
    assert warm_s * 10 <= cold_s


def mixed_requests() -> list[tuple[str, dict[str, Any]]]:
    def chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
        messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]
        return CHAT, {"messages": messages, "temperature": 0, "max_tokens": 10, **more}

    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["left", "right"]}}}
    return [
        chat("What is the capital of France?"),
        chat("Count to five."),
        chat("Which way?", response_format=schema),
        chat("Write a haiku about the sea.", temperature=0.8, seed=4),
        chat("Name a colour.", stop=["e"]),
        ("/v1/completions", {"prompt": "The quick brown fox", "max_tokens": 8, "temperature": 0}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}),
        ("/v1/responses", {"input": "Say yes.", "max_output_tokens": 8, "temperature": 0}),
    ]


@pytest.mark.timeout(900)
def test_sixteen_clients_with_many_requests_get_what_each_gets_alone(model: LocalChatModel) -> None:
    async def main() -> None:
        wanted = mixed_requests()
        async with asked(model) as client:
            alone = [essence(path, (await client.post(path, json=body)).json()) for path, body in wanted]
            runs = (client_runs(client, random.Random(seed), wanted, alone, N_REQUESTS) for seed in range(N_CLIENTS))
            assert sum(await asyncio.gather(*runs)) > N_CLIENTS * N_REQUESTS // 2
        assert model.engine.stats().n_restarts == 0
        # The control thread takes the last pages back after the answers have ended.
        await until(lambda: all(pool.used == 0 for pool in model.engine.stats().pages))

    asyncio.run(main())

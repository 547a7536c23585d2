"""Traps that other servers fell into, asked over HTTP on tiny random models."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.server import create_app

from .kit import HELLO, READ, Asked, tiny

CHAT = "/v1/chat/completions"
LIST = {"type": "function", "function": {"name": "list", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def cohere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalChatModel]:
    """A model that thinks before it answers, with a sliding window of 7 tokens."""
    with tiny(tmp_path_factory.mktemp("traps"), "cohere2_moe") as made:
        yield made


def bias(model: LocalChatModel, value: float, *markers: str) -> dict[str, float]:
    return {str(model.files.tokenizer.markers[text]): value for text in markers}


def test_two_prompts_in_turn_do_not_mix_in_the_sliding_window(tmp_path: Path) -> None:
    prompts = {name: name * 150 for name in "AB"}

    def answer(asked: Asked, name: str) -> Any:
        _, body = asked.post("/v1/completions", prompt=prompts[name], max_tokens=30, ignore_eos=True, logprobs=1)
        return body["choices"][0]

    alone = {}
    for name in "AB":
        with tiny(tmp_path, "cohere2_moe") as fresh:
            alone[name] = answer(Asked(fresh), name)
    with tiny(tmp_path, "cohere2_moe") as shared:
        asked = Asked(shared)
        for name in "AABBABBA":
            assert answer(asked, name)["text"] == alone[name]["text"]


def test_thinking_that_the_limit_cuts_is_never_shown_as_content(cohere: LocalChatModel) -> None:
    asked = Asked(cohere)
    never = bias(cohere, -100, *cohere.files.tokenizer.markers)
    _, body = asked.post(CHAT, messages=HELLO, max_tokens=20, temperature=1, seed=1, logit_bias=never)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20
    _, message = asked.post("/v1/messages", messages=HELLO, max_tokens=20, temperature=1, seed=1, logit_bias=never)
    assert [block["type"] for block in message["content"]] == ["thinking"]
    assert message["stop_reason"] == "max_tokens"


def test_thinking_ends_at_its_budget_and_a_forced_call_follows(cohere: LocalChatModel) -> None:
    """The budget closes the thought with a marker that the grammar waits for: it must hold from there on."""
    asked = Asked(cohere)
    stops = tuple(t for t, i in cohere.files.tokenizer.markers.items() if i in cohere.files.stop_ids)
    never = bias(cohere, -100, "<|END_THINKING|>", "<|START_THINKING|>", *stops)
    wanted = {"messages": HELLO, "temperature": 1, "seed": 1, "logit_bias": never, "max_tokens": 300}
    for budget, thought in (({"type": "disabled"}, 0), ({"type": "enabled", "budget_tokens": 9}, 9)):
        tools = [{"name": "read", "input_schema": READ["function"]["parameters"]}]
        choice = {"type": "any", "disable_parallel_tool_use": True}
        status, body = asked.post("/v1/messages", **wanted, thinking=budget, tools=tools, tool_choice=choice)
        assert status == 200
        *before, use = body["content"]
        assert use["input"] in ({"n": 1}, {"n": 2})
        assert body["stop_reason"] == "tool_use"
        assert [block["type"] for block in before] == (["thinking"] if thought else [])
    status, body = asked.post(CHAT, **wanted, reasoning_effort="none")
    assert "reasoning_content" not in body["choices"][0]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_without_arguments_has_an_empty_object_for_them(asked: Asked, stream: bool) -> None:
    wanted = {"messages": HELLO, "tools": [LIST], "tool_choice": "required", "parallel_tool_calls": False}
    wanted |= {"max_tokens": 300, "temperature": 1, "seed": 3}
    if stream:
        deltas = [c["choices"][0]["delta"] for c in asked.stream(CHAT, **wanted)[:-1]]
        written = "".join(p["function"]["arguments"] for d in deltas for p in d.get("tool_calls", []))
    else:
        call = asked.post(CHAT, **wanted)[1]["choices"][0]["message"]["tool_calls"][0]
        written = call["function"]["arguments"]
    assert json.loads(written) == {}


def test_seeds_may_be_negative_and_very_large(asked: Asked) -> None:
    texts = {}
    for seed in (-1, -(2**62), 2**62, 7):
        wanted = {"prompt": "x", "max_tokens": 20, "temperature": 1, "ignore_eos": True, "seed": seed}
        first, second = (asked.post("/v1/completions", **wanted)[1]["choices"][0]["text"] for _ in range(2))
        assert first == second
        texts[seed] = first
    assert len(set(texts.values())) == 4


def test_tools_that_are_switched_off_are_not_called(asked: Asked, model: LocalChatModel) -> None:
    wanted = {"messages": HELLO, "tools": [READ], "tool_choice": "none", "max_tokens": 20}
    _, body = asked.post(CHAT, **wanted, logit_bias=bias(model, 60, "<tool_call>"))
    assert "tool_calls" not in body["choices"][0]["message"]


# ----------------------------------------------------------------------------------------------- many clients
def mixed_requests(model: LocalChatModel) -> list[tuple[str, dict[str, Any]]]:
    """Twelve requests of every kind, each with one answer."""
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["left", "right"]}}}
    shared = {"role": "system", "content": "a system prompt that many requests share " * 4}

    def chat(text: str, **more: Any) -> tuple[str, dict[str, Any]]:
        messages = [shared, {"role": "user", "content": text}]
        return CHAT, {"messages": messages, "temperature": 0, "max_tokens": 24, **more}

    texts = [("/v1/completions", {"prompt": "ab" * n, "max_tokens": 30, "ignore_eos": True}) for n in (1, 40, 90)]
    seeded = {"temperature": 1.0, "seed": 5}
    return [
        *texts,
        chat("one"),
        chat("two", max_tokens=60),
        chat("three", **seeded),
        chat("four", response_format=schema),
        chat("five", tools=[READ], tool_choice="required", parallel_tool_calls=False, max_tokens=200, **seeded),
        chat("six", stop=["e", "a"], **seeded),
        chat("seven", logprobs=True, top_logprobs=2),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 20, "temperature": 0}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 20, "temperature": 0}),
    ]


def essence(path: str, body: dict[str, Any]) -> Any:
    """What must be the same each time."""
    if path == "/v1/messages":
        return [(block["type"], block.get("text"), block.get("input")) for block in body["content"]]
    if path == "/v1/responses":
        return [(item["type"], item.get("arguments"), item.get("content")) for item in body["output"]]
    choice = body["choices"][0]
    message = choice.get("message", {})
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return choice.get("text"), message.get("content"), calls, choice["finish_reason"]


async def client_runs(
    client: httpx.AsyncClient, dice: random.Random, wanted: list[tuple[str, dict[str, Any]]], alone: list[Any], n: int
) -> int:
    """Asks `n` times, and leaves in the middle now and then; returns how many answers were compared."""
    n_compared = 0
    for _ in range(n):
        index = dice.randrange(len(wanted))
        path, body = wanted[index]
        if dice.random() < 0.3:
            task = asyncio.ensure_future(client.post(path, json={**body, "stream": dice.random() < 0.5}))
            for _ in range(dice.randrange(60)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            continue
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert essence(path, answer.json()) == alone[index]
        n_compared += 1
    return n_compared


def test_sixteen_clients_with_random_cancels_get_what_each_gets_alone(model: LocalChatModel) -> None:
    async def main() -> None:
        transport = httpx.ASGITransport(create_app(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            wanted = mixed_requests(model)
            alone = [essence(path, (await client.post(path, json=body)).json()) for path, body in wanted]
            runs = (client_runs(client, random.Random(seed), wanted, alone, 12) for seed in range(16))
            assert sum(await asyncio.gather(*runs)) > 100

    asyncio.run(main())
    assert model.engine.stats().n_restarts == 0

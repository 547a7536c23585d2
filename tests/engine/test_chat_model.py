"""The in-process chat model on a tiny random checkpoint; logit biases make it say what a test needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from pointcode_local.engine.chat import ChatTemplate
from pointcode_local.engine.chat_model import LocalChatModel, open_chat_model, recommended_sampling
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.errors import ContextOverflow, RequestError
from pointcode_local.engine.parts import EngineOptions
from pointcode_local.engine.types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    ChatRequest,
    Message,
    PrefillProgress,
    ReasoningText,
    Request,
    SamplingParams,
    StreamFinished,
    TokenEvent,
    TokensDecoded,
    ToolCallReady,
    ToolSpec,
)

from .tiny_models import Family, make_tiny

OPTIONS = EngineOptions(n_threads=1, kv_bytes=24 << 20)
HELLO = (Message("system", "You are terse."), Message("user", "Hello there"))
TOOLS = (
    ToolSpec("read", "Reads a file", {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}),
    ToolSpec("list", "Lists", {"type": "object", "properties": {}}),
)


@pytest.fixture(scope="module", params=["qwen2", "cohere2_moe"])
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalChatModel]:
    family: Family = request.param
    model = open_chat_model(make_tiny(family, tmp_path_factory.mktemp("tiny") / family), OPTIONS)
    yield model
    asyncio.run(model.aclose())
    model.engine.check()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalChatModel]:
    opened = open_chat_model(make_tiny("qwen2", tmp_path_factory.mktemp("tiny") / "qwen2"), OPTIONS)
    yield opened
    asyncio.run(opened.aclose())
    opened.engine.check()


async def deltas_of(model: LocalChatModel, request: ChatRequest) -> list[ChatDelta]:
    async with aclosing(model.stream(request)) as deltas:
        return [delta async for delta in deltas]


def ask(model: LocalChatModel, request: ChatRequest) -> list[ChatDelta]:
    return asyncio.run(deltas_of(model, request))


def answer_of(deltas: list[ChatDelta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, AnswerText))


def end_of(deltas: list[ChatDelta]) -> ChatFinished:
    assert isinstance(deltas[-1], ChatFinished)
    assert sum(isinstance(delta, ChatFinished) for delta in deltas) == 1
    return deltas[-1]


def biased(model: LocalChatModel, *texts: str, value: float = 60.0) -> SamplingParams:
    return SamplingParams(logit_bias={model.files.tokenizer.markers[text]: value for text in texts})


def test_a_reply_ends_with_usage_and_its_reason(any_model: LocalChatModel) -> None:
    deltas = ask(any_model, ChatRequest(HELLO, max_tokens=10, sampling=SamplingParams()))
    end = end_of(deltas)
    assert isinstance(deltas[0], PrefillProgress)
    assert end.reason in ("length", "stop")
    assert end.usage.prompt_tokens == any_model.count_tokens(HELLO)
    assert end.usage.completion_tokens <= 10
    assert end.usage.time_to_first_token_s > 0


def test_the_next_prompt_begins_with_the_whole_earlier_prompt_and_answer(model: LocalChatModel) -> None:
    """Every odd token the model wrote is kept as it was written, although the text would be tokenised otherwise."""
    stop = max(model.files.stop_ids)
    wanted = ChatRequest(
        HELLO, max_tokens=200, sampling=SamplingParams(temperature=1.0, seed=5, logit_bias={stop: 3.0})
    )
    deltas = ask(model, wanted)
    assert end_of(deltas).reason == "stop"
    n_before = end_of(deltas).usage.prompt_tokens + end_of(deltas).usage.completion_tokens
    reply = Message("assistant", answer_of(deltas))
    again = ask(model, ChatRequest((*HELLO, reply, Message("user", "more")), max_tokens=1, sampling=SamplingParams()))
    assert end_of(again).usage.cached_tokens == n_before


def test_a_stop_string_over_token_borders_is_never_shown(model: LocalChatModel) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11)
    whole = answer_of(ask(model, ChatRequest(HELLO, max_tokens=60, sampling=sampling)))
    for begin in range(5, len(whole) - 8, 7):
        stop = whole[begin : begin + 6]
        deltas = ask(model, ChatRequest(HELLO, max_tokens=60, sampling=sampling, stop=(stop, "never seen")))
        assert answer_of(deltas) == whole[: whole.index(stop)]
        assert end_of(deltas).reason == "stop"


def test_a_required_call_names_an_offered_tool_and_fits_its_schema(any_model: LocalChatModel) -> None:
    sampling = SamplingParams(temperature=1.0, seed=1)
    if any_model.files.config.family == "cohere2_moe":  # the prompt ends inside a thought: close it at once
        sampling = replace(biased(any_model, "<|END_THINKING|>", value=30.0), temperature=1.0, seed=1)
    deltas = ask(any_model, ChatRequest(HELLO, TOOLS, 300, sampling, "required", parallel_tool_calls=False))
    calls = [delta.call for delta in deltas if isinstance(delta, ToolCallReady)]
    assert end_of(deltas).reason == "tool_calls"
    assert len(calls) == 1
    assert calls[0].name in ("read", "list")
    assert json.loads(calls[0].arguments) in ({"n": 1}, {"n": 2}, {})


def test_a_named_tool_is_the_only_one_and_an_unknown_one_is_refused(model: LocalChatModel) -> None:
    sampling = SamplingParams(temperature=1.0, seed=2)
    deltas = ask(model, ChatRequest(HELLO, TOOLS, 300, sampling, "list"))
    assert {delta.call.name for delta in deltas if isinstance(delta, ToolCallReady)} == {"list"}
    with pytest.raises(RequestError, match="no such tool"):
        ask(model, ChatRequest(HELLO, TOOLS, 300, sampling, "write"))


def test_no_call_begins_when_tools_are_switched_off(model: LocalChatModel) -> None:
    deltas = ask(model, ChatRequest(HELLO, TOOLS, 20, biased(model, "<tool_call>"), "none"))
    assert not any(isinstance(delta, ToolCallReady) for delta in deltas)
    assert "<tool_call>" not in answer_of(deltas)


def test_a_call_that_begins_freely_is_held_to_its_schema(model: LocalChatModel) -> None:
    sampling = replace(biased(model, "<tool_call>"), temperature=1.0, seed=4)
    deltas = ask(model, ChatRequest(HELLO, TOOLS, 120, sampling, "auto"))
    calls = [delta.call for delta in deltas if isinstance(delta, ToolCallReady)]
    assert calls
    assert all(call.name in ("read", "list") for call in calls)
    assert end_of(deltas).reason == "length"


def test_an_answer_is_held_to_a_response_schema(any_model: LocalChatModel) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    sampling = SamplingParams(temperature=1.0, seed=1)
    if any_model.files.config.family == "cohere2_moe":
        sampling = replace(biased(any_model, "<|END_THINKING|>", value=30.0), temperature=1.0, seed=1)
    deltas = ask(any_model, ChatRequest(HELLO, (), 200, sampling, response_schema=schema))
    assert json.loads(answer_of(deltas))["ok"] in (True, False)
    assert end_of(deltas).reason == "stop"


class OneLump:
    """The engine as a late reader sees it: all tokens of a stream arrive in one event."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def stream(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        ids: list[int] = []
        async with aclosing(self._engine.stream(request)) as events:
            async for event in events:
                if isinstance(event, TokensDecoded):
                    ids += event.ids
                    continue
                if isinstance(event, StreamFinished):
                    yield TokensDecoded(tuple(ids))
                yield event


@pytest.mark.parametrize(("budget", "late_reader"), [(12, False), (12, True), (0, False)])
def test_a_thought_that_never_closes_is_closed_when_its_budget_is_spent(
    any_model: LocalChatModel, budget: int, late_reader: bool
) -> None:
    if any_model.files.config.family != "cohere2_moe":
        pytest.skip("only this family begins inside a thought")
    engine = cast("Engine", OneLump(any_model.engine)) if late_reader else any_model.engine
    thrifty = LocalChatModel(engine, any_model.files, reasoning_budget=budget)
    markers = any_model.files.tokenizer.markers
    # Neither may random weights end the turn at once, nor begin another thought.
    unwanted = {*any_model.files.stop_ids, markers["<|END_THINKING|>"], markers["<|START_THINKING|>"]}
    never = SamplingParams(logit_bias=dict.fromkeys(unwanted, -60.0))
    deltas = ask(thrifty, ChatRequest(HELLO, (), 40, never))
    kinds = [type(delta) for delta in deltas if isinstance(delta, AnswerText | ReasoningText)]
    assert kinds and kinds[-1] is AnswerText
    assert kinds == sorted(kinds, key=lambda kind: kind is AnswerText)
    end = end_of(deltas)
    assert end.reason in ("length", "stop")
    assert end.usage.prompt_tokens == any_model.count_tokens(HELLO)
    assert budget < end.usage.completion_tokens <= 40
    assert end.usage.cached_tokens <= end.usage.prompt_tokens


def test_an_answer_outside_of_a_thought_is_not_cut_by_the_budget(
    any_model: LocalChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = any_model.files
    if files.config.family != "cohere2_moe":
        pytest.skip("only this family has thoughts")
    requests: list[Request] = []
    stream = any_model.engine.stream
    monkeypatch.setattr(any_model.engine, "stream", lambda request: (requests.append(request), stream(request))[1])
    silent = ChatTemplate(files.template.source, files.tokenizer, {"reasoning": False})
    model = LocalChatModel(any_model.engine, replace(files, template=silent), reasoning_budget=0)
    never = SamplingParams(logit_bias=dict.fromkeys(files.stop_ids, -60.0))
    assert answer_of(ask(model, ChatRequest(HELLO, (), 20, never))) and len(requests) == 1


def test_a_conversation_longer_than_the_context_is_refused_with_its_numbers(model: LocalChatModel) -> None:
    with pytest.raises(ContextOverflow) as caught:
        ask(model, ChatRequest((Message("user", "word " * 5000),), max_tokens=5))
    assert caught.value.prompt_tokens > caught.value.context_tokens == model.context_tokens


def test_more_tools_than_the_context_holds_are_refused_before_their_schemas_are_looked_at(
    model: LocalChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(tools: object) -> NoReturn:
        raise AssertionError(tools)

    monkeypatch.setattr(model, "_schemas", SimpleNamespace(know=never, held=never))
    many = tuple(replace(TOOLS[0], name=f"tool{n}") for n in range(600))
    with pytest.raises(ContextOverflow, match=f"the context holds {model.context_tokens} with the answer"):
        ask(model, ChatRequest(HELLO, many, max_tokens=5))


def test_the_authors_sampling_is_used_for_large_models_only(any_model: LocalChatModel) -> None:
    assert recommended_sampling(any_model.files) == SamplingParams()


def test_a_reply_begins_with_its_prefix_which_is_read_and_not_written(any_model: LocalChatModel) -> None:
    plain = ChatRequest(HELLO, max_tokens=6, sampling=SamplingParams())
    led = replace(plain, reply_prefix="Hello there\n", stop=("there",))
    if any_model.files.tokenizer.markers.get("<|START_THINKING|>") is not None:
        return  # a model that thinks first is not led
    deltas = ask(any_model, led)
    n_given = len(any_model.files.tokenizer.encode("Hello there\n"))
    assert answer_of(deltas).startswith("Hello there\n")
    assert end_of(deltas).usage.prompt_tokens == any_model.count_tokens(HELLO) + n_given
    assert end_of(deltas).usage.completion_tokens <= 6


def test_a_reply_keeps_to_its_pattern(model: LocalChatModel) -> None:
    request = ChatRequest(
        HELLO, max_tokens=40, sampling=SamplingParams(), reply_prefix="n = ", reply_pattern="(1|2)[ab]"
    )
    deltas = ask(model, request)
    assert answer_of(deltas) in {"n = 1a", "n = 1b", "n = 2a", "n = 2b"}
    assert end_of(deltas).reason == "stop"

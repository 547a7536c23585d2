"""The model behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.chunks import ChunkReader, ThinkSplitter
from pointcode_local.endpoint import DEFAULT_CONTEXT_TOKENS, EndpointModel, Retries, api_base
from pointcode_local.engine.errors import BackendError, CapacityError, ContextOverflow, RequestError
from pointcode_local.engine.types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    ChatRequest,
    Message,
    ReasoningText,
    SamplingParams,
    ToolCall,
    ToolCallBegun,
    ToolCallReady,
    ToolSpec,
)
from tests.app.openai_server import Reply, ScriptedServer, Step, tool
from tests.fakes import FakeClock

READ = ToolSpec("read", "Reads.", {"type": "object", "properties": {"path": {"type": "string"}}})
ASK = ChatRequest((Message("system", "s"), Message("user", "u")), (READ,))


def ask(*steps: Step, request: ChatRequest = ASK, clock: FakeClock | None = None, **options: Any) -> Any:
    """The deltas of one request to a scripted server, and the server."""

    async def run(server: ScriptedServer) -> list[ChatDelta]:
        sleep = (clock or FakeClock()).sleep
        model = EndpointModel(server.url, retries=Retries(sleep=sleep), **options)
        await model.open()
        try:
            return [delta async for delta in model.stream(request)]
        finally:
            await model.aclose()

    with ScriptedServer(list(steps)) as server:
        return asyncio.run(run(server)), server


def text_of(deltas: Sequence[ChatDelta]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, AnswerText))


def test_text_reasoning_and_usage_are_read():
    deltas, server = ask(Reply("Line\u2028one\x85ü 漢", reasoning="hm, so"))
    assert text_of(deltas) == "Line\u2028one\x85ü 漢"
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningText)) == "hm, so"
    end = deltas[-1]
    assert isinstance(end, ChatFinished) and end.reason == "stop"
    assert (end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.completion_tokens) == (50, 7, 5)
    assert server.requests[0]["model"] == "scripted"
    assert server.requests[0]["tools"][0]["function"]["name"] == "read"


def test_calls_are_ready_as_soon_as_the_next_one_begins():
    deltas, _ = ask(Reply(calls=(("read", '{"path": "a"}'), ("read", '{"path": "b"}'))))
    order = [(type(d).__name__, d.index) for d in deltas if isinstance(d, ToolCallBegun | ToolCallReady)]
    assert order == [("ToolCallBegun", 0), ("ToolCallReady", 0), ("ToolCallBegun", 1), ("ToolCallReady", 1)]
    assert [d.call.arguments for d in deltas if isinstance(d, ToolCallReady)] == ['{"path": "a"}', '{"path": "b"}']


def test_a_call_cut_at_the_limit_is_never_ready():
    deltas, _ = ask(Reply(calls=(("read", '{"path": "a'),), finish="length"))
    assert not [d for d in deltas if isinstance(d, ToolCallReady)]
    assert isinstance(deltas[-1], ChatFinished) and deltas[-1].reason == "length"


@pytest.mark.parametrize(
    "chunks",
    [
        [{"tool_calls": [{"id": "x", "function": {"name": "read", "arguments": '{"path": "a"}'}}]}],
        [{"tool_calls": [{"id": "x", "function": {"name": "read", "arguments": {"path": "a"}}}]}],
        [
            {"tool_calls": [{"id": "x", "function": {"name": "read"}}]},
            {"tool_calls": [{"function": {"arguments": '{"path": "a"}'}}]},
        ],
    ],
)
def test_calls_in_the_shapes_of_other_servers_are_read(chunks: list[dict[str, Any]]):
    sent = [{"choices": [{"delta": delta}]} for delta in chunks]
    deltas, _ = ask(Reply(chunks=tuple(sent)))
    (ready,) = [d for d in deltas if isinstance(d, ToolCallReady)]
    assert ready.call.name == "read" and json.loads(ready.call.arguments) == {"path": "a"}


@given(st.lists(st.integers(1, 9), max_size=12), st.sampled_from(["a<b</thi", "", "why\n"]), st.text(max_size=12))
def test_thinking_in_tags_is_split_off_however_the_text_is_cut(sizes: list[int], thought: str, answer: str):
    answer = "." + answer.replace("<", "").replace(">", "")
    whole, at = f"\n<think>{thought}</think>\n\n{answer}", 0
    splitter, deltas = ThinkSplitter(), []
    for size in [*sizes, len(whole)]:
        deltas += splitter.take(whole[at : at + size])
        at += size
    deltas += splitter.end()
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningText)) == thought
    assert text_of(deltas) == answer


@given(st.text(max_size=30))
def test_text_without_tags_comes_through_whole(text: str):
    splitter = ThinkSplitter()
    deltas = [d for c in text for d in splitter.take(c)] + list(splitter.end())
    assert text_of(deltas) == text or text.lstrip().startswith("<think>")


def test_a_busy_server_is_asked_again_with_growing_pauses():
    clock = FakeClock()
    deltas, server = ask(Reply("busy", status=503), Reply("slow", status=429, headers=(("Retry-After", "7"),)),
                         Reply("ok"), clock=clock)  # fmt: skip
    assert text_of(deltas) == "ok"
    assert clock.slept == [0.5, 7.0]
    assert len(server.requests) == 3


def test_a_server_that_stays_busy_is_a_capacity_error():
    with pytest.raises(CapacityError, match="overloaded"):
        ask(*[Reply("overloaded", status=503)] * 20)


def test_a_refused_connection_is_a_capacity_error():
    clock = FakeClock()

    async def run() -> None:
        model = EndpointModel("http://127.0.0.1:9", retries=Retries(n_tries=3, sleep=clock.sleep))
        await model.open()
        async for _ in model.stream(ASK):
            pass

    with pytest.raises(CapacityError, match="cannot reach"):
        asyncio.run(run())
    assert clock.slept == [0.5, 1.0]


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply("no such model", status=404), RequestError, "no such model"),
        (Reply("bad key", status=401), RequestError, "POINTCODE_API_KEY"),
        (Reply("half", breaks=True), BackendError, "before the reply was complete"),
        (Reply(chunks=({"error": {"message": "out of memory"}},)), BackendError, "out of memory"),
    ],
)
def test_other_failures_have_their_own_errors(reply: Reply, kind: type[Exception], words: str):
    with pytest.raises(kind, match=words):
        ask(reply)


def test_an_overflow_carries_both_numbers():
    message = "This model's maximum context length is 8192 tokens, but the messages have 9,001 tokens."
    with pytest.raises(ContextOverflow) as caught:
        ask(Reply(message, status=400))
    assert (caught.value.context_tokens, caught.value.prompt_tokens) == (8192, 9001)


def test_closing_the_iterator_closes_the_connection():
    hold = threading.Event()

    async def run(server: ScriptedServer) -> None:
        model = EndpointModel(server.url)
        stream = model.stream(ASK)
        async for delta in stream:
            if isinstance(delta, AnswerText):
                break
        await stream.aclose()  # type: ignore[reportAttributeAccessIssue]
        await model.aclose()

    with ScriptedServer([Reply("some words", hold=hold)]) as server:
        asyncio.run(run(server))
        assert server.gone.wait(10)
        hold.set()


def test_history_is_sent_as_servers_want_it():
    bad = (ToolCall("c1", "read", '{"path": "a\n"}'), ToolCall("c2", "read", '{"path'), ToolCall("c3", "read", "{}"))
    messages = (
        Message("system", "s"),
        Message("user", "lone \ud800 surrogate"),
        Message("assistant", "text", "thought", bad),
        *(Message("tool", "r", tool_call_id=c.id, name="read") for c in bad),
    )
    request = ChatRequest(
        messages, (READ,), 99, SamplingParams(temperature=0.5, seed=3), tool_choice="none", stop=("X",)
    )
    _, server = ask(Reply("ok"), request=request)
    body = server.requests[0]
    sent = body["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "tool", "tool"]
    assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in sent[2]["tool_calls"])
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"path": "a\n"}
    assert sent[3]["tool_call_id"] == "c1"
    assert (body["max_tokens"], body["temperature"], body["seed"], body["stop"]) == (99, 0.5, 3, ["X"])
    assert body["tool_choice"] == "none"


def test_the_context_length_and_the_key_are_used():
    async def run(server: ScriptedServer) -> EndpointModel:
        model = EndpointModel(server.url, api_key="key-1")
        await model.open()
        async for _ in model.stream(ASK):
            pass
        await model.aclose()
        return model

    with ScriptedServer([Reply("ok")], context=8192, model="scripted-1b") as server:
        model = asyncio.run(run(server))
    assert (model.context_tokens, model.name, model.is_small) == (8192, "scripted-1b", True)
    assert server.headers[0]["authorization"] == "Bearer key-1"
    assert EndpointModel("http://127.0.0.1:9").context_tokens == DEFAULT_CONTEXT_TOKENS


def test_the_token_estimate_learns_from_the_server():
    async def run(server: ScriptedServer) -> tuple[int, int]:
        model = EndpointModel(server.url)
        before = model.count_tokens(ASK.messages, ASK.tools)
        async for _ in model.stream(ASK):
            pass
        await model.aclose()
        return before, model.count_tokens(ASK.messages, ASK.tools)

    with ScriptedServer([Reply("ok")]) as server:
        before, after = asyncio.run(run(server))
    assert after == 50 != before


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://host:8000", "http://host:8000/v1/"),
        ("http://host:8000/v1/", "http://host:8000/v1/"),
        ("host:8000", "http://host:8000/v1/"),
        ("https://host/api/v2", "https://host/api/v2/"),
        ("http://host/v1/chat/completions", "http://host/v1/"),
    ],
)
def test_the_api_root_is_found(url: str, want: str):
    assert api_base(url) == want


def test_models_are_small_by_the_size_in_their_name():
    def is_small(name: str) -> bool:
        return EndpointModel("http://x", model=name).is_small

    assert is_small("qwen2.5-coder-0.5b") and is_small("SmolLM2-135M-Instruct")
    assert not is_small("Qwen3-30B-A3B") and not is_small("gpt-x") and not is_small("llama-3.1-8b")
    assert is_small("some-2.9b") and not is_small("some-3b")


def test_a_stream_without_a_reason_is_complete_when_the_server_says_so():
    reader = ChunkReader(0.0)
    list(reader.take({"choices": [{"delta": {"content": "x"}}]}))
    reader.note_done()
    assert isinstance(list(reader.end())[-1], ChatFinished)


def test_tool_replies_can_be_scripted():
    deltas, _ = ask(tool("read", path="a"))
    assert [d.call.name for d in deltas if isinstance(d, ToolCallReady)] == ["read"]


@pytest.mark.parametrize(
    "chunk",
    [
        *({"choices": 5}, {"choices": [5]}, {"choices": [{"delta": 5}]}, {"choices": [{"delta": {"content": 5}}]}),
        *({"choices": [{"delta": {"tool_calls": 5}}]}, {"choices": [{"delta": {"tool_calls": [5]}}]}),
        *({"usage": 5}, {"usage": {"prompt_tokens": "x", "prompt_tokens_details": 7}}),
    ],
)
def test_a_chunk_of_wrong_types_says_nothing_and_breaks_nothing(chunk: dict[str, Any]):
    end = {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]}
    deltas, _ = ask(Reply(chunks=(chunk, end)))
    assert text_of(deltas) == "Yes."


@pytest.mark.parametrize(
    "call", [{"function": 5}, {"index": [1]}, {"index": -9, "id": 5, "function": {"arguments": 7}}]
)
def test_a_call_of_wrong_types_is_a_call_of_an_unknown_tool(call: dict[str, Any]):
    deltas, _ = ask(Reply(chunks=({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]},)))
    (ready,) = [delta for delta in deltas if isinstance(delta, ToolCallReady)]
    assert (ready.call.name, ready.call.arguments) == ("", "")


def test_a_reply_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pointcode_local.endpoint.MAX_REPLY_BYTES", 2000)
    with pytest.raises(BackendError, match="does not end"):
        ask(Reply("x" * 5000))


def test_numbers_that_python_cannot_hold_in_a_servers_complaint_break_nothing():
    with pytest.raises(ContextOverflow):
        ask(Reply("the context length is 8192 tokens, not " + "9" * 5000, status=400))


def test_an_endpoint_that_is_no_url_is_refused():
    with pytest.raises(RequestError, match="no URL"):
        api_base("http://[::")


@pytest.mark.parametrize("beats", [": still here", 'data: {"choices": [{"index": 0, "delta": {"content": ""}}]}'])
def test_a_server_that_only_keeps_the_connection_alive_is_given_up(beats: str):
    async def keep_alive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(beats.encode() + b"\n\n")
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(keep_alive, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            model = EndpointModel(f"http://127.0.0.1:{port}", stall_timeout_s=0.2)
            with pytest.raises(BackendError, match="stall_timeout_s"):
                _ = [delta async for delta in model.stream(ASK)]
            await model.aclose()

    asyncio.run(main())


def test_a_server_that_does_not_answer_at_all_is_given_up_once():
    hold, n_asked = threading.Event(), 0

    def never(request: dict[str, Any]) -> Reply:
        nonlocal n_asked
        n_asked += 1
        hold.wait(60)
        return Reply("too late")

    with pytest.raises(BackendError, match="stall_timeout_s"):
        try:
            ask(never, stall_timeout_s=0.2)
        finally:
            hold.set()
    assert n_asked == 1


LED = ChatRequest(
    (Message("user", "u"),), sampling=SamplingParams(temperature=0.7), reply_prefix="a.py:\n", reply_pattern="[a-z]+"
)


def test_our_own_server_is_led_by_prefix_and_pattern_and_told_every_sampling_parameter():
    async def run(server: ScriptedServer) -> EndpointModel:
        model = EndpointModel(server.url, model="alias")
        await model.open()
        _ = [delta async for delta in model.stream(LED)]
        await model.aclose()
        return model

    about = {"root": "qwen2.5-coder-0.5b", "is_small": True, "takes_prefix": True}
    with ScriptedServer([], model="alias", about=about) as server:
        model = asyncio.run(run(server))
    assert (model.name, model.identity, model.takes_prefix) == ("alias", "qwen2.5-coder-0.5b", True)
    (sent,) = server.requests
    assert (sent["reply_prefix"], sent["reply_pattern"]) == ("a.py:\n", "[a-z]+")
    assert (sent["temperature"], sent["top_p"], sent["repetition_penalty"]) == (0.7, 1.0, 1.0)
    with ScriptedServer([]) as other:
        assert not asyncio.run(run(other)).takes_prefix
    assert not {"reply_prefix", "reply_pattern", "top_p"} & other.requests[0].keys()


def test_the_first_token_is_the_first_that_the_model_wrote(monkeypatch: pytest.MonkeyPatch):
    """What a reply was given to begin with comes before the prompt is read."""
    now_s = 10.0
    monkeypatch.setattr("pointcode_local.chunks.time.monotonic", lambda: now_s)
    reader = ChunkReader(started_s=now_s)
    _ = [*reader.take({"choices": [{"delta": {"content": "a.py:"}}]})]
    now_s = 12.0
    reader.note_prefill()
    now_s = 13.0
    _ = [*reader.take({"choices": [{"delta": {"content": "x"}}]})]
    now_s = 15.0
    _ = [*reader.take({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})]
    assert (reader.usage.time_to_first_token_s, reader.usage.tokens_per_second) == (3.0, 2.0)

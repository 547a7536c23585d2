"""What servers answer beside replies: refusals, overflows, being busy, and what they want back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from pointcode_local.endpoint import EndpointModel, Retries
from pointcode_local.endpoint_errors import error_of
from pointcode_local.engine.errors import BackendError, CapacityError, ContextOverflow, EngineError, RequestError
from pointcode_local.engine.types import ChatDelta, ChatRequest, Message, ToolCall, ToolCallReady, ToolSpec
from tests.app.openai_server import Reply, ScriptedServer, Step
from tests.fakes import FakeClock

READ = ToolSpec("read", "Reads.", {"type": "object", "properties": {"path": {"type": "string"}}})
ASK = ChatRequest((Message("system", "s"), Message("user", "u")), (READ,))
BUSY = Reply(chunks=({"error": {"code": 429, "message": "Rate limit exceeded"}},))
CUT = {"choices": [{"index": 0, "delta": {"content": "Half an ans"}, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("message", "context", "prompt"),
    [
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens (8800 in "
         "the messages, 200 in the functions).", 8192, 8800),
        ("This model's maximum context length is 4097 tokens. However, you requested 4608 tokens (4096 in the "
         "messages, 512 in the completion).", 4097, 4096),
        ("'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 "
         "tokens and your request has 6000 input tokens (4096 > 8192 - 6000).", 8192, 6000),
        ("The decoder prompt (length 9000) is longer than the maximum model length of 8192.", 8192, 9000),
        ("request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it", 8192, 9000),
        ("the request exceeds the available context size (8192 tokens)", 8192, 0),
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192, 9000),
        ("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of "
         "9000 tokens: 8000 tokens from the input messages and 1000 tokens for the completion.", 8192, 8000),
        ("prompt is too long: 201034 tokens > 200000 maximum", 200_000, 201_034),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 `max_new_tokens`",
         4096, 5000),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1_048_576,
         1_200_000),
        ("the prompt has at least 9000 tokens, but the context holds 8192 with the answer", 8192, 9000),
    ],
)  # fmt: skip
def test_context_and_prompt_are_read_out_of_the_complaints_of_servers(message: str, context: int, prompt: int):
    error = error_of(400, json.dumps({"error": {"message": message}}))
    assert isinstance(error, ContextOverflow)
    assert (error.context_tokens, error.prompt_tokens) == (context, prompt)


def test_numbers_that_stand_in_fields_of_their_own_are_taken():
    body = {"error": {"message": "the context size is exceeded", "n_prompt_tokens": 9000, "n_ctx": 8192}}
    error = error_of(400, json.dumps(body))
    assert isinstance(error, ContextOverflow) and (error.context_tokens, error.prompt_tokens) == (8192, 9000)


def test_a_number_of_tokens_that_cannot_be_is_not_taken():
    body = {"error": {"message": "the context size is exceeded", "n_prompt_tokens": 10**400, "n_ctx": 8192}}
    error = error_of(400, json.dumps(body))
    assert isinstance(error, ContextOverflow) and (error.context_tokens, error.prompt_tokens) == (8192, 0)


def play(
    *steps: Step, requests: Sequence[ChatRequest] = (ASK,), about: dict[str, Any] | None = None
) -> tuple[list[list[ChatDelta] | EngineError], ScriptedServer, FakeClock]:
    """What each request brought, the server, and the clock that every pause moved."""
    clock = FakeClock()

    async def run(server: ScriptedServer) -> list[list[ChatDelta] | EngineError]:
        model = EndpointModel(server.url, retries=Retries(n_tries=3, sleep=clock.sleep))
        await model.open()
        got: list[list[ChatDelta] | EngineError] = []
        for request in requests:
            try:
                got.append([delta async for delta in model.stream(request)])
            except EngineError as error:
                got.append(error)
        await model.aclose()
        return got

    with ScriptedServer(list(steps), about=about or {}) as server:
        return asyncio.run(run(server)), server, clock


def test_a_server_that_says_in_the_stream_that_it_is_busy_is_asked_again_after_a_pause():
    (deltas,), server, clock = play(BUSY, BUSY, Reply("ok"))
    assert isinstance(deltas, list) and len(server.requests) == 3
    assert clock.slept == [0.5, 1.0]
    (error,), server, _ = play(*[BUSY] * 5)
    assert isinstance(error, CapacityError) and len(server.requests) == 3


def test_after_a_stream_that_broke_in_the_middle_the_server_gets_time():
    half = Reply(chunks=(CUT, {"error": {"message": "overloaded_error"}}))
    got, _, clock = play(half, half, Reply("ok"), Reply("ok"), requests=[ASK] * 4)
    assert [isinstance(one, BackendError) for one in got] == [True, True, False, False]
    assert clock.slept == [0.5, 1.0]


def test_a_tool_name_that_no_server_takes_does_not_make_the_rest_of_the_session_impossible():
    wrong = ("functions.read file", "", "läs", "x" * 200)
    calls = tuple(ToolCall(f"c{i}", name, "{}") for i, name in enumerate(wrong))
    results = (Message("tool", "Error: unknown tool", tool_call_id=call.id, name=call.name) for call in calls)
    request = ChatRequest((*ASK.messages, Message("assistant", "", "", calls), *results), (READ,))
    _, server, _ = play(Reply("ok"), requests=[request])
    names = [call["function"]["name"] for call in server.requests[0]["messages"][2]["tool_calls"]]
    assert names[:2] == ["functions_read_file", "unknown"]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)


THOUGHT = ChatRequest((*ASK.messages, Message("assistant", "Yes.", "hm"), Message("user", "And?")), (READ,))


def sent_back(server: ScriptedServer, n: int) -> dict[str, Any]:
    return server.requests[n]["messages"][2]


def test_thoughts_go_back_to_our_own_server_and_to_those_that_sent_them():
    """The server's prompt would else differ from what the model has read and written: all after it is read again."""
    _, server, _ = play(Reply("ok"), requests=[THOUGHT], about={"takes_prefix": False})
    assert sent_back(server, 0) == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    _, server, _ = play(Reply("ok", reasoning="so"), Reply("ok"), requests=[THOUGHT, THOUGHT])
    assert "reasoning_content" not in sent_back(server, 0) and sent_back(server, 1)["reasoning_content"] == "hm"
    _, server, _ = play(Reply("ok"), Reply("ok"), requests=[THOUGHT, THOUGHT])
    assert "reasoning_content" not in sent_back(server, 1)


def test_thoughts_are_kept_from_a_server_that_does_not_want_them_back():
    refusal = Reply("messages[2].reasoning_content: unknown field", status=400)
    got, server, _ = play(
        Reply("ok", reasoning="so"), refusal, Reply("ok", reasoning="so"), Reply("ok"), requests=[THOUGHT] * 3
    )
    assert not any(isinstance(one, EngineError) for one in got) and len(server.requests) == 4
    assert "reasoning_content" not in sent_back(server, 2) and "reasoning_content" not in sent_back(server, 3)


def test_other_refusals_are_not_tried_again():
    (error,), server, _ = play(Reply("bad temperature", status=400), requests=[THOUGHT], about={"takes_prefix": True})
    assert isinstance(error, RequestError) and len(server.requests) == 1


def test_an_answer_that_is_no_stream_is_read_all_the_same():
    call = {"id": "x", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Here.", "tool_calls": [call]}
    whole = Reply(body={"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    failed = Reply(body={"error": {"message": "the model has crashed"}})
    (deltas, error), _, _ = play(whole, failed, requests=[ASK, ASK])
    assert isinstance(deltas, list)
    assert [type(delta).__name__ for delta in deltas][-2:] == ["ToolCallReady", "ChatFinished"]
    assert isinstance(error, BackendError) and "the model has crashed" in str(error)


def test_calls_that_a_server_writes_side_by_side_are_ready_when_they_are_whole():
    def piece(index: int, written: str, name: str = "") -> dict[str, Any]:
        head = {"id": f"c{index}", "type": "function"} if name else {}
        call = {"index": index, **head, "function": {"name": name, "arguments": written}}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}

    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    chunks = (piece(0, '{"path": ', "read"), piece(1, '{"path": "b"}', "read"), piece(0, '"a"}'), end)
    (deltas,), _, _ = play(Reply(chunks=chunks))
    assert isinstance(deltas, list)
    ready = [delta.call.arguments for delta in deltas if isinstance(delta, ToolCallReady)]
    assert ready == ['{"path": "a"}', '{"path": "b"}']


def raw(answer: bytes) -> list[ChatDelta] | EngineError:
    """What one request brings from a server that answers every one with these bytes and closes."""
    clock = FakeClock()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"(?i)content-length: (\d+)", head):
            await reader.readexactly(int(length[1]))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> list[ChatDelta] | EngineError:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            model = EndpointModel(f"http://127.0.0.1:{port}", retries=Retries(n_tries=2, sleep=clock.sleep))
            try:
                return [delta async for delta in model.stream(ASK)]
            except EngineError as error:
                return error
            finally:
                await model.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"HTTP/1.1 500 X\r\nContent-Length: 500\r\n\r\nhalf", CapacityError, "half"),
        (b"HTTP/1.1 400 X\r\nContent-Length: 500\r\n\r\nhalf", RequestError, "half"),
        (b"HTTP/1.1 400 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", RequestError, "HTTP 400"),
        (b"HTTP/1.1 400 X\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nhalf", RequestError, "HTTP 400"),
        (b"HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nhalf", BackendError, "broke"),
        (b"HTTP/1.1 200 X\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", RequestError, "web page"),
        (b"SSH-2.0-OpenSSH\r\n", CapacityError, "cannot reach"),
        (b"", CapacityError, "cannot reach"),
    ],
)
def test_whatever_comes_instead_of_an_answer_is_an_error_of_the_engine(
    answer: bytes, kind: type[EngineError], words: str
):
    error = raw(answer)
    assert type(error) is kind and words in str(error)


def test_a_byte_order_mark_hides_no_line():
    chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    lines = f"\ufeffdata: {json.dumps(chunk)}\r\n\r\ndata: [DONE]\r\n\r\n"
    got = raw(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n" + lines.encode())
    assert isinstance(got, list) and [type(delta).__name__ for delta in got] == ["AnswerText", "ChatFinished"]


def test_a_limit_of_rate_is_known_by_its_code_too():
    limited = Reply(chunks=({"error": {"code": "rate_limit_exceeded", "message": "wait"}},))
    (deltas,), server, _ = play(limited, Reply("ok"))
    assert isinstance(deltas, list) and len(server.requests) == 2

"""/v1/messages and /v1/messages/count_tokens: Anthropic's messages, whole or streamed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..chat import parse_arguments
from ..types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    PrefillProgress,
    ReasoningText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
    Usage,
)
from .answers import JsonAnswer
from .body import Body
from .chat import raise_failure
from .errors import anthropic_body
from .handler import first_of, of_stream, read_request
from .messages_request import read_conversation, read_message_request
from .sse import EventStream, event, unless_gone
from .state import priority_of, served

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def messages(request: Request) -> Response:
    """Answers POST /v1/messages."""
    state = served(request)
    priority = priority_of(request)
    chat, stream = await read_request(request, lambda body: read_message_request(body, state, priority))
    deltas, reply = state.reply(chat), _Reply(state.model.name)
    if not stream:
        return JsonAnswer(await unless_gone(request.receive, _whole(deltas, reply)))
    first = await first_of(request, deltas)
    return EventStream(_events(first, deltas, reply), deltas, state, _failed)


async def count_tokens(request: Request) -> Response:
    """Answers POST /v1/messages/count_tokens."""
    state = served(request)

    def counted(body: Body) -> int:
        talk = read_conversation(body, state)
        body.finish()
        return state.model.count_tokens(talk.messages, talk.tools)

    return JsonAnswer({"input_tokens": await read_request(request, counted)})


class _Reply:
    """A message as far as it came. One block is open at a time."""

    def __init__(self, model: str) -> None:
        self._message: dict[str, Any] = {
            "id": "msg_" + uuid.uuid4().hex,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage()),
        }
        self._is_open = False
        self._is_started = False
        self._arguments = ""

    @property
    def message(self) -> dict[str, Any]:
        """The message object."""
        return self._message

    def add(self, delta: ChatDelta) -> Iterator[dict[str, Any]]:
        """The events of a delta; raises ApiError for a reply that failed."""
        if not self._is_started:
            yield from self._start(delta)
        match delta:
            case ReasoningText(text):
                yield from self._text("thinking", "thinking", text)
            case AnswerText(text):
                yield from self._text("text", "text", text)
            case ToolCallBegun(_, call_id, name):
                yield from self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                self._arguments = ""
            case ToolCallArguments(_, text):
                self._arguments += text
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallReady(_, call):
                self._arguments = call.arguments
                yield from self._close()
            case ChatFinished():
                raise_failure(delta)
                yield from self._finish(delta)
            case PrefillProgress():
                pass

    def _start(self, delta: ChatDelta) -> Iterator[dict[str, Any]]:
        self._is_started = True
        if isinstance(delta, PrefillProgress):
            self._message["usage"] = _usage(Usage(delta.total_tokens, delta.cached_tokens))
        yield {"type": "message_start", "message": {**self._message, "content": []}}

    def _text(self, kind: str, member: str, text: str) -> Iterator[dict[str, Any]]:
        if not self._is_open or self._block["type"] != kind:
            begun = {"type": kind, member: ""}
            yield from self._open({**begun, "signature": ""} if kind == "thinking" else begun)
        self._block[member] += text
        yield self._delta({"type": f"{kind}_delta", member: text})

    @property
    def _block(self) -> dict[str, Any]:
        return self._message["content"][-1]

    def _open(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._message["content"].append(block)
        self._is_open = True
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _close(self) -> Iterator[dict[str, Any]]:
        if not self._is_open:
            return
        self._is_open = False
        if self._block["type"] == "tool_use":
            self._block["input"] = parse_arguments(self._arguments)
        yield {"type": "content_block_stop", "index": self._index}

    @property
    def _index(self) -> int:
        return len(self._message["content"]) - 1

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _finish(self, end: ChatFinished) -> Iterator[dict[str, Any]]:
        yield from self._close()
        reason = "stop_sequence" if end.stop_sequence is not None else _REASONS[end.reason]
        stopped = {"stop_reason": reason, "stop_sequence": end.stop_sequence}
        self._message |= {**stopped, "usage": _usage(end.usage)}
        yield {"type": "message_delta", "delta": stopped, "usage": self._message["usage"]}
        yield {"type": "message_stop"}


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic's input tokens are those that did not come from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


async def _whole(deltas: AsyncGenerator[ChatDelta, None], reply: _Reply) -> dict[str, Any]:
    async with aclosing(deltas) as source:
        async for delta in source:
            for _ in reply.add(delta):
                pass
    return reply.message


def _failed(error: Exception) -> bytes:
    return event(anthropic_body(of_stream(error)), "error")


async def _events(
    first: ChatDelta, rest: AsyncGenerator[ChatDelta, None], reply: _Reply
) -> AsyncGenerator[bytes, None]:
    item: ChatDelta | None = first
    while item is not None:
        for value in reply.add(item):
            yield event(value, value["type"])
        if isinstance(item, PrefillProgress):
            yield event({"type": "ping"}, "ping")
        item = await anext(rest, None)

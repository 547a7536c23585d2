"""/v1/chat/completions: OpenAI's chat completions, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    PrefillProgress,
    ReasoningText,
    TokenLogprob,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
)
from .answers import JsonAnswer, completion_head
from .chat_request import ChatCall, read_chat
from .choices import Choice, merged
from .errors import ApiError
from .handler import first_of, openai_failed, read_request
from .sse import EventStream, event, unless_gone
from .state import Served, priority_of, served


async def chat_completions(request: Request) -> Response:
    """Answers POST /v1/chat/completions."""
    state = served(request)
    call = await read_request(request, lambda body: read_chat(body, state, priority_of(request)))
    replies = merged([state.reply(call.of_choice(i)) for i in range(call.n)])
    if not call.stream:
        return JsonAnswer(await unless_gone(request.receive, _whole(replies, call, state)))
    first = await first_of(request, replies)
    return EventStream(_chunks(first, replies, call, state), replies, state, openai_failed)


# ----------------------------------------------------------------------------------------------- whole
@dataclass(slots=True)
class _Answer:
    """One choice as far as it came."""

    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    end: ChatFinished | None = None

    def add(self, delta: ChatDelta) -> None:
        match delta:
            case AnswerText(text, logprobs):
                self.text.append(text)
                self.logprobs += logprobs
            case ReasoningText(text):
                self.reasoning.append(text)
            case ToolCallBegun(_, call_id, name):
                self.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case ToolCallArguments(index, text):
                self.calls[index]["function"]["arguments"] += text
            case ToolCallReady(index, call):
                self.calls[index]["function"]["arguments"] = call.arguments
            case ChatFinished():
                self.end = delta
            case PrefillProgress():
                pass


async def _whole(replies: AsyncGenerator[Choice, None], call: ChatCall, state: Served) -> dict[str, Any]:
    answers = [_Answer() for _ in range(call.n)]
    async with aclosing(replies) as choices:
        async for index, delta in choices:
            answers[index].add(delta)
    ends = [answer.end for answer in answers if answer.end is not None]
    for end in ends:
        raise_failure(end)
    choices = [_choice(i, answer, call) for i, answer in enumerate(answers)]
    return {**completion_head(state, "chatcmpl-", "chat.completion"), "choices": choices, "usage": usage_of(ends)}


def _choice(index: int, answer: _Answer, call: ChatCall) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.text), "refusal": None}
    if answer.calls:
        message |= {"content": message["content"] or None, "tool_calls": answer.calls}
    if answer.reasoning:
        message["reasoning_content"] = "".join(answer.reasoning)
    logprobs = _shown_logprobs(answer.logprobs, call)
    reason = answer.end.reason if answer.end is not None else "stop"
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def raise_failure(end: ChatFinished) -> None:
    """Raises ApiError 500 for a reply that ended with an error of the engine."""
    if end.reason in ("error", "cancelled"):
        raise failure(end)


def failure(end: ChatFinished) -> ApiError:
    """What a reply that ended with an error is answered with."""
    return ApiError(500, end.error or "the reply was cancelled", code="generation_failed")


def usage_of(ends: Sequence[ChatFinished]) -> dict[str, Any]:
    """One usage of all choices: their prompt is the same."""
    prompt = max((end.usage.prompt_tokens for end in ends), default=0)
    completion = sum(end.usage.completion_tokens for end in ends)
    cached = max((end.usage.cached_tokens for end in ends), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(end.reasoning_tokens for end in ends)},
    }


def _shown_logprobs(entries: Sequence[TokenLogprob], call: ChatCall) -> dict[str, Any] | None:
    return {"content": logprob_entries(entries, call.top_logprobs), "refusal": None} if call.logprobs else None


def logprob_entries(entries: Sequence[TokenLogprob], n_top: int) -> list[dict[str, Any]]:
    """The entries in OpenAI's shape, each with its `n_top` likeliest rivals."""
    return [
        {**_token(e.token, e.logprob), "top_logprobs": [_token(t, value) for t, value in e.top[:n_top]]}
        for e in entries
    ]


def _token(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}


# ----------------------------------------------------------------------------------------------- streamed
async def _chunks(
    first: Choice, rest: AsyncGenerator[Choice, None], call: ChatCall, state: Served
) -> AsyncGenerator[bytes, None]:
    head = completion_head(state, "chatcmpl-", "chat.completion.chunk")
    ends: list[ChatFinished] = []
    for index in range(call.n):
        yield _chunk(head, index, {"role": "assistant", "content": ""}, call)
    async for index, delta in _with(first, rest):
        if isinstance(delta, ChatFinished):
            raise_failure(delta)
            ends.append(delta)
        for chunk in _of_delta(delta, head, index, call):
            yield chunk
    if call.include_usage:
        yield event({**head, "choices": [], "usage": usage_of(ends)})
    yield b"data: [DONE]\n\n"


async def _with(first: Choice, rest: AsyncGenerator[Choice, None]) -> AsyncGenerator[Choice, None]:
    yield first
    async for item in rest:
        yield item


def _chunk(
    head: dict[str, Any],
    index: int,
    delta: dict[str, Any],
    call: ChatCall,
    *,
    finish: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    usage = {"usage": None} if call.include_usage else {}
    return event({**head, "choices": [choice], **usage})


def _of_delta(delta: ChatDelta, head: dict[str, Any], index: int, call: ChatCall) -> Iterator[bytes]:
    match delta:
        case AnswerText(text, logprobs):
            yield _chunk(head, index, {"content": text}, call, logprobs=_shown_logprobs(logprobs, call))
        case ReasoningText(text):
            yield _chunk(head, index, {"reasoning_content": text}, call)
        case ToolCallBegun(i, call_id, name):
            function = {"name": name, "arguments": ""}
            begun = {"index": i, "id": call_id, "type": "function", "function": function}
            yield _chunk(head, index, {"tool_calls": [begun]}, call)
        case ToolCallArguments(i, text):
            yield _chunk(head, index, {"tool_calls": [{"index": i, "function": {"arguments": text}}]}, call)
        case ChatFinished(reason):
            yield _chunk(head, index, {}, call, finish=reason)
        case PrefillProgress(done, total, cached):
            yield b": prefill %d/%d %d\n\n" % (done, total, cached)
        case ToolCallReady():
            pass

"""/v1/completions: OpenAI's text completions over one or several prompts, texts or token ids."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..types import AnswerText, ChatDelta, ChatFinished, PrefillProgress, Request, TokenLogprob
from .answers import JsonAnswer, completion_head
from .body import Body, token_ids
from .chat import raise_failure, usage_of
from .chat_request import accept_bookkeeping, read_stream
from .choices import Choice, merged
from .errors import invalid
from .handler import first_of, openai_failed, read_request
from .sampling import MAX_LOGPROBS, read_sampling, reseeded
from .sse import EventStream, event, unless_gone
from .state import Served, priority_of, served
from .text import complete, prompt_text

_DEFAULT_TOKENS = 16  # as OpenAI's
_MAX_STOPS = 16
_MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Call:
    """A parsed request: one engine request per prompt and choice, prompt by prompt."""

    requests: tuple[Request, ...]
    echoes: tuple[str, ...]
    stop: tuple[str, ...]
    n: int
    n_logprobs: int | None
    stream: bool
    include_usage: bool


async def completions(request: HttpRequest) -> Response:
    """Answers POST /v1/completions."""
    state = served(request)
    call = await read_request(request, lambda body: _read(body, state, priority_of(request)))
    n_top = call.n_logprobs or 0
    replies = merged([state.counted(complete(state.model, r, call.stop, n_top)) for r in call.requests])
    if not call.stream:
        return JsonAnswer(await unless_gone(request.receive, _whole(replies, call, state)))
    first = await first_of(request, replies)
    return EventStream(_chunks(first, replies, call, state), replies, state, openai_failed)


def _read(body: Body, state: Served, priority: int) -> _Call:
    state.checked_model(body.text("model"))
    prompts = _prompts(body, state)
    n = _n_choices(body, len(prompts), state)
    n_logprobs = body.integer("logprobs", 0, MAX_LOGPROBS)
    echo = body.flag("echo")
    if echo and n_logprobs is not None:
        raise invalid("echo", "not together with logprobs: those of the prompt are not computed")
    n_asked = 0 if n_logprobs is None else max(1, n_logprobs)
    sampling = read_sampling(body, state.model.default_sampling, state.model.engine.vocab, n_asked)
    max_tokens = body.integer("max_tokens", 1, _MAX_TOKENS) or _DEFAULT_TOKENS
    stop_ids = frozenset[int]() if body.flag("ignore_eos") else state.model.files.stop_ids
    stop = body.texts("stop", _MAX_STOPS)
    stream, include_usage = read_stream(body)
    accept_bookkeeping(body)
    body.finish()
    requests = [
        Request(ids, max_tokens, reseeded(sampling, i), stop_ids, priority=priority)
        for ids in prompts
        for i in range(n)
    ]
    texts = [prompt_text(state.model.files.tokenizer, ids)[0] if echo else "" for ids in prompts for _ in range(n)]
    return _Call(tuple(requests), tuple(texts), stop, n, n_logprobs, stream, include_usage)


def _n_choices(body: Body, n_prompts: int, state: Served) -> int:
    limits = state.options.limits
    n = body.integer("n", 1, limits.n_choices) or 1
    if n_prompts * n > limits.n_prompts:
        raise invalid("prompt", f"at most {limits.n_prompts} completions at once")
    best_of = body.integer("best_of", 1)
    if best_of is not None and best_of != n:
        raise invalid("best_of", "only the value of n")
    return n


def _prompts(body: Body, state: Served) -> list[tuple[int, ...]]:
    value: Any = body.take("prompt")
    body.refuse("suffix", "is not supported")
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise invalid("prompt", "must be a text, a list of texts, token ids, or a list of lists of token ids")
    items = cast("list[Any]", value)
    if all(isinstance(item, int) for item in items):
        items = [items]
    return [_ids(item, state) for item in items]


def _ids(item: Any, state: Served) -> tuple[int, ...]:
    if isinstance(item, str):
        state.model.check_length(len(item))
        ids = tuple(state.model.files.tokenizer.encode(item))
    elif isinstance(item, list):
        ids = token_ids(cast("list[Any]", item), state.model.engine.vocab, "prompt")
    else:
        raise invalid("prompt", "must be a text, a list of texts, token ids, or a list of lists of token ids")
    if not ids:
        raise invalid("prompt", "must not be empty")
    return ids


# ----------------------------------------------------------------------------------------------- answers
def _head(state: Served) -> dict[str, Any]:
    return completion_head(state, "cmpl-", "text_completion")


@dataclass(slots=True)
class _Choice:
    """One completion as far as it came. `offset` counts characters, for the logprobs' text_offset."""

    text: list[str] = field(default_factory=list[str])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    end: ChatFinished | None = None
    offset: int = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def add(self, delta: ChatDelta) -> None:
        if isinstance(delta, AnswerText):
            self.text.append(delta.text)
            self.logprobs += delta.logprobs
        elif isinstance(delta, ChatFinished):
            raise_failure(delta)
            self.end = delta

    def shown_logprobs(self, entries: tuple[TokenLogprob, ...] | list[TokenLogprob], n: int | None) -> Any:
        """The legacy shape of the entries, or None when none were asked for."""
        if n is None:
            return None
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self.offset)
            self.offset += len(self._decoder.decode(entry.token))
        top = [{_spelled(token): value for token, value in entry.top[:n]} for entry in entries]
        return {
            "tokens": [_spelled(entry.token) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _spelled(token: bytes) -> str:
    """A token as this shape names it: a piece of a character by its bytes, so that no two have one name."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _usage(ends: list[ChatFinished], n: int) -> dict[str, Any]:
    """Each prompt counts once, however many choices it had."""
    usages = [usage_of(ends[i : i + n]) for i in range(0, len(ends), n)]
    total = {key: sum(usage[key] for usage in usages) for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}


async def _whole(replies: AsyncGenerator[Choice, None], call: _Call, state: Served) -> dict[str, Any]:
    found = [_Choice() for _ in call.requests]
    async with aclosing(replies) as choices:
        async for index, delta in choices:
            found[index].add(delta)
    choices = [
        {
            "index": i,
            "text": call.echoes[i] + "".join(choice.text),
            "logprobs": choice.shown_logprobs(choice.logprobs, call.n_logprobs),
            "finish_reason": choice.end.reason if choice.end else "stop",
        }
        for i, choice in enumerate(found)
    ]
    usage = _usage([choice.end for choice in found if choice.end], call.n)
    return {**_head(state), "choices": choices, "usage": usage}


async def _chunks(
    first: Choice, rest: AsyncGenerator[Choice, None], call: _Call, state: Served
) -> AsyncGenerator[bytes, None]:
    head = _head(state)
    found = [_Choice() for _ in call.requests]
    for i, echo in enumerate(call.echoes):
        if echo:
            yield _chunk(head, i, echo, call)
    item: Choice | None = first
    while item is not None:
        index, delta = item
        found[index].add(delta)
        for chunk in _of_delta(head, index, delta, found[index], call):
            yield chunk
        item = await anext(rest, None)
    if call.include_usage:
        usage = _usage([choice.end for choice in found if choice.end], call.n)
        yield event({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _of_delta(head: dict[str, Any], index: int, delta: ChatDelta, choice: _Choice, call: _Call) -> Iterator[bytes]:
    if isinstance(delta, AnswerText):
        yield _chunk(head, index, delta.text, call, choice.shown_logprobs(delta.logprobs, call.n_logprobs))
    elif isinstance(delta, ChatFinished):
        yield _chunk(head, index, "", call, finish=delta.reason)
    elif isinstance(delta, PrefillProgress):
        yield b": prefill %d/%d %d\n\n" % (delta.done_tokens, delta.total_tokens, delta.cached_tokens)


def _chunk(
    head: dict[str, Any], index: int, text: str, call: _Call, logprobs: Any = None, finish: str | None = None
) -> bytes:
    choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
    return event({**head, "choices": [choice], **({"usage": None} if call.include_usage else {})})

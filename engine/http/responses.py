"""/v1/responses: OpenAI's responses, whole or streamed; the newest are kept in memory to be continued."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..types import ChatDelta, ChatFinished, PrefillProgress
from .answers import JsonAnswer
from .chat import raise_failure
from .errors import ApiError, openai_body
from .handler import first_of, of_stream, read_request
from .responses_items import Items
from .responses_request import ResponseCall, read_response
from .responses_store import StoredResponse
from .sse import EventStream, event, unless_gone
from .state import Served, priority_of, served


async def responses(request: Request) -> Response:
    """Answers POST /v1/responses."""
    state = served(request)
    call = await read_request(request, lambda body: read_response(body, state, priority_of(request)))
    deltas, reply = state.reply(call.chat), _Reply(call, state)
    if not call.stream:
        return JsonAnswer(await unless_gone(request.receive, _whole(deltas, reply)))
    first = await first_of(request, deltas)
    return EventStream(_events(first, deltas, reply), deltas, state, reply.failed)


async def stored(request: Request) -> Response:
    """Answers GET and DELETE /v1/responses/ID."""
    responses, response_id = served(request).responses, request.path_params["id"]
    found = responses.get(response_id)
    if found is None:
        raise ApiError(404, f"the response {response_id!r} is not stored here", code="not_found")
    if request.method == "DELETE":
        responses.drop(response_id)
        return JsonAnswer({"id": response_id, "object": "response", "deleted": True})
    return JsonAnswer(found.response)


class _Reply:
    """A response as far as it came."""

    def __init__(self, call: ResponseCall, state: Served) -> None:
        self._call = call
        self._state = state
        self.items = Items(call.n_logprobs)
        self.end: ChatFinished | None = None
        self._head: dict[str, Any] = {
            "id": "resp_" + uuid.uuid4().hex,
            "object": "response",
            "created_at": int(time.time()),
            "model": state.model.name,
            "error": None,
            "store": call.store,
            **call.echo,
        }
        self._n_events = 0

    def event(self, value: dict[str, Any]) -> bytes:
        """The stream's next event."""
        self._n_events += 1
        return event({**value, "sequence_number": self._n_events - 1}, value["type"])

    def failed(self, error: Exception) -> bytes:
        """The stream's last event when it ends with an error."""
        shown = {**self.shown("failed"), "error": openai_body(of_stream(error))["error"]}
        return self.event({"type": "response.failed", "response": shown})

    def shown(self, status: str) -> dict[str, Any]:
        """The response object."""
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = _usage(self.end) if self.end is not None else None
        return {**self._head, "status": status, "incomplete_details": cut, "output": self.items.output, "usage": usage}

    def add(self, delta: ChatDelta) -> Iterator[dict[str, Any]]:
        """The events of a delta; raises ApiError for a reply that failed."""
        if isinstance(delta, ChatFinished):
            raise_failure(delta)
            self.end = delta
            yield from self.items.close(complete=delta.reason != "length")
        else:
            yield from self.items.add(delta)

    def finish(self) -> dict[str, Any]:
        """The whole response, which is kept when that was asked for."""
        cut = self.end is not None and self.end.reason == "length"
        response = self.shown("incomplete" if cut else "completed")
        if self._call.store:
            conversation = (*self._call.conversation, self.items.message())
            self._state.responses.keep(StoredResponse(response, conversation))
        return response


def _usage(end: ChatFinished) -> dict[str, Any]:
    usage = end.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


async def _whole(deltas: AsyncGenerator[ChatDelta, None], reply: _Reply) -> dict[str, Any]:
    async with aclosing(deltas) as source:
        async for delta in source:
            for _ in reply.add(delta):
                pass
    return reply.finish()


async def _events(
    first: ChatDelta, rest: AsyncGenerator[ChatDelta, None], reply: _Reply
) -> AsyncGenerator[bytes, None]:
    for kind in ("response.created", "response.in_progress"):
        yield reply.event({"type": kind, "response": reply.shown("in_progress")})
    item: ChatDelta | None = first
    while item is not None:
        if isinstance(item, PrefillProgress):
            yield b": prefill %d/%d %d\n\n" % (item.done_tokens, item.total_tokens, item.cached_tokens)
        for value in reply.add(item):
            yield reply.event(value)
        item = await anext(rest, None)
    response = reply.finish()
    yield reply.event({"type": f"response.{response['status']}", "response": response})

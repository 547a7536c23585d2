"""What every route does around its own work: read the body, count, turn errors into answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..errors import EngineError
from .answers import JsonAnswer
from .body import Body, load_object
from .errors import ApiError, of_engine, openai_body
from .gate import error_body
from .sse import ClientGone, event, unless_gone
from .state import served

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_LARGE_BYTES = 32_768  # of a body
_GONE = 499  # nobody reads it; it is what the metrics count


def api(handler: Handler) -> Handler:
    """The handler with errors answered in the shape of its path, counted by route and status."""

    async def answered(request: Request) -> Response:
        state = served(request)
        response = await _answer(handler, request)
        state.metrics.requests[handler.__name__, response.status_code] += 1
        return response

    return answered


async def _answer(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except (ClientGone, ClientDisconnect):
        served(request).metrics.n_gone += 1
        return Response(status_code=_GONE)
    except ApiError as error:
        return refusal(request, error)
    except EngineError as error:
        return refusal(request, of_engine(error))
    except Exception as error:  # noqa: BLE001 - the border: a fault of ours must not end the connection
        _LOG.exception("a request to %s failed", request.url.path)
        return refusal(request, ApiError(500, f"the server failed: {type(error).__name__}", code="internal_error"))


def refusal(request: Request, error: ApiError) -> Response:
    """The answer to a request that failed."""
    return JsonAnswer(error_body(request.url.path)(error), error.status, dict(error.headers))


async def not_found(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the path's shape; the latter says what is allowed."""
    status, more = 404, None
    if isinstance(error, HTTPException):
        status, more = error.status_code, error.headers
    what = "not allowed" if status == 405 else "not known"
    problem = ApiError(status, f"{request.method} {request.url.path}: {what} here", code="unknown_url")
    answer = refusal(request, problem)
    answer.headers.update(more or {})
    served(request).metrics.requests["unknown", status] += 1
    return answer


async def read_request(request: Request, read: Callable[[Body], _T]) -> _T:
    """What `read` makes of the JSON object that was sent.

    A large one is read on another thread: it may hold megabytes of text, and the event loop has streams to deliver.
    """
    data = await _received(request)
    if len(data) <= _LARGE_BYTES:
        return read(Body(load_object(data)))
    return await asyncio.to_thread(lambda: read(Body(load_object(data))))


async def _received(request: Request) -> bytes:
    """The body; a client that does not go on sending it is not waited for."""
    limit_s = served(request).options.limits.receive_timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {limit_s:g} s", code="timeout") from None


def of_stream(error: Exception) -> ApiError:
    """An error that ended a stream whose headers are out already."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return of_engine(error)
    _LOG.error("a stream failed", exc_info=error)
    return ApiError(500, f"the server failed: {type(error).__name__}", code="internal_error")


def openai_failed(error: Exception) -> bytes:
    """The last event of such a stream in OpenAI's form."""
    return event(openai_body(of_stream(error)))


async def first_of(request: Request, items: AsyncGenerator[_T, None]) -> _T:
    """The first item, awaited before any header is sent, so that a request which is refused gets its status code."""
    try:
        return await unless_gone(request.receive, _next(items))
    except BaseException:
        await items.aclose()
        raise


async def _next(items: AsyncGenerator[_T, None]) -> _T:
    return await anext(items)

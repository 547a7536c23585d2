"""Who may ask, and how much: Host header, API key, content type and size, before any route sees the request.

A page in a browser can send requests to 127.0.0.1, also under a name of its own (DNS rebinding). So the Host must be
one of ours, a body must be declared as JSON (which a page cannot do without a preflight, and no preflight is answered),
and no CORS header is ever sent.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, anthropic_body, openai_body
from .state import LOCAL, ServerOptions

_OPEN_ROUTES = frozenset({"/health"})


class Gate:
    """ASGI middleware. Connections through the Unix socket need neither Host nor key: its folder is private."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets the request through or answers with 401, 403, 413 or 415."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        error = self._refusal(scope, headers)
        if error is not None:
            scope["app"].state.served.metrics.requests["gate", error.status] += 1
            await _answer(error, scope["path"], send)
            return
        counted = _counted(receive, self._options.limits.body_bytes)
        await self._app(scope, counted, send)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> ApiError | None:
        if not scope.get("extensions", {}).get(LOCAL):
            refusal = self._bad_host(headers.get("host", "")) or self._bad_key(scope["path"], headers)
            if refusal is not None:
                return refusal
        length = headers.get("content-length", "0")
        limit = self._options.limits.body_bytes
        if not length.isdigit() or int(length) > limit:
            return _too_large(limit)
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            return ApiError(415, f"Content-Type must be application/json, not {kind or 'absent'!r}")
        return None

    def _bad_host(self, host: str) -> ApiError | None:
        allowed = self._options.allowed_hosts
        if allowed is None or host_name(host) in allowed:
            return None
        return ApiError(403, f"this server is not called {host!r}; it may be with --allowed-host", code="bad_host")

    def _bad_key(self, path: str, headers: dict[str, str]) -> ApiError | None:
        wanted = self._options.api_key
        if not wanted or path in _OPEN_ROUTES:
            return None
        bearer = headers.get("authorization", "")
        given = bearer[7:] if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
        # The bytes that came, against those of the key as it was given to this process.
        if hmac.compare_digest(given.encode("latin-1"), wanted.encode("utf-8", "surrogateescape")):
            return None
        return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def host_name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="too_large")


def _counted(receive: Receive, limit: int) -> Receive:
    n_bytes = 0

    async def counted() -> Message:
        nonlocal n_bytes
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if n_bytes > limit:
            raise _too_large(limit)
        return message

    return counted


def error_body(path: str) -> Callable[[ApiError], dict[str, object]]:
    """The error shape that the clients of this path read."""
    return anthropic_body if path.startswith("/v1/messages") else openai_body


async def _answer(error: ApiError, path: str, send: Send) -> None:
    body = json.dumps(error_body(path)(error)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

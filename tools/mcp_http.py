"""An HTTP client for MCP servers whose answers end: one that is too long is given up.

Streams of events have a limit in the package itself, an answer of plain JSON has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from httpx2 import AsyncByteStream, StreamError
from mcp.shared._httpx_utils import create_mcp_http_client

from . import mcp_stdio

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response


def limited_client(headers: Mapping[str, str]) -> AsyncClient:
    """The package's client with these headers and a limit. What is compressed has none and is given up."""
    client = create_mcp_http_client({"accept-encoding": "identity", **headers})
    client.event_hooks = {"response": [_limit]}
    return client


async def _limit(response: Response) -> None:
    is_compressed = response.headers.get("content-encoding", "identity") != "identity"
    if is_compressed or "text/event-stream" not in response.headers.get("content-type", ""):
        assert isinstance(response.stream, AsyncByteStream)
        response.stream = _Limited(response.stream, is_compressed=is_compressed)


class _Limited(AsyncByteStream):
    """What comes of an answer, until it is too long; nothing of one that may unfold to any length."""

    def __init__(self, stream: AsyncByteStream, *, is_compressed: bool) -> None:
        self._stream = stream
        self._is_compressed = is_compressed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_compressed:
            raise StreamError("it is compressed, although that was not asked for")
        n_bytes = 0
        async for piece in self._stream:
            n_bytes += len(piece)
            if n_bytes > mcp_stdio.MAX_MESSAGE_BYTES:
                raise StreamError(f"it has more than {mcp_stdio.MAX_MESSAGE_BYTES / (1 << 20):g} MB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()

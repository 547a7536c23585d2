"""A ChatModel over any OpenAI-compatible server: streamed chat completions with tools and reasoning.

Busy servers (429, 5xx) and refused connections are tried again with growing pauses before CapacityError is raised; a
stream that breaks in the middle, or brings nothing but keep-alives for too long, raises BackendError. Closing the
iterator closes the connection, which cancels the request on the server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pointcode_local.chunks import ChunkReader
from pointcode_local.endpoint_errors import BUSY, BusyError, error_in_stream, error_of
from pointcode_local.endpoint_wire import n_bytes, request_body
from pointcode_local.engine.errors import BackendError, CapacityError, ContextOverflow, RequestError
from pointcode_local.engine.types import ChatDelta, ChatRequest, Message, PrefillProgress, ToolSpec
from pointcode_local.tools.byte_lines import ByteLines

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
DEFAULT_CONTEXT_TOKENS = 32_768  # where the server does not say
DEFAULT_STALL_S = 900.0  # a long prompt on a slow machine takes minutes, and not every server tells of its progress
MAX_COMPLAINT_BYTES = 64 << 10
MAX_REPLY_BYTES = 128 << 20  # of one reply, with all the JSON around its tokens
_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
_PREFILL = re.compile(r": prefill (\d{1,12})/(\d{1,12}) (\d{1,12})$")  # a comment that our own server sends


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a busy server is asked again, and the pauses between: first_s, doubled each time, at most max_s."""

    n_tries: int = 5
    first_s: float = 0.5
    max_s: float = 20.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def after(self, n_failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.max_s, self.first_s * 2 ** (n_failures - 1))

    def pauses(self) -> Iterator[float]:
        """One before each further try."""
        return (self.after(n) for n in range(1, self.n_tries))


class EndpointModel:
    """A model behind `base_url`. `open` finds its name and context length."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str = "",
        api_key: str = "",
        context_tokens: int = 0,
        retries: Retries | None = None,
        stall_timeout_s: float = DEFAULT_STALL_S,
        uds: Path | None = None,
    ) -> None:
        """`stall_timeout_s` bounds the wait for the reply's next piece, whatever else is sent; 0: no bound."""
        from pointcode_local.httpx_alone import httpx

        self.base_url = api_base(base_url)
        self._where = self.base_url if uds is None else "the `pointcode serve` that this program is attached to"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        address = urlsplit(self.base_url)
        local = address.hostname in ("127.0.0.1", "localhost", "::1")
        encrypted = address.scheme != "http"  # else nothing is verified, and a start needs no list of authorities
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=httpx.Timeout(stall_timeout_s or None, connect=10.0),
            trust_env=not local and uds is None,
            verify=encrypted,
            transport=httpx.AsyncHTTPTransport(uds=str(uds), verify=encrypted) if uds else None,
        )
        self._name = model
        self._context_tokens = context_tokens
        self._stall_timeout_s = stall_timeout_s
        self._is_small: bool | None = None  # where the server tells
        self.identity = model  # the model's own name, whatever alias it is asked for by
        self.takes_prefix = False  # whether `reply_prefix` and `reply_pattern` hold: our own server says so
        self.is_known = False  # the server has told its models
        self._is_own = False  # it is one of ours
        self._thoughts_as = ""  # the field in which thoughts go back to the server, so that its prompt keeps them
        self._takes_thoughts = True
        self._n_broken = 0  # streams in a row
        self._retries = retries or Retries()
        self._bytes_per_token = 3.6  # corrected by what the server reports

    @property
    def name(self) -> str:
        """The model's name as the server knows it."""
        return self._name or "default"

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._context_tokens or DEFAULT_CONTEXT_TOKENS

    @property
    def is_small(self) -> bool:
        """As the server tells, or judged by the size in the name, e.g. `qwen2.5-coder-0.5b`."""
        if self._is_small is not None:
            return self._is_small
        sizes = re.findall(r"(?i)(?<![\w.])(\d+(?:\.\d+)?)(b|m)(?![a-z])", self._name)
        return any(float(n) < (3.0 if unit.lower() == "b" else 3000.0) for n, unit in sizes)

    async def open(self) -> None:
        """Ask the server which models it has and how long their context is; servers that do not tell are fine."""
        try:
            response = await self._http.get("models", timeout=10.0)
            found: Any = response.json().get("data") if response.status_code == 200 else None
        except (ValueError, AttributeError, *_http_errors()):
            return
        entries: list[Any] = found if isinstance(found, list) else []
        models: list[dict[str, Any]] = [m for m in entries if isinstance(m, dict)]
        chosen = next((m for m in models if m.get("id") == self._name), None) or (models[0] if models else None)
        if chosen is None:
            return
        self.is_known = True
        if not self._name:
            self._name = str(chosen.get("id", ""))
        small: Any = chosen.get("is_small")
        self._is_small = small if isinstance(small, bool) else None
        self.identity = str(chosen.get("root") or self._name)
        self.takes_prefix = chosen.get("takes_prefix") is True
        self._is_own = isinstance(chosen.get("takes_prefix"), bool)
        self._thoughts_as = "reasoning_content" if self._is_own else ""
        meta: Any = chosen.get("meta")
        told = [chosen.get(key) for key in _CONTEXT_KEYS] + ([meta.get("n_ctx")] if isinstance(meta, dict) else [])
        if not self._context_tokens:
            self._context_tokens = next((n for n in told if isinstance(n, int) and n > 0), 0)

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """An estimate from the request's size, by the ratio that the server's last usage report gave."""
        return math.ceil(n_bytes(messages, tools, self._thoughts_as) / self._bytes_per_token)

    async def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Continue the conversation; raises CapacityError (busy), BackendError (broken), RequestError (refused)."""
        pauses = self._retries.pauses()
        if self._n_broken:  # just now, in the middle: the server gets time to recover
            await self._retries.sleep(self._retries.after(self._n_broken))
        while True:
            has_begun = False
            try:
                async with aclosing(self._reply(request)) as deltas:
                    async for delta in deltas:
                        has_begun = has_begun or not isinstance(delta, PrefillProgress)
                        yield delta
                self._n_broken = 0
                return
            except BusyError as error:
                if has_begun:
                    self._n_broken += 1
                    raise
                if (pause_s := next(pauses, None)) is None:
                    raise CapacityError(f"{self._where} is busy: {error}") from error
                log.warning("%s; asking again in %.1f s", error, pause_s)
            except BackendError:
                self._n_broken += 1
                raise
            await self._retries.sleep(pause_s)

    async def _reply(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """One try."""
        response = await self._sent(request)
        reader = ChunkReader(started_s=time.monotonic())
        lines, now_s = _lines(response), asyncio.get_running_loop().time
        heard_s = now_s()  # keep-alives and empty chunks do not count
        try:
            while not reader.is_done and (line := await self._next(lines, heard_s)) is not None:
                for delta in _deltas_of(line, reader):
                    yield delta
                    heard_s = now_s()
        except _http_errors() as error:
            raise BackendError(f"the connection to {self._where} broke: {_reason(error)}") from error
        finally:
            await asyncio.shield(response.aclose())
        for delta in reader.end():
            yield delta
        if reader.usage.prompt_tokens > 0:
            sent = n_bytes(request.messages, request.tools, self._thoughts_as)
            self._bytes_per_token = min(6.0, max(1.0, sent / reader.usage.prompt_tokens))
        if self._takes_thoughts:
            self._thoughts_as = self._thoughts_as or reader.thoughts_as

    async def _sent(self, request: ChatRequest) -> httpx.Response:
        """The response, after a second try without the model's thoughts where a server does not want them back."""
        try:
            return await self._send(self._body(request))
        except RequestError as error:
            if not self._thoughts_as or isinstance(error, ContextOverflow) or "reasoning" not in str(error):
                raise
            self._thoughts_as, self._takes_thoughts = "", False
            return await self._send(self._body(request))

    def _body(self, request: ChatRequest) -> bytes:
        return request_body(request, self.name, is_own=self._is_own, thoughts_as=self._thoughts_as)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _next(self, lines: AsyncIterator[str], heard_s: float) -> str | None:
        """The next line, None after the last; raises BackendError when the reply has stood still for too long."""
        import httpx

        limit_s = self._stall_timeout_s
        try:
            async with asyncio.timeout_at(heard_s + limit_s if limit_s else None):
                return await anext(lines, None)
        except (TimeoutError, httpx.ReadTimeout):
            raise self._stalled() from None

    def _stalled(self) -> BackendError:
        return BackendError(
            f"{self._where} has sent nothing of the reply for {self._stall_timeout_s:g} s: it hangs, or it needs "
            "longer for this prompt. Look at the server, or set stall_timeout_s higher (0: wait without end)"
        )

    async def _send(self, body: bytes) -> httpx.Response:
        """The response whose stream can be read; asks again while the server is busy or cannot be reached."""
        import httpx

        retries = self._retries
        for attempt in range(retries.n_tries):
            last = attempt == retries.n_tries - 1
            headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
            request = self._http.build_request("POST", "chat/completions", content=body, headers=headers)
            wait_s = retries.after(attempt + 1)
            try:
                response = await self._http.send(request, stream=True)
            except httpx.ReadTimeout:
                raise self._stalled() from None
            except httpx.TransportError as error:
                problem = f"cannot reach {self._where}: {_reason(error)}"
            except httpx.HTTPError as error:
                raise RequestError(f"cannot ask {self._where}: {_reason(error)}") from error
            else:
                if response.status_code == 200 and "text/html" not in response.headers.get("content-type", ""):
                    return response
                error = error_of(response.status_code, await _complaint(response))
                if response.status_code not in BUSY or isinstance(error, ContextOverflow):
                    raise error
                problem = f"{self._where} is busy: {error}"
                wait_s = max(wait_s, _retry_after(response.headers.get("retry-after", "")))
            if last:
                raise CapacityError(problem)
            log.warning("%s; asking again in %.1f s", problem, min(wait_s, retries.max_s))
            await retries.sleep(min(wait_s, retries.max_s))
        raise CapacityError(f"{self._where} was not asked")


def _deltas_of(line: str, reader: ChunkReader) -> Iterator[ChatDelta]:
    line = line.removeprefix("\ufeff")
    if progress := _PREFILL.match(line):
        done, total, cached = map(int, progress.groups())
        reader.note_prefill()
        yield PrefillProgress(done, total, cached)
    if not line.startswith(("data:", '{"')):  # the latter from servers that answer at once, e.g. with an error
        return
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        reader.note_done()
    else:
        yield from reader.take(_load_chunk(data))


async def _complaint(response: httpx.Response) -> str:
    """The body of a refusal, as much as comes of it. Closes the response."""
    data = b""
    try:
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > MAX_COMPLAINT_BYTES:
                break
    except _http_errors():
        pass  # its status says enough
    finally:
        await response.aclose()
    return data[:MAX_COMPLAINT_BYTES].decode("utf-8", "replace")


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of the body, split at line feeds only (JSON strings may hold other Unicode line breaks).

    Raises BackendError beyond MAX_REPLY_BYTES: such a reply never ends.
    """
    lines = ByteLines()
    received = 0
    async for data in response.aiter_bytes():
        received += len(data)
        if received > MAX_REPLY_BYTES:
            raise BackendError(f"the server's reply was stopped at {received:,} bytes: it does not end")
        for line in lines.feed(data):
            yield line.decode("utf-8", "replace")
    yield lines.rest().decode("utf-8", "replace")


def api_base(url: str) -> str:
    """The API's root: `http://host:8000` and `http://host:8000/v1/` are both `http://host:8000/v1/`."""
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    text = text.rstrip("/").removesuffix("/chat/completions")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise RequestError(f"the endpoint {url} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise RequestError(f"the endpoint {url} is no address of a server: it must begin with http:// or https://")
    return (text if parts.path else f"{text}/v1") + "/"


def _http_errors() -> tuple[type[Exception], ...]:
    import httpx

    return (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _retry_after(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def _load_chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        raise BackendError(f"the server sent a chunk that is no JSON: {data[:120]!r}") from None
    if not isinstance(chunk, dict):
        raise BackendError(f"the server sent a chunk that is no object: {data[:120]!r}")
    if chunk.get("error"):  # type: ignore[reportUnknownMemberType]
        raise error_in_stream(chunk)  # type: ignore[reportUnknownArgumentType]
    return chunk  # type: ignore[reportUnknownVariableType]

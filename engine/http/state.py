"""What all routes share: the model that is served, limits, counters."""

from __future__ import annotations

import resource
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.requests import Request

from ..chat_model import LocalChatModel
from ..errors import EngineError
from ..types import AnswerText, ChatDelta, ChatFinished, ChatRequest, ReasoningText, ToolCallArguments, ToolCallBegun
from .errors import ApiError
from .health import HealthWatch
from .metrics import Metrics
from .responses_store import ResponseStore

LOCAL = "pointcode.local"  # scope extension: the connection came through the Unix socket
ABORT = "pointcode.abort"  # scope extension: closes the connection at once
KEYBOARD_PRIORITY = 1


def _most_connections() -> int:
    """As many as this process may have files open, less those that it needs itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(4096, soft if soft != resource.RLIM_INFINITY else 4096) - 256)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes of one request, what a client may leave unread, and how long it may take to send or to read."""

    body_bytes: int = 32 << 20
    n_choices: int = 8
    n_prompts: int = 64
    unread_bytes: int = 1 << 20
    send_timeout_s: float = 60.0
    receive_timeout_s: float = 60.0  # of the head of a request, and of its body
    n_connections: int = field(default_factory=_most_connections)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to serve. `aliases` are further names of the model; no `api_key` means that none is asked for."""

    api_key: str = ""
    aliases: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = ("127.0.0.1", "localhost", "::1")  # None: any
    limits: ServerLimits = ServerLimits()


@dataclass(slots=True)
class Served:
    """One model being served; belongs to the event loop."""

    model: LocalChatModel
    options: ServerOptions
    health: HealthWatch
    metrics: Metrics = field(default_factory=Metrics)
    responses: ResponseStore = field(default_factory=ResponseStore)
    started_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a request may call the model by, its own first."""
        return tuple(dict.fromkeys((self.model.name, *self.options.aliases, "default")))

    def checked_model(self, name: str) -> str:
        """The model's own name; raises ApiError 404 for a model that is not served."""
        if name and name not in self.names:
            raise ApiError(
                404,
                f"the model {name!r} is not served here; there is {self.model.name!r}",
                param="model",
                code="model_not_found",
            )
        return self.model.name

    async def reply(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """The deltas of a reply, counted."""
        async with aclosing(self.model.stream(request)) as deltas, aclosing(self.counted(deltas)) as counted:
            async for delta in counted:
                yield delta

    async def counted(self, deltas: AsyncGenerator[ChatDelta, None]) -> AsyncGenerator[ChatDelta, None]:
        """The same deltas; what they tell goes into the metrics."""
        self.metrics.n_live += 1
        end = "unfinished"
        try:
            async for delta in self._timed(deltas):
                if isinstance(delta, ChatFinished):
                    end = "error" if delta.reason == "cancelled" else delta.reason
                yield delta
        except EngineError:
            end = "refused"
            raise
        finally:
            self.metrics.n_live -= 1
            self.metrics.replies[end] += 1

    async def _timed(self, deltas: AsyncGenerator[ChatDelta, None]) -> AsyncGenerator[ChatDelta, None]:
        begun_s = last_s = time.perf_counter()
        n_pieces = 0
        async for delta in deltas:
            now_s = time.perf_counter()
            if isinstance(delta, AnswerText | ReasoningText | ToolCallBegun | ToolCallArguments):
                if n_pieces:
                    self.metrics.between_tokens_s.add(now_s - last_s)
                else:
                    self.metrics.first_token_s.add(now_s - begun_s)
                n_pieces += 1
                last_s = now_s
            elif isinstance(delta, ChatFinished):
                self.metrics.tokens["prompt"] += delta.usage.prompt_tokens
                self.metrics.tokens["cached"] += delta.usage.cached_tokens
                self.metrics.tokens["generated"] += delta.usage.completion_tokens
            yield delta


def served(request: Request) -> Served:
    """What the app of this request serves."""
    return request.app.state.served


def priority_of(request: Request) -> int:
    """A request through the Unix socket comes from the person at the keyboard of this machine."""
    return KEYBOARD_PRIORITY if request.scope.get("extensions", {}).get(LOCAL) else 0

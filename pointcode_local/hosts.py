"""Hosts for a process that serves several sessions at once: each has its own settings and tools, they share models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pointcode_local.checkpoints import Checkpoints
from pointcode_local.compose import Setup, open_model
from pointcode_local.config import Places, Settings
from pointcode_local.engine.errors import EngineError
from pointcode_local.engine.types import ChatDelta, ChatModel, ChatRequest, Message, ToolSpec
from pointcode_local.events import SessionInfo, TurnStarted
from pointcode_local.exits import UsageError
from pointcode_local.extensions import parse_servers
from pointcode_local.frontend import HostError, OnProgress, Progress, ToolAdapter
from pointcode_local.host import AppHost
from pointcode_local.open_session import SessionChoice
from pointcode_local.session import SessionError, SessionStore


class AppHosts:
    """Makes hosts. `prepare` gives the settings of a folder; raises UsageError."""

    def __init__(
        self, prepare: Callable[[Path], Setup], places: Places, open_one: Callable[..., Any] = open_model
    ) -> None:
        self._prepare = prepare
        self._places = places
        self._store = SessionStore(places.state / "sessions")
        self._pool = ModelPool(open_one)

    def host(
        self, cwd: Path, *, session_id: str = "", servers: Mapping[str, Any] | None = None, adapter: ToolAdapter
    ) -> AppHost:
        """A host for a new session, or for the stored one with this id."""
        try:
            setup = self._prepare(cwd)
        except UsageError as error:
            raise HostError(str(error)) from error
        if servers:
            try:
                merged = (*setup.settings.mcp_servers, *parse_servers(servers))
            except ValueError as error:
                raise HostError(str(error)) from error
            setup = replace(setup, settings=replace(setup.settings, mcp_servers=merged))
        choice = SessionChoice(resume=session_id)
        return AppHost(setup, choice, interactive=True, open_model=self._pool.open, adapter=adapter)

    def sessions(self, cwd: Path | None) -> Sequence[SessionInfo]:
        """Stored sessions of a folder, or of all, newest first."""
        return self._store.list(cwd)

    def remove(self, session_id: str) -> None:
        """Delete a stored session with its checkpoints."""
        try:
            path = self._store.remove(session_id)
        except SessionError as error:
            raise HostError(str(error)) from error
        Checkpoints(self._places.state / "checkpoints" / path.stem).remove()

    def remove_unused(self, session_id: str) -> None:
        """Delete a stored session, unless something was said in it or another program has it open."""
        try:
            log, events = self._store.open(session_id)
        except SessionError:
            return
        log.close()
        if not any(isinstance(event, TurnStarted) for event in events):
            self.remove(session_id)

    async def close(self) -> bool:
        """Free the models; False when one was still loading, in a thread that goes on."""
        return await self._pool.close()


@dataclass(slots=True)
class _Entry:
    opening: asyncio.Task[ChatModel]
    n_users: int = 0
    listeners: list[OnProgress] = field(default_factory=list[OnProgress])


class ModelPool:
    """Opens each model once, for however many sessions. The last one that was used stays open for the next session."""

    def __init__(self, open_one: Callable[..., Any]) -> None:
        self._open_one = open_one
        self._entries: dict[tuple[str, ...], _Entry] = {}

    async def open(self, settings: Settings, places: Places, on_progress: OnProgress) -> ChatModel:
        """The model that the settings ask for; `aclose` of what this returns gives it back. Raises EngineError."""
        key = (settings.model, settings.backend, settings.endpoint, settings.api_key)
        entry = self._entries.get(key)
        if entry is None or (entry.opening.done() and (entry.opening.cancelled() or entry.opening.exception())):
            entry = self._entries[key] = self._begin(key, settings, places)
        entry.n_users += 1
        entry.listeners.append(on_progress)
        try:
            model = await asyncio.shield(entry.opening)
        except BaseException:
            entry.n_users -= 1
            raise
        finally:
            entry.listeners.remove(on_progress)
        return SharedModel(model, lambda: self._release(key))

    def _begin(self, key: tuple[str, ...], settings: Settings, places: Places) -> _Entry:
        listeners: list[OnProgress] = []

        def tell(progress: Progress) -> None:
            for listener in tuple(listeners):
                listener(progress)

        async def load() -> ChatModel:
            await self._free(key)
            return await self._open_one(settings, places, tell)

        return _Entry(asyncio.create_task(load(), name=f"open {settings.model or 'the model'}"), listeners=listeners)

    async def _release(self, key: tuple[str, ...]) -> None:
        entry = self._entries.get(key)
        if entry is None:  # the pool is closed
            return
        entry.n_users -= 1
        used = [other for other, one in self._entries.items() if one.n_users]
        if used:
            await self._free(used[0])

    async def _free(self, kept: tuple[str, ...]) -> None:
        """Close the models that nobody uses, so that two large ones are not in memory without need."""
        idle = [key for key, entry in self._entries.items() if key != kept and not entry.n_users]
        for entry in [self._entries.pop(key) for key in idle]:
            await _close(entry)

    async def close(self) -> bool:
        """Free every model; False when one was still loading."""
        entries, self._entries = list(self._entries.values()), {}
        were_open = [entry.opening.done() for entry in entries]
        for entry in entries:
            await _close(entry)
        return all(were_open)


async def _close(entry: _Entry) -> None:
    if not entry.opening.done():
        entry.opening.cancel()
    await asyncio.wait([entry.opening])
    if entry.opening.cancelled() or entry.opening.exception():
        return
    with contextlib.suppress(EngineError):
        await entry.opening.result().aclose()


class SharedModel:
    """One session's share of a model (a ChatModel)."""

    def __init__(self, model: ChatModel, release: Callable[[], Awaitable[None]]) -> None:
        self._model = model
        self._release: Callable[[], Awaitable[None]] | None = release

    def __getattr__(self, name: str) -> Any:
        """What else this model offers, e.g. `backend`."""
        return getattr(self._model, name)

    @property
    def name(self) -> str:
        """The model's public name."""
        return self._model.name

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._model.context_tokens

    @property
    def is_small(self) -> bool:
        """Whether it wants fewer tools and shorter schemas."""
        return self._model.is_small

    def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Continue a conversation."""
        return self._model.stream(request)

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """Prompt length in tokens."""
        return self._model.count_tokens(messages, tools)

    async def aclose(self) -> None:
        """Give the share back, once."""
        release, self._release = self._release, None
        if release is not None:
            await release()

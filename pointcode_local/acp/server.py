"""The agent's side of the Agent Client Protocol, version 1: what each request of an editor does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AuthenticateResponse,
    ClientCapabilities,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionDeleteCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
)

from pointcode_local import __version__
from pointcode_local.acp.adapter import EditorAdapter
from pointcode_local.acp.editor import Editor
from pointcode_local.acp.options import mode_of, mode_state
from pointcode_local.acp.prompts import Block, PromptError, read_prompt
from pointcode_local.acp.servers import as_settings
from pointcode_local.acp.session import EditorSession
from pointcode_local.acp.updates import Translator
from pointcode_local.acp.wire import Wire
from pointcode_local.frontend import HostError, Hosts

log = logging.getLogger(__name__)
INVALID_PARAMS, INTERNAL_ERROR, NOT_FOUND = -32602, -32603, -32002
PAGE = 50  # sessions in one answer to session/list


class EditorAgent:
    """Serves one editor. Holds its open sessions; knows nothing of how turns are played."""

    def __init__(self, hosts: Hosts, wire: Wire) -> None:
        self._hosts = hosts
        self._wire = wire
        self._sessions: dict[str, EditorSession] = {}
        self._unused: set[str] = set()  # sessions that were closed before anything was said
        self._ending: dict[str, asyncio.Event] = {}  # sessions that are being closed
        self._editor: Editor | None = None

    def on_connect(self, conn: Client) -> None:
        """The SDK hands over the way back."""
        self._editor = Editor(conn, ClientCapabilities(), self._wire)

    @property
    def editor(self) -> Editor:
        """The editor; there is one as soon as there is a connection."""
        assert self._editor is not None
        return self._editor

    # ------------------------------------------------------------------------------------------- connection
    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **_: Any,
    ) -> InitializeResponse:
        """Answer with version 1, the only one there is: an editor that speaks another one leaves."""
        self.editor.capabilities = client_capabilities or ClientCapabilities()
        if client_info is not None:
            log.info("editor: %s %s, protocol %s", client_info.name, client_info.version, protocol_version)
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=False, audio=False, embedded_context=True),
                mcp_capabilities=McpCapabilities(http=True, sse=False),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                    delete=SessionDeleteCapabilities(),
                ),
            ),
            auth_methods=[],
            agent_info=Implementation(name="pointcode", title="pointcode", version=__version__),
        )

    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse:
        """Nothing asks for it, so no method is known."""
        raise RequestError(INVALID_PARAMS, f"there is no authentication method {method_id!r}: none is needed")

    # ------------------------------------------------------------------------------------------- sessions
    async def new_session(self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any) -> NewSessionResponse:
        """A new session in a folder; its model loads meanwhile."""
        session = self._start(cwd, "", mcp_servers)
        return NewSessionResponse(session_id=session.id, modes=mode_state(session.mode), config_options=session.options)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        """A stored session; all of it is told before the answer."""
        session = self._sessions.get(session_id) or await self._reopen(cwd, session_id, mcp_servers)
        await session.replay()
        return LoadSessionResponse(modes=mode_state(session.mode), config_options=session.options)

    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> ResumeSessionResponse:
        """A stored session, without telling what was in it."""
        session = self._sessions.get(session_id) or await self._reopen(cwd, session_id, mcp_servers)
        return ResumeSessionResponse(modes=mode_state(session.mode), config_options=session.options)

    async def _reopen(self, cwd: str, session_id: str, servers: Sequence[Any] | None) -> EditorSession:
        """A stored session by its whole id (the command line also takes the beginning of one)."""
        await self._ended(session_id)
        if (again := self._sessions.get(session_id)) is not None:
            return again
        session = self._start(cwd, session_id, servers) if session_id else None
        if session is None or session.id != session_id:
            if session is not None:
                await self.close_session(session.id)
            raise RequestError(NOT_FOUND, f"no session {session_id!r}")
        return session

    def _start(self, cwd: str, session_id: str, servers: Sequence[Any] | None) -> EditorSession:
        folder = _folder(cwd)
        translator = Translator(folder, self.editor.extras)
        adapter = EditorAdapter(self.editor, translator)
        usable, unsupported = as_settings(servers or ())
        try:
            host = self._hosts.host(folder, session_id=session_id, servers=usable, adapter=adapter)
            session = EditorSession(self.editor, host, folder, translator, adapter.unsaved)
        except HostError as error:
            is_missing = str(error).startswith("no session")
            raise RequestError(NOT_FOUND if is_missing else INTERNAL_ERROR, str(error)) from error
        self._sessions[session.id] = session
        self._unused.discard(session.id)
        adapter.session_id = session.id
        if unsupported:
            session.add_notice(f"MCP servers on this transport are not supported: {', '.join(unsupported)}")
        session.open()
        # After the answer, which is in line as soon as this request's handler returns.
        asyncio.get_running_loop().call_soon(self._tell_commands, session)
        return session

    def _tell_commands(self, session: EditorSession) -> None:
        task = asyncio.create_task(session.tell_commands(), name="commands")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        """Stored sessions in which something was said, the one written last first."""
        start = _page_start(cursor)
        infos = await asyncio.to_thread(self._hosts.sessions, None if cwd is None else Path(cwd))
        told = [info for info in infos if info.title]
        page = [
            SessionInfo(
                session_id=info.id,
                cwd=info.cwd,
                title=info.title,
                updated_at=datetime.fromtimestamp(info.updated_s, UTC).isoformat(),
            )
            for info in told[start : start + PAGE]
        ]
        more = str(start + PAGE) if len(told) > start + PAGE else None
        return ListSessionsResponse(sessions=page, next_cursor=more)

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        """Stop what runs in a session and free it; it stays stored."""
        session = self._session(session_id)
        del self._sessions[session_id]
        await self._end(session)
        return CloseSessionResponse()

    async def _end(self, session: EditorSession) -> None:
        if session.is_unused:
            self._unused.add(session.id)
        ended = self._ending[session.id] = asyncio.Event()
        try:
            await session.close()
        finally:
            self._ending.pop(session.id, None)  # opened by a part of its id and closed again, it ends twice
            ended.set()

    async def _ended(self, session_id: str) -> None:
        """Wait for a session that is being closed: an editor need not wait for that itself."""
        if (ending := self._ending.get(session_id)) is not None:
            await ending.wait()

    async def _delete_session(self, session_id: str) -> dict[str, Any]:
        if session_id in self._sessions:
            await self.close_session(session_id)
        await self._ended(session_id)
        self._unused.discard(session_id)
        try:
            self._hosts.remove(session_id)
        except HostError as error:
            raise RequestError(NOT_FOUND, str(error)) from error
        return {}

    def _session(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RequestError(NOT_FOUND, f"no open session {session_id!r}: use session/new, load or resume")
        return session

    # ------------------------------------------------------------------------------------------- turns
    async def prompt(self, session_id: str, prompt: list[Block], **_: Any) -> PromptResponse:
        """Play a prompt to its end."""
        session = self._session(session_id)
        try:
            read = read_prompt(prompt, session.cwd)
        except PromptError as error:
            raise RequestError(INVALID_PARAMS, str(error)) from error
        return PromptResponse(stop_reason=await session.prompt(read))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the running prompt of a session."""
        if (session := self._sessions.get(session_id)) is not None:
            session.cancel()

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        """Change the permission mode."""
        session = self._session(session_id)
        self._set_mode(session, mode_id)
        await session.tell_options(mode_too=False)
        return SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        """Change the mode or the model."""
        session = self._session(session_id)
        if config_id == "mode" and isinstance(value, str):
            self._set_mode(session, value)
            await session.tell_options(mode_too=True)
        elif config_id == "model" and isinstance(value, str):
            await _set_model(session, value)
        else:
            raise RequestError(INVALID_PARAMS, f"no option {config_id!r} with a value {value!r}; options: mode, model")
        return SetSessionConfigOptionResponse(config_options=session.options)

    def _set_mode(self, session: EditorSession, text: str) -> None:
        mode = mode_of(text)
        if mode is None:
            known = ", ".join(m.id for m in mode_state("").available_modes)
            raise RequestError(INVALID_PARAMS, f"no mode {text!r}; modes: {known}")
        session.set_mode(mode)

    # ------------------------------------------------------------------------------------------- the rest
    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Requests that the SDK's router does not know."""
        if method == "session/delete":
            session_id = params.get("sessionId")
            if not isinstance(session_id, str):
                raise RequestError(INVALID_PARAMS, "Invalid params: sessionId must be a string")
            return await self._delete_session(session_id)
        raise RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Notifications that the SDK's router does not know; those that nobody here knows are ignored."""
        if method == "$/cancel_request":
            await self.cancel(self._wire.session_of_prompt(params.get("requestId")))

    async def close(self) -> None:
        """Stop and free everything. Sessions in which nothing was said are not kept: editors open many of them."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.cancel()
        for session in sessions:
            await self._end(session)
        for session_id in self._unused:
            self._hosts.remove_unused(session_id)


async def _set_model(session: EditorSession, name: str) -> None:
    try:
        await session.set_model(name)
    except HostError as error:
        raise RequestError(INVALID_PARAMS, str(error)) from error


def _folder(cwd: str) -> Path:
    path = Path(cwd)
    if not path.is_absolute():
        raise RequestError(INVALID_PARAMS, f"cwd must be an absolute path, got {cwd!r}")
    try:
        resolved = path.resolve(strict=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(INVALID_PARAMS, f"cwd {cwd}: {reason}") from error
    if not resolved.is_dir():
        raise RequestError(INVALID_PARAMS, f"cwd {cwd}: not a folder")
    return resolved


def _page_start(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdecimal():
        raise RequestError(INVALID_PARAMS, f"unknown cursor {cursor!r}")
    return int(cursor)

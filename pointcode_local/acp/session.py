"""One session of an editor: its host and agent, the prompt that is being worked on, and what waits behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from acp.exceptions import RequestError
from acp.schema import ConfigOptionUpdate, CurrentModeUpdate, SessionInfoUpdate, StopReason

from pointcode_local.acp.commands import run_command
from pointcode_local.acp.editor import Editor
from pointcode_local.acp.options import ConfigOption, command_in, commands_update, config_options, is_built_in
from pointcode_local.acp.prompts import Prompt, read_prompt
from pointcode_local.acp.updates import Translator, Update
from pointcode_local.events import (
    AgentEvent,
    Answer,
    ErrorRaised,
    Mode,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
    SetMode,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.frontend import AgentLike, EditorHost, HostError, Progress

log = logging.getLogger(__name__)
INTERNAL_ERROR = -32603
PROGRESS_STEP = 0.1  # of a download, between two lines about it


class EditorSession:
    """Owns a host. Prompts are played one after the other; the model opens in the background."""

    def __init__(
        self,
        editor: Editor,
        host: EditorHost,
        cwd: Path,
        translator: Translator,
        unsaved: Callable[[Path], Awaitable[str | None]],
    ) -> None:
        """`unsaved` gives the text of a file that the editor has changed and not saved."""
        self._unsaved = unsaved
        self._editor = editor
        self._host = host
        self.cwd = cwd
        self._translator = translator
        self.id = host.open_session()
        self._agent: AgentLike | None = None
        self._opening: asyncio.Task[AgentLike] | None = None
        self._news: asyncio.Queue[Progress | asyncio.Task[AgentLike]] = asyncio.Queue()  # a task: it has ended
        self._last_progress = ("", -1.0)
        self._told: set[str] = set()
        self._wanted_mode: Mode | None = None
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[StopReason] | None = None
        self._is_playing = False
        self._n_cancels = 0
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._end: TurnFinished | None = None
        self._is_temporary = False
        self._notices: list[str] = []
        self._is_titled = any(isinstance(event, TurnStarted) for event in host.history())

    # ------------------------------------------------------------------------------------------- opening
    def open(self) -> asyncio.Task[AgentLike]:
        """Load the model; again after a failure."""
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening = asyncio.create_task(self._open(), name=f"open session {self.id}")
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is told at the prompt
        return opening

    async def _open(self) -> AgentLike:
        loop = asyncio.get_running_loop()

        def tell(progress: Progress) -> None:  # comes from any thread
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._progress, progress)

        agent = self._agent = await self._host.open(tell)
        self._notices += self._host.notices()
        if self._wanted_mode is not None:
            agent.send(SetMode(self._wanted_mode))
        return agent

    def _progress(self, progress: Progress) -> None:
        part = progress.done / progress.total if progress.total else 0.0
        text, last = self._last_progress
        if text == progress.text and part < last + PROGRESS_STEP and part < 1.0:
            return
        self._last_progress = (progress.text, part)
        self._news.put_nowait(progress)

    async def _opened(self) -> AgentLike:
        """The agent; while it opens, the person reads how far that is. Raises HostError."""
        opening = self.open()
        if not opening.done():
            opening.add_done_callback(self._news.put_nowait)
            while (progress := await self._news.get()) is not opening:
                if isinstance(progress, asyncio.Task):
                    continue  # an earlier one, whose end no prompt had waited for
                part = f": {progress.done / progress.total:.0%}" if progress.total else ""
                self._told.add(progress.text)
                await self._tell(self._translator.thought(f"({progress.text}{part})\n"))
        await opening
        assert self._agent is not None  # another one than was opened, after a change of the model
        return self._agent

    # ------------------------------------------------------------------------------------------- prompts
    async def prompt(self, prompt: Prompt) -> StopReason:
        """Play one prompt after those before it. Raises RequestError for a turn that failed."""
        n_cancels = self._n_cancels
        async with self._turn:
            if n_cancels != self._n_cancels:
                return "cancelled"
            self._task = asyncio.create_task(self._play(prompt), name=f"prompt of {self.id}")
            try:
                return await self._task
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
                return "cancelled"
            except HostError as error:
                raise RequestError(INTERNAL_ERROR, str(error)) from error
            finally:
                self._task = None
                self._is_playing = False

    def cancel(self) -> None:
        """Stop the running prompt, and those that wait behind it."""
        self._n_cancels += 1
        if self._is_playing and self._agent is not None:
            self._agent.cancel()
        elif self._task is not None:
            self._task.cancel()

    async def _play(self, prompt: Prompt) -> StopReason:
        agent = await self._opened()
        for notice in self._take_notices():
            await self._tell(self._translator.notice(notice))
        text = prompt.text
        command = command_in(text, self._host.commands())
        if command is not None and command[0] == "compact":
            n_cancels = self._n_cancels
            await self._stream(agent.compact())
            return "end_turn" if n_cancels == self._n_cancels else "cancelled"
        if command is not None and is_built_in(command[0]):
            await self._tell(self._translator.said(await run_command(self, self._host, *command)))
            return "end_turn"
        if command is not None:
            text = self._host.expand(*command)
        elif changed := await self._changed(prompt):
            prompt = read_prompt(prompt.blocks, self.cwd, changed)
            text = prompt.text
        for attachment in prompt.attachments:
            self._host.attach(f"@{attachment.source}", attachment.text)
        await self._stream(agent.run(text))
        await self._give_title(prompt.text)
        return _stop_reason(self._end, temporary=self._is_temporary)

    async def _stream(self, stream: AsyncIterator[AgentEvent]) -> None:
        """Tell the editor of a turn, or of a compaction, until its end."""
        self._end, self._is_temporary, self._is_playing = None, False, True
        try:
            async with aclosing(cast("AsyncGenerator[AgentEvent, None]", stream)) as events:
                async for event in events:
                    await self._take(event)
        finally:
            for task in self._questions.values():
                task.cancel()

    async def _changed(self, prompt: Prompt) -> dict[str, str]:
        """Linked files with changes that are not saved, as far as the rules allow reading them."""
        texts = {u: await self._unsaved(path) for u, path in prompt.links.items() if self._host.may_read(path)}
        return {uri: text for uri, text in texts.items() if text is not None}

    async def _take(self, event: AgentEvent) -> None:
        match event:
            case PermissionAsked():
                for update in self._translator.asked(event):
                    await self._tell(update)
                self._begin_question(event.call_id, self._permission(event))
            case QuestionAsked(call_id, question, options):
                self._begin_question(call_id, self._question(call_id, question, options))
            case PermissionAnswered(call_id=call_id) | QuestionAnswered(call_id=call_id):
                if (task := self._questions.pop(call_id, None)) is not None:
                    task.cancel()
            case _:
                if isinstance(event, TurnFinished):
                    self._end = event
                elif isinstance(event, ErrorRaised):
                    self._is_temporary = event.temporary
                for update in self._translator.live(event):
                    await self._tell(update)

    def _begin_question(self, call_id: str, question: Coroutine[Any, Any, str]) -> None:
        async def ask() -> None:
            answer = await question
            if self._agent is not None:
                self._agent.send(Answer(call_id, answer))

        self._questions[call_id] = asyncio.create_task(ask(), name=f"question about {call_id}")

    def _permission(self, event: PermissionAsked) -> Coroutine[Any, Any, str]:
        call = self._translator.call_to_permit(event)
        return self._editor.permit(self.id, call, event.rule, offers_session=event.offers_session)

    def _question(self, call_id: str, question: str, options: tuple[str, ...]) -> Coroutine[Any, Any, str]:
        return self._editor.choose(self.id, call_id, question, options)

    async def _tell(self, update: Update) -> None:
        await self._editor.update(self.id, update)

    def add_notice(self, text: str) -> None:
        """Say this before the next prompt is worked on."""
        self._notices.append(text)

    def _take_notices(self) -> Sequence[str]:
        """What was not told yet while the model opened."""
        taken, self._notices = [text for text in self._notices if text not in self._told], []
        return taken

    async def _give_title(self, prompt: str) -> None:
        if not self._is_titled:
            self._is_titled = True
            title = " ".join(prompt.split())[:80]
            await self._tell(SessionInfoUpdate(session_update="session_info_update", title=title))

    # ------------------------------------------------------------------------------------------- the rest
    async def replay(self) -> None:
        """Tell the editor everything that was said and done."""
        translator = Translator(self.cwd)
        for event in self._host.history():
            for update in translator.replayed(event):
                await self._tell(update)

    @property
    def mode(self) -> str:
        """The permission mode in force."""
        return self._wanted_mode or self._host.info.mode

    @property
    def options(self) -> list[ConfigOption]:
        """The selectors of this session."""
        return config_options(self.mode, self._host.info.model, self._host.models())

    def set_mode(self, mode: Mode) -> None:
        """Change the permission mode from the next call on."""
        self._wanted_mode = mode
        if self._agent is not None:
            self._agent.send(SetMode(mode))

    async def set_model(self, name: str) -> None:
        """Go on with another model, once the running prompt is done. Raises HostError."""
        async with self._turn:
            await self._opened()
            await self.change_model(name)

    async def change_model(self, name: str) -> None:
        """Go on with another model now: no prompt may be running. Raises HostError."""
        if name != self._host.info.model:
            self._agent = await self._host.use_model(name, lambda progress: log.info("%s", progress.text))

    async def tell_commands(self) -> None:
        """Tell the editor which slash commands there are."""
        await self._tell(commands_update(self._host.commands()))

    async def tell_options(self, *, mode_too: bool) -> None:
        """Tell the editor what changed, so that its selectors agree with each other."""
        if mode_too:
            await self._tell(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.mode))
        await self._tell(ConfigOptionUpdate(session_update="config_option_update", config_options=self.options))

    @property
    def is_unused(self) -> bool:
        """Whether nobody has said anything in this session."""
        return not any(isinstance(event, TurnStarted) for event in self._host.history())

    async def close(self) -> None:
        """Stop what runs and close the host."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._host.close()


def _stop_reason(end: TurnFinished | None, *, temporary: bool) -> StopReason:
    if end is None:
        return "cancelled"
    match end.outcome:
        case "done" | "denied":
            return "end_turn"
        case "cancelled":
            return "cancelled"
        case "limit":
            return "max_tokens" if "token limit" in (end.error or "") else "max_turn_requests"
        case "error":
            raise RequestError(INTERNAL_ERROR, end.error or "the turn failed", {"temporary": temporary})

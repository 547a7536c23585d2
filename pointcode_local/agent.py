"""The agent loop: ask the model, run its calls, show it the results, until it answers.

`run` yields the event stream of a turn (and of those queued meanwhile); `send` takes commands; `cancel` stops at once
and leaves a balanced stream and a valid history. Every event goes to the session log before anybody sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from pointcode_local import context_files
from pointcode_local.blockturn import BlockTurn
from pointcode_local.conversation import Conversation
from pointcode_local.engine.errors import BackendError, CapacityError, EngineError
from pointcode_local.engine.types import ChatModel, SamplingParams
from pointcode_local.events import (
    AgentEvent,
    Answer,
    Command,
    ContextAdded,
    ErrorRaised,
    ModeChanged,
    Outcome,
    Prompt,
    PromptQueued,
    SetMode,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.runner import Toolbox
from pointcode_local.session import SessionLog
from pointcode_local.steps import split_steps
from pointcode_local.turn import AgentLimits, Core, Stop, Turn
from pointcode_local.window import Window

Menu = Literal["tools", "blocks"]  # how the model changes files: by tool calls, or by blocks that become calls


class Agent:
    """One conversation. Built by the composition root; used by every front end in the same way."""

    def __init__(
        self,
        *,
        model: ChatModel,
        toolbox: Toolbox,
        log: SessionLog,
        system: str,
        history: Sequence[AgentEvent] = (),
        limits: AgentLimits | None = None,
        home: Path | None = None,
        sampling: SamplingParams | None = None,
        repo_map: Callable[[int], str] | None = None,
        menu: Menu = "tools",
    ) -> None:
        self._log = log
        self._home = home
        self._repo_map = repo_map
        self._has_map = any(isinstance(e, ContextAdded) and e.source == context_files.MAP_SOURCE for e in history)
        self._core = Core(
            model=model,
            box=toolbox,
            conversation=Conversation(system, history),
            window=Window(model, toolbox.specs if menu == "tools" else ()),
            limits=limits or AgentLimits(),
            emit=self._emit,
            wait_answer=self._wait_answer,
            sampling=sampling,
        )
        self._menu = menu
        self._core.wanted_room = self._core.window.working_room
        self._n_turns = max(toolbox.checkpoints.last_turn() if toolbox.checkpoints else 0, 0)
        self._events: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self._answers: dict[str, asyncio.Future[str]] = {}
        self._queue: list[str] = []
        self._told_loss = False
        self._told_mode = (
            next((e.mode for e in reversed(history) if isinstance(e, ModeChanged)), "") or toolbox.policy.mode
        )

    # ------------------------------------------------------------------------------------------- front ends
    async def run(self, prompt: str) -> AsyncGenerator[AgentEvent, None]:
        """Play one turn, then those that were queued meanwhile; ends after the last `TurnFinished`."""
        if self._task is not None:
            raise RuntimeError("a turn is running; send a Prompt instead")
        waiting: list[str] = [prompt, *self._queue]
        while waiting:
            self._queue = waiting[1:]
            async with aclosing(self._play(self._turn(waiting[0]))) as events:
                async for event in events:
                    yield event
            waiting = [] if self._cancelled else [*self._core.take_steers(), *self._queue]

    async def compact(self) -> AsyncGenerator[AgentEvent, None]:
        """Shorten the conversation now, all but its first message and the last answer. Not during a turn."""
        async with aclosing(self._play(self._shorten())) as events:
            async for event in events:
                yield event

    async def _shorten(self) -> None:
        try:
            await Turn(self._core, self._n_turns).compact(hard=True)
        except EngineError as error:
            self._emit(ErrorRaised(str(error), isinstance(error, CapacityError | BackendError)))
        except asyncio.CancelledError:
            pass  # nothing was left out

    async def _play(self, work: Coroutine[Any, Any, None]) -> AsyncGenerator[AgentEvent, None]:
        """The events of one turn, or of a compaction, which runs in a task of its own."""
        self._events = asyncio.Queue()
        self._cancelled = False
        task = self._task = asyncio.create_task(work, name="agent turn")
        task.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            await task
        finally:
            if not task.done():
                self.cancel()
                await asyncio.wait([task])
            self._task = None
            for event in self._core.take_held():  # this stream is over: they go with the next prompt
                self._emit(event)

    def send(self, command: Command) -> None:
        """Hand in an answer, a mode change, or a prompt for the running turn. Never blocks."""
        match command:
            case Answer(call_id, text):
                future = self._answers.get(call_id)
                if future is not None and not future.done():
                    future.set_result(text)
            case Prompt(text, steer=True):
                self._core.steers.append(text)
            case Prompt(text):
                self._queue.append(text)
                self._emit(PromptQueued(text))
            case SetMode(mode):
                self._core.box.policy.mode = mode
                self._emit(ModeChanged(mode))

    def cancel(self) -> None:
        """Stop the running turn at once; its stream still ends with `TurnFinished("cancelled")`."""
        if self._task is not None and not self._cancelled:  # a second cancel must not disturb the clean-up of the first
            self._cancelled = True
            self._task.cancel()

    def take_queue(self) -> list[str]:
        """Take back the prompts that wait, e.g. into the editor after a cancel."""
        taken, self._queue = [*self._core.take_steers(), *self._queue], []
        return taken

    def note(self, text: str) -> None:
        """Tell the model something that happened outside of its turns; it reads it before it is asked next."""
        self._add(ContextAdded("note", f"[note] {text}"))

    def attach(self, source: str, text: str) -> bool:
        """Give the model a text with the next prompt, e.g. a file as an editor holds it. False when it was cut."""
        (added,) = self._core.window.fitted([ContextAdded(source, text)])
        self._add(added)
        return added.text == text

    def _add(self, event: ContextAdded) -> None:
        """What a model writes stands right behind the prompt it was asked with: nothing may come between, or the prompt
        of the next call would not begin with this one and all of it were read again. So a running turn takes it in."""
        if self._task is None:
            self._emit(event)
        else:
            self._core.held.append(event)

    @property
    def conversation(self) -> Conversation:
        """The history as the model sees it."""
        return self._core.conversation

    # ------------------------------------------------------------------------------------------- turns
    def _emit(self, event: AgentEvent) -> None:
        self._log.append(event)
        self._core.conversation.apply(event)
        told = [event]
        if self._log.problem and not self._told_loss:  # inside the turn
            lost = ErrorRaised(f"this session is not being kept: {self._log.problem}")
            told.insert(isinstance(event, TurnStarted), lost)
        self._told_loss = bool(self._log.problem)
        for each in told:
            self._events.put_nowait(each)

    async def _turn(self, prompt: str) -> None:
        """One prompt to its end."""
        self._n_turns += 1
        prompt, *later = split_steps(prompt) if self._core.model.is_small else [prompt]
        kind = BlockTurn if self._menu == "blocks" else Turn
        turn = kind(self._core, self._n_turns, prompt, later)
        first = not self._core.conversation.has_user_message
        self._emit(TurnStarted(prompt))
        try:
            self._add_context(prompt, first)
            await turn.play()
            outcome: Outcome = "denied" if turn.denied else "limit" if turn.gave_up else "done"
            end = TurnFinished(outcome, turn.text, turn.n_calls, turn.gave_up or None)
        except asyncio.CancelledError:
            await turn.abandon()
            end = TurnFinished("cancelled", turn.text, turn.n_calls)
        except Stop as stop:
            await turn.abandon()
            if stop.outcome == "error":
                self._emit(ErrorRaised(stop.error or "", stop.temporary))
            end = TurnFinished(stop.outcome, turn.text, turn.n_calls, stop.error)
        except EngineError as error:
            await turn.abandon()
            self._emit(ErrorRaised(str(error), isinstance(error, CapacityError | BackendError)))
            end = TurnFinished("error", turn.text, turn.n_calls, str(error))
        self._emit(end)

    def _add_context(self, prompt: str, first: bool) -> None:
        mode = self._core.box.policy.mode
        if first:
            for rule in context_files.rules(self._core.box.root, self._home):
                self._emit(rule)
            small = self._core.model.is_small
            if self._menu == "tools" or mode == "plan":
                self._emit(context_files.environment(self._core.box.root, mode, small_model=small))
        elif mode != self._told_mode:
            note = (
                context_files.PLAN_NOTE if mode == "plan" else "Files may be changed again, as far as the user permits."
            )
            self._emit(ContextAdded("note", f"[note] The permission mode is now {mode}. {note}"))
        self._told_mode = mode
        self._add_map()
        if self._menu == "blocks":  # the turn shows files itself
            return
        mentions = context_files.mentions(prompt, self._core.box.root, self._core.box.policy.may_read)
        for mention in self._core.window.fitted(mentions):
            self._emit(mention)

    def _add_map(self) -> None:
        """The repository's map, once, with the first prompt for which it is ready; never with a small model."""
        if self._repo_map is None or self._has_map or self._core.model.is_small:
            return
        room = self._core.window.room(self._core.conversation.messages_so_far)  # `messages` would end the prompt here
        text = self._repo_map(room // context_files.MAP_SHARE) if room > 0 else ""
        if text:
            self._has_map = True
            self._emit(ContextAdded(context_files.MAP_SOURCE, text))

    async def _wait_answer(self, call_id: str) -> str:
        """Wait for the person's `Answer` to a question about this call."""
        future = self._answers[call_id] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            self._answers.pop(call_id, None)

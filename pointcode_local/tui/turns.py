"""What runs: the agent's turn and the person's own command, each at most once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pointcode_local.events import AgentEvent, Command, ErrorRaised, ToolFinished
from pointcode_local.frontend import AgentLike
from pointcode_local.tui.feed import Feed
from pointcode_local.usershell import note_for_model, run_user_shell

_log = logging.getLogger(__name__)


class Turns:
    """Plays streams of events into the feed. `give_back` gets what the agent still had at its end."""

    def __init__(self, feed: Feed, give_back: Callable[[list[str]], None]) -> None:
        self.agent: AgentLike | None = None
        self._feed = feed
        self._give_back = give_back
        self.was_stopped = False  # the last turn, by the person
        self._turn: asyncio.Task[None] | None = None
        self._user_shell: asyncio.Task[None] | None = None
        self._notes: list[str] = []  # for the model, once the turn is over
        self._n_user_shells = 0

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs."""
        return self._turn is not None

    @property
    def in_user_shell(self) -> bool:
        """Whether a command of the person runs."""
        return self._user_shell is not None

    def start(self, agent: AgentLike, stream: AsyncIterator[AgentEvent]) -> None:
        """Begin a turn of this agent, or a compaction; none may be running."""
        self.was_stopped = False
        self._turn = asyncio.create_task(self._play(agent, stream))

    def start_user_shell(self, command: str, cwd: Path) -> bool:
        """Run the person's command; False while one is running."""
        if self._user_shell is not None:
            return False
        self._n_user_shells += 1
        stream = run_user_shell(command, cwd, f"user-shell-{self._n_user_shells}")
        self._user_shell = asyncio.create_task(self._consume(self._noted(stream)))
        self._user_shell.add_done_callback(self._user_shell_ended)  # also of one that was stopped before it began
        return True

    def send(self, command: Command) -> None:
        """Hand a command to the agent, if there is one."""
        if self.agent is not None:
            self.agent.send(command)

    def stop(self) -> None:
        """Stop the turn, or the person's own command."""
        if self._turn is not None and self.agent is not None:
            self.was_stopped = True
            self.agent.cancel()
        elif self._user_shell is not None:
            self._user_shell.cancel()

    async def wait(self, seconds: float) -> None:
        """Until the turn is over, or that long."""
        if self._turn is not None:
            await asyncio.wait({self._turn}, timeout=seconds)

    async def _consume(self, stream: AsyncIterator[AgentEvent]) -> None:
        try:
            async for event in stream:
                self._feed.post(event)
        except Exception as error:  # noqa: BLE001  (front-end loop: whatever fails in a turn, the screen stays)
            _log.exception("the turn failed")
            self._feed.post(ErrorRaised(f"{type(error).__name__}: {error}"))

    async def _play(self, agent: AgentLike, stream: AsyncIterator[AgentEvent]) -> None:
        await self._consume(stream)
        self._turn = None
        self._give_back(agent.take_queue())
        self._tell(agent)
        self._feed.wake()

    def _user_shell_ended(self, _: asyncio.Task[None]) -> None:
        self._user_shell = None
        self._feed.wake()

    async def _noted(self, stream: AsyncIterator[AgentEvent]) -> AsyncIterator[AgentEvent]:
        """The same events; the model learns of the command's end, though not in the middle of a turn."""
        async for event in stream:
            yield event
            if isinstance(event, ToolFinished):
                self._notes.append(note_for_model(event))
        if self.agent is not None and self._turn is None:
            self._tell(self.agent)

    def _tell(self, agent: AgentLike) -> None:
        for note in self._notes:
            agent.note(note)
        self._notes.clear()

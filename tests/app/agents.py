"""Builds agents over fakes, and plays turns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pointcode_local.agent import Agent
from pointcode_local.checkpoints import Checkpoints
from pointcode_local.engine.types import Message
from pointcode_local.events import AgentEvent, TurnFinished
from pointcode_local.runner import Toolbox
from pointcode_local.session import SessionLog, SessionStore
from pointcode_local.turn import AgentLimits
from tests.fakes import FakePolicy, FakeTool, ScriptedModel


class Bench:
    """An agent over a scripted model and fake tools, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        model: ScriptedModel,
        tools: Sequence[FakeTool] = (),
        *,
        policy: FakePolicy | None = None,
        interactive: bool = False,
        limits: AgentLimits | None = None,
        history: Sequence[AgentEvent] = (),
        log: SessionLog | None = None,
        system: str = "You help.",
        withheld: dict[str, str] | None = None,
    ) -> None:
        self.root = folder / "ws"
        self.root.mkdir(exist_ok=True)
        self.store = SessionStore(folder / "sessions")
        self.log = log or self.store.create(self.root)
        self.model = model
        self.policy = policy or FakePolicy()
        self.agent = Agent(
            model=model,
            toolbox=Toolbox(
                tools={tool.name: tool for tool in tools},
                policy=self.policy,
                workspace=None,
                root=self.root,
                withheld=withheld or {},
                checkpoints=Checkpoints(folder / "checkpoints" / self.log.id),
                interactive=interactive,
            ),
            log=self.log,
            system=system,
            history=history,
            limits=limits,
        )

    def play(self, prompt: str = "Go.", on_event: Callable[[AgentEvent], Any] | None = None) -> list[AgentEvent]:
        """Run one turn to its end; `on_event` sees each event and may send commands."""
        return asyncio.run(self.play_async(prompt, on_event))

    async def play_async(self, prompt: str, on_event: Callable[[AgentEvent], Any] | None = None) -> list[AgentEvent]:
        events: list[AgentEvent] = []
        async for event in self.agent.run(prompt):
            events.append(event)
            if on_event is not None:
                on_event(event)
        return events

    @property
    def last_messages(self) -> tuple[Message, ...]:
        """The messages of the last request."""
        return self.model.requests[-1].messages


def end_of(events: Sequence[AgentEvent]) -> TurnFinished:
    """The last event, which ends the turn."""
    end = events[-1]
    assert isinstance(end, TurnFinished)
    return end


def of_type(events: Sequence[AgentEvent], kind: type[Any]) -> list[Any]:
    """The events of one type."""
    return [event for event in events if isinstance(event, kind)]


@contextmanager
def full_disk(log: SessionLog) -> Generator[None]:
    """Nothing can be written to the log meanwhile."""
    shown = Path("/proc/self/fd")
    number = next(int(each.name) for each in shown.iterdir() if os.path.realpath(each) == os.path.realpath(log.path))
    kept, full = os.dup(number), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, number)
    yield
    os.dup2(kept, number)
    os.close(kept)
    os.close(full)


def assert_valid_history(messages: Sequence[Message]) -> None:
    """Every call has exactly one result, directly after its reply, in call order."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert waiting and message.tool_call_id == waiting.pop(0)
            continue
        assert not waiting, f"no result for {waiting}"
        waiting = [call.id for call in message.tool_calls]
    assert not waiting

"""A scripted agent and host: they play lists of events, as the real ones would, and record what they were sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pointcode_local.complete import SlashCommand
from pointcode_local.events import (
    AgentEvent,
    Answer,
    Command,
    CompactionFinished,
    CompactionStarted,
    FileDiff,
    PermissionAnswered,
    PermissionAsked,
    Prompt,
    PromptQueued,
    QuestionAnswered,
    QuestionAsked,
    SessionInfo,
    Steered,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.frontend import (
    AgentLike,
    EngineView,
    FirstLook,
    HostError,
    HostInfo,
    JobInfo,
    OnProgress,
    Progress,
    Timeline,
)

WAIT = object()  # in a script: play on only after `release()` or a cancel


@dataclass
class ScriptedAgent:
    """Plays one script per turn; questions in a script wait for their answer."""

    scripts: list[list[object]] = field(default_factory=list)
    sent: list[Command] = field(default_factory=list)
    played: list[AgentEvent] = field(default_factory=list)
    cancelled: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._released = False
        self._answers: dict[str, asyncio.Future[str]] = {}
        self._extra: list[AgentEvent] = []
        self._queue: list[str] = []

    async def run(self, prompt: str) -> AsyncIterator[AgentEvent]:
        while True:
            self.cancelled = 0
            async for event in self._turn(prompt):
                self.played.append(event)
                yield event
            if not self._queue or self.cancelled:
                return
            prompt = self._queue.pop(0)

    async def compact(self) -> AsyncIterator[AgentEvent]:
        for event in (CompactionStarted(900), CompactionFinished(200, "notes")):
            self.played.append(event)
            yield event

    async def _turn(self, prompt: str) -> AsyncIterator[AgentEvent]:
        yield TurnStarted(prompt)
        for step in self.scripts.pop(0) if self.scripts else []:
            if step is WAIT:
                while not self._released and not self.cancelled:
                    await self._woken()
                    while self._extra:
                        yield self._extra.pop(0)
                self._released = False
            elif isinstance(step, PermissionAsked | QuestionAsked):
                yield step
                answer = self._answers.setdefault(step.call_id, asyncio.get_running_loop().create_future())
                while not answer.done() and not self.cancelled:
                    await self._woken()
                if isinstance(step, PermissionAsked):
                    text = answer.result() if answer.done() else "deny"
                    yield PermissionAnswered(step.call_id, text)  # type: ignore[arg-type]
                else:
                    yield QuestionAnswered(step.call_id, answer.result() if answer.done() else "")
            else:
                yield step  # type: ignore[misc]
            if self.cancelled:
                yield TurnFinished("cancelled", "", 1)
                return
        yield TurnFinished("done", "", 1)

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def release(self) -> None:
        self._released = True
        self._wake.set()

    def send(self, command: Command) -> None:
        self.sent.append(command)
        match command:
            case Answer(call_id=call_id, text=text):
                self._answers.setdefault(call_id, asyncio.get_running_loop().create_future()).set_result(text)
            case Prompt(text=text, steer=True):
                self._extra.append(Steered(text))
            case Prompt(text=text):
                self._queue.append(text)
                self._extra.append(PromptQueued(text))
            case _:
                pass
        self._wake.set()

    def cancel(self) -> None:
        self.cancelled += 1
        self._wake.set()

    def take_queue(self) -> list[str]:
        taken, self._queue = self._queue, []
        return taken

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class ScriptedHost:
    """A host over one `ScriptedAgent`."""

    agent: ScriptedAgent
    cwd: Path = Path("/home/ada/weather")
    mode: str = "ask"
    sandbox: str = "bubblewrap"
    events: list[AgentEvent] = field(default_factory=list)
    stored: list[SessionInfo] = field(default_factory=list)
    open_error: str = ""
    hold_open: bool = False  # opening never ends
    open_progress: list[Progress] = field(default_factory=list)
    closed: int = 0
    opened_sessions: list[str] = field(default_factory=list)
    own_commands: dict[str, str] = field(default_factory=dict)
    look: FirstLook | None = None
    look_seen: int = 0
    engine_views: list[EngineView] = field(default_factory=list)  # one a look; the last one stays
    measured: int = 0
    trace: Timeline | None = None
    n_jobs: int = 0
    session_rules: tuple[str, ...] = ()
    set_values: list[tuple[str, str, str]] = field(default_factory=list)
    running: list[JobInfo] = field(default_factory=list)

    @property
    def info(self) -> HostInfo:
        n_jobs, rules = self.n_jobs, self.session_rules
        return HostInfo(
            "qwen2.5-coder-0.5b", "cpu", self.sandbox, self.mode, self.cwd, 32768, "s1", "0.1.0", n_jobs, rules
        )

    async def open(self, on_progress: OnProgress) -> AgentLike:
        for progress in self.open_progress:
            on_progress(progress)
        if self.hold_open:
            await asyncio.Event().wait()
        if self.open_error:
            raise HostError(self.open_error)
        return self.agent

    def history(self) -> Sequence[AgentEvent]:
        return self.events

    async def new_session(self) -> AgentLike:
        self.events = []
        return self.agent

    async def resume(self, session_id: str) -> AgentLike:
        if all(session.id != session_id for session in self.stored):
            raise HostError(f"There is no session {session_id}.")
        self.opened_sessions.append(session_id)
        return self.agent

    async def undo(self) -> str:
        return "Restored src/app.py."

    async def redo(self) -> str:
        return "Changed src/app.py again."

    def name_session(self, name: str) -> str:
        return f"It is now called {name}."

    def changes(self) -> Sequence[FileDiff]:
        return [FileDiff("src/app.py", "one\ntwo\n", "one\nthree\n")]

    def last_trace(self) -> Timeline | None:
        return self.trace

    def settings(self) -> Sequence[tuple[str, str, str]]:
        return self.set_values

    def servers(self) -> str:
        return "docs: running, 2 tools"

    def jobs(self) -> Sequence[JobInfo]:
        return self.running

    async def stop_job(self, id: str) -> str:
        if all(job.id != id for job in self.running):
            raise HostError(f"There is no job {id}.")
        self.running = [job for job in self.running if job.id != id]
        return f"Ended {id}."

    async def repo_map(self) -> str:
        return "src/app.py:\n  def main()"

    def commands(self) -> Sequence[SlashCommand]:
        return [SlashCommand(name, f"the command {name}", "[text]") for name in self.own_commands]

    def expand(self, name: str, argument: str) -> str:
        if name not in self.own_commands:
            raise HostError(f"There is no command {name}.")
        return self.own_commands[name].replace("$ARGUMENTS", argument)

    def sessions(self) -> Sequence[SessionInfo]:
        return self.stored

    def models(self) -> Sequence[str]:
        return ["qwen2.5-coder-0.5b", "smollm2-135m"]

    async def use_model(self, name: str, on_progress: OnProgress) -> AgentLike:
        raise HostError(f"There is no model {name}.")

    async def first_look(self) -> FirstLook | None:
        return self.look

    def note_first_look_seen(self) -> None:
        self.look_seen += 1

    def engine(self) -> EngineView | None:
        return self.engine_views.pop(0) if len(self.engine_views) > 1 else next(iter(self.engine_views), None)

    async def measure_memory(self) -> None:
        self.measured += 1

    async def close(self) -> None:
        self.closed += 1

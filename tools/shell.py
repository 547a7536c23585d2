"""The `shell` tools: a command line, in the foreground or as a background job whose output can be asked for."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .base import NO_OUTPUT, Access, BaseTool, ToolContext, ToolError, ToolResult, object_schema
from .environment import command_environment
from .kept_git import GitGuard
from .output import TAIL_CHARS, KeptOutput, LiveOutput
from .processes import Process, start
from .reaper import Reaper
from .reaper_exec import end_all
from .redact import AsItIs, BlankedOutput, Redactor
from .sandbox import SandboxPolicy, confinement_note, wrapped
from .terminal_text import TerminalText
from .workspace import Workspace

DEFAULT_TIMEOUT_S = 120
MAX_TIMEOUT_S = 3600


@dataclass(slots=True)
class Job:
    """A started command and what it has said; `fresh` was not yet told by shell_output (bounded)."""

    id: str
    command: str
    output: KeptOutput
    text: TerminalText
    process: Process
    blank: BlankedOutput | AsItIs
    started_s: float = 0.0  # by the clock of its `Jobs`
    guard: GitGuard | None = None
    fresh: list[str] = field(default_factory=list[str])
    fresh_chars: int = 0
    lost_chars: int = 0

    def heard(self, text: str) -> None:
        """Take cleaned output."""
        text = self.blank(text)
        self.output.add(text)
        self.fresh.append(text)
        self.fresh_chars += len(text)
        while self.fresh_chars > TAIL_CHARS and len(self.fresh) > 1:
            dropped = len(self.fresh.pop(0))
            self.fresh_chars -= dropped
            self.lost_chars += dropped

    async def git_note(self) -> str:
        """What of git's settings the command, which has ended, was not allowed to change; "" nothing."""
        note = await asyncio.to_thread(self.guard.close) if self.guard is not None else ""
        return f"\n{note}" if note else ""

    def last_line(self) -> str:
        """The last whole line that is not empty, or "". What is secret in it was blanked."""
        self.text.settle()
        return self.output.last_line()


class Jobs:
    """All commands of one session. `close` ends what still runs, children left behind included; so does the end of this
    program, even when it is killed."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment = environment
        self._clock = clock
        self._numbers = itertools.count(1)
        self._background: dict[str, Job] = {}
        self._started: list[Job] = []
        self._redactor = Redactor(environment)
        self._reaper = Reaper()

    async def start(self, context: ToolContext, command: str) -> Job:
        """Start a command line; raises ToolError when that is impossible."""
        workspace: Workspace = context.workspace
        await asyncio.to_thread(self._redactor.refresh, workspace)
        blank, blank_live = (AsItIs() if context.reveal else self._redactor.output(workspace) for _ in range(2))
        number = next(self._numbers)
        output = KeptOutput(workspace.log_folder / f"command-{number}.log")
        live = LiveOutput(context.on_output, asyncio.get_running_loop().time)
        text = TerminalText(lambda piece: job.heard(piece), lambda piece: live.add(blank_live(piece)))
        environment = command_environment(
            os.environ if self._environment is None else self._environment, workspace.root
        )
        policy: SandboxPolicy | None = context.sandbox
        guard: GitGuard | None = None
        try:
            guard = await asyncio.to_thread(policy.guard) if policy is not None else None
            line = wrapped([_shell(), "-c", "--", command], policy, guard)
            process = start(line, workspace.root, environment, number, self._reaper, text.feed)
        except (OSError, ValueError) as error:
            if guard is not None:
                guard.close()
            raise ToolError(f"the command could not be started: {error}") from error
        job = Job(f"job-{number}", command, output, text, process, blank, self._clock(), guard)
        if guard is not None:
            loop = asyncio.get_running_loop()
            process.exited.add_done_callback(lambda _: loop.run_in_executor(None, guard.close))
        self._started.append(job)
        return job

    def keep(self, job: Job) -> None:
        """Make a job known by its id."""
        self._background[job.id] = job

    def running(self) -> tuple[Job, ...]:
        """Those in the background that run, oldest first."""
        return tuple(job for job in self._background.values() if not job.process.exited.done())

    @property
    def n_running(self) -> int:
        """How many of them run."""
        return len(self.running())

    def age_s(self, job: Job) -> float:
        """Seconds since it was started."""
        return self._clock() - job.started_s

    def get(self, id: str) -> Job:
        """The job with this id (`job-3`, or just `3`); raises ToolError naming those there are."""
        job = self._background.get(id) or self._background.get(f"job-{id}")
        if job is None:
            raise ToolError(f"no background job {id!r}; jobs: {', '.join(self._background) or 'none'}")
        return job

    async def stop(self, job: Job) -> bool:
        """End a job and all it started; False when it had ended before."""
        ran = not job.process.exited.done()
        await asyncio.shield(job.process.kill())
        return ran

    def close(self) -> None:
        """End everything that still runs."""
        if not self._started:
            return
        for job in self._started:
            job.process.kill_now()
        end_all(f"{self._reaper.mark}.")
        for job in self._started:
            if job.guard is not None:
                job.guard.close()
        self._started.clear()
        self._reaper.close()


def _shell() -> str:
    return shutil.which("bash") or "/bin/sh"


class ShellTool(BaseTool):
    """Runs a command line in the workspace."""

    name = "shell"
    access: Access = "execute"
    description = (
        "Run a bash command in the workspace folder. No terminal: nothing can be typed in. background=true "
        "returns an id at "
        "once; see shell_output and shell_kill."
    )
    parameters = object_schema(
        {
            "command": {"type": "string"},
            "timeout_s": {"type": "integer", "default": DEFAULT_TIMEOUT_S},
            "background": {"type": "boolean", "default": False},
            "description": {"type": "string"},
        },
        ("command",),
    )

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`shell: COMMAND`."""
        return f"shell: {arguments.get('command', '')}"

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """None: the command line is judged by what it says."""
        return ()

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        command: str = arguments["command"]
        if not command.strip() or "\x00" in command:
            raise ToolError("the command is empty" if "\x00" not in command else "the command holds a NUL character")
        timeout_s = min(max(1, arguments.get("timeout_s", DEFAULT_TIMEOUT_S)), MAX_TIMEOUT_S)
        job = await self.jobs.start(context, command)
        if arguments.get("background", False):
            self.jobs.keep(job)
            return ToolResult(
                f"Started in the background with id {job.id}. shell_output shows what it says, shell_kill ends it."
            )
        try:
            code = await job.process.wait(timeout_s)
            if code is None:
                await job.process.kill()
        except asyncio.CancelledError:
            await asyncio.shield(job.process.kill())
            job.text.finish()
            raise
        job.text.finish()
        shown = job.output.text()
        job.output.close()
        if code is None:
            return ToolResult(
                _joined(shown, f"[timed out after {timeout_s} s and was ended; for servers use background=true]")
                + await job.git_note(),
                True,
            )
        note = confinement_note(context.sandbox, shown) if code != 0 else ""
        note += await job.git_note()
        return ToolResult(_joined(shown, _ending(code)) + note, is_error=code != 0)


def _joined(shown: str, note: str) -> str:
    if not shown:
        return note or NO_OUTPUT
    if not note:
        return shown
    return f"{shown}{'' if shown.endswith(chr(10)) else chr(10)}{note}"


def _ending(code: int) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"[ended by signal {-code}: {signal.strsignal(-code) or 'unknown'}]"
    return f"[exit code {code}]"


class ShellOutputTool(BaseTool):
    """What a background job has said since the last look."""

    name = "shell_output"
    access: Access = "none"
    description = "Show the new output of a background command and whether it still runs."
    parameters = object_schema({"id": {"type": "string"}}, ("id",))

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def title(self, arguments: Mapping[str, Any]) -> str:
        """`shell_output ID`."""
        return f"{self.name} {arguments.get('id', '')}"

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        job = self.jobs.get(arguments["id"])
        return ToolResult(await _news(job, self.jobs.age_s(job)))


class ShellKillTool(ShellOutputTool):
    """Ends a background job."""

    name = "shell_kill"
    description = "End a background command and all it started; shows its last output."

    async def execute(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        job = self.jobs.get(arguments["id"])
        ran = await self.jobs.stop(job)
        news = await _news(job, self.jobs.age_s(job))
        return ToolResult(_joined(news, "[ended by shell_kill]" if ran else "[it had ended before]"))


async def _news(job: Job, age_s: float) -> str:
    """What it has said since the last look, and its state: with its age, so that waiting for it is no circle."""
    await asyncio.sleep(0)  # takes in what has come meanwhile
    done = job.process.exited.done()
    code = await job.process.wait(0) if done else None
    if done:
        job.text.finish()
    partial = "" if done else job.blank.unfinished(job.text.settle())
    lost = f"[… {job.lost_chars:,} characters left out]\n" if job.lost_chars else ""
    text = lost + "".join(job.fresh) + partial
    job.fresh, job.fresh_chars, job.lost_chars = [], 0, 0
    state = f"[still running, after {age_s:.0f} s]" if not done else (_ending(code or 0) or "[exit code 0]")
    return _joined(text, state) + (await job.git_note() if done else "")

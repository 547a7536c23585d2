"""What the interactive front ends (TUI, plain) need: the agent's three methods and the host's services.

The composition root (`cli.py`) passes one `Host` to `run_tui(host)` or `run_plain(host)`; both own their event loop, so
everything bound to a loop is made inside `Host.open`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pointcode_local.complete import SlashCommand
from pointcode_local.events import AgentEvent, Command, FileDiff, SessionInfo


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What the status line and the first screen show; asked again after `open`, `resume` and `use_model`."""

    model: str  # e.g. "qwen2.5-coder-0.5b"
    backend: str  # e.g. "cpu", "megakernel", "http://…"
    sandbox: str  # e.g. "bubblewrap", "landlock", "none"; "" not known yet
    mode: str  # permission mode: ask, accept-edits, plan, auto
    cwd: Path
    context_limit: int = 0  # tokens; 0: not known yet
    session_id: str = ""
    version: str = ""
    n_jobs: int = 0  # background commands that run
    session_rules: tuple[str, ...] = ()  # what the person allowed for this session only


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A command that the model left running."""

    id: str  # e.g. "job-3"
    command: str
    age_s: float
    last_line: str  # of its output; "" when it has said nothing


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of opening a model, e.g. "Downloading qwen2.5-coder-0.5b"; `total` 0: length unknown."""

    text: str
    done: int = 0
    total: int = 0  # same unit as `done`, e.g. bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found on this machine: `text` for people, `good` False where something is missing."""

    topic: str  # "GPU", "model", "sandbox", …
    text: str
    good: bool = True


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What the person should know before the first start: what was found, and what would be fetched ("" nothing)."""

    findings: tuple[Finding, ...]
    download: str = ""  # e.g. "qwen2.5-coder-0.5b, 491 MB, licence Apache-2.0"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request inside the engine: `done_tokens` of its prompt are read, `new_tokens` are written."""

    id: int
    state: Literal["waiting", "reading", "writing"]
    prompt_tokens: int
    done_tokens: int
    cached_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True)
class PagePool:
    """Pages of the KV cache: `used` by requests, `cached` for reuse, the rest free."""

    name: str  # "all layers", "full layers", "sliding layers"
    used: int
    cached: int
    total: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """A snapshot of the engine in this process. Counters grow from its start; a difference of two views is a rate."""

    model: str
    backend: str
    n_threads: int
    max_rows: int
    steps: int  # decode steps
    busy_s: float  # time inside them
    prefill_tokens: int
    prefill_s: float
    n_finished: int
    requests: tuple[EngineRequest, ...]
    pools: tuple[PagePool, ...]
    page_tokens: int
    step_bytes: int = 0  # what one step of the present batch must read from memory; 0 not known
    ceiling_bytes_per_s: float = 0.0  # what the memory gives; 0 not measured
    drafted_tokens: int = 0  # tried ahead by speculation; 0: none so far
    accepted_tokens: int = 0


OnProgress = Callable[[Progress], None]


class AgentLike(Protocol):
    """The agent as front ends see it. One `run` at a time; prompts sent meanwhile are queued by the agent."""

    def run(self, prompt: str) -> AsyncIterator[AgentEvent]:
        """Play one turn (and those queued meanwhile); ends after the last `TurnFinished`."""
        ...

    def compact(self) -> AsyncIterator[AgentEvent]:
        """Shorten the conversation now; a stream as that of `run`, and not while one runs."""
        ...

    def send(self, command: Command) -> None:
        """Hand in an answer, a mode change, or a prompt for the running turn. Never blocks."""
        ...

    def cancel(self) -> None:
        """Stop the running turn at once; its stream still ends with `TurnFinished("cancelled")`."""
        ...

    def take_queue(self) -> list[str]:
        """Take back the prompts that wait, to put them into the editor after a cancel."""
        ...

    def note(self, text: str) -> None:
        """Tell the model what happened outside of its turns; it reads it with the next prompt. Not during a turn."""
        ...


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """What a processor (an SM, a worker thread) did from `begin_us` to `end_us`; `kind` "" is waiting."""

    processor: int
    kind: str
    begin_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One traced decode step, and the file that it is from; `processor` names the rows."""

    path: Path
    processor: str
    spans: tuple[TimelineSpan, ...]  # not empty


class Host(Protocol):
    """The services beside the event stream. Async methods may raise `HostError` with a message for people."""

    @property
    def info(self) -> HostInfo:
        """What the status line shows."""
        ...

    async def open(self, on_progress: OnProgress) -> AgentLike:
        """Load (or fetch) the model and open the session asked for on the command line. Called once, first."""
        ...

    def history(self) -> Sequence[AgentEvent]:
        """The open session's events so far, for replay."""
        ...

    async def new_session(self) -> AgentLike:
        """Start an empty session in the same folder with the same model."""
        ...

    async def resume(self, session_id: str) -> AgentLike:
        """Open a stored session."""
        ...

    async def undo(self) -> str:
        """Restore the files the last turn changed; returns one line that says what was done."""
        ...

    async def redo(self) -> str:
        """Make the changes that `undo` took back again; returns one line that says what was done."""
        ...

    def name_session(self, name: str) -> str:
        """Name the open session for lists; returns one line that says so."""
        ...

    def changes(self) -> Sequence[FileDiff]:
        """What the session's turns changed so far, one for each file."""
        ...

    def commands(self) -> Sequence[SlashCommand]:
        """The slash commands that the person and the project wrote."""
        ...

    def expand(self, name: str, argument: str) -> str:
        """The prompt that such a command makes. It is a prompt whatever it begins with: no command, no `!`."""
        ...

    def settings(self) -> Sequence[tuple[str, str, str]]:
        """(key, value, where from) of each setting that is not the default."""
        ...

    def servers(self) -> str:
        """The MCP servers with their state and tools, one a line; "" when there are none."""
        ...

    def jobs(self) -> Sequence[JobInfo]:
        """The commands that the model left running, oldest first."""
        ...

    async def stop_job(self, id: str) -> str:
        """End one of them (`job-3`, or just `3`) and all it started; returns one line that says what was done."""
        ...

    async def repo_map(self) -> str:
        """The repository's map: its most used definitions, grouped by file."""
        ...

    def sessions(self) -> Sequence[SessionInfo]:
        """Stored sessions of this folder, newest first."""
        ...

    def models(self) -> Sequence[str]:
        """Models that `use_model` can open now."""
        ...

    async def use_model(self, name: str, on_progress: OnProgress) -> AgentLike:
        """Go on with this conversation on another model."""
        ...

    async def first_look(self) -> FirstLook | None:
        """What was found here, to be shown before `open`; None when the person has seen it and nothing is fetched."""
        ...

    def note_first_look_seen(self) -> None:
        """The person went on from the first look: it is not shown again."""
        ...

    def engine(self) -> EngineView | None:
        """The engine at this moment; None when the model runs elsewhere or is not open."""
        ...

    def last_trace(self) -> Timeline | None:
        """The last step that was traced on this machine; None when there is none."""
        ...

    async def measure_memory(self) -> None:
        """Find out what the memory gives, for `EngineView.ceiling_bytes_per_s`; once, while nothing runs."""
        ...

    async def close(self) -> None:
        """Stop the engine and flush the session. Called once, last, also after errors."""
        ...


class EditorHost(Host, Protocol):
    """A host for an editor: its session is known before the model is open."""

    def open_session(self) -> str:
        """Open the session that was asked for, without the model; returns its id. `open` then loads the model."""
        ...

    def may_read(self, path: Path) -> bool:
        """May this file be shown to the model without asking? After `open`."""
        ...

    def notices(self) -> Sequence[str]:
        """What the person should know before the first prompt: settings that were ignored, no sandbox. After `open`."""
        ...

    def attach(self, source: str, text: str) -> bool:
        """Add text that goes with the next prompt to the history, e.g. a file that the editor holds. Not in a turn."""
        ...


class ToolAdapter(Protocol):
    """Puts tools of the editor in the place of ours. Tools and workspace are those of `tools.base`."""

    def adapt(self, tools: Mapping[str, Any], workspace: Any) -> Mapping[str, Any]:
        """The tools by name; may change where the workspace's files come from."""
        ...

    async def prepare(self, tool: Any, arguments: Mapping[str, Any]) -> None:
        """Get what the preview of a call needs, before the person is asked about it."""
        ...


class Hosts(Protocol):
    """Makes the hosts of one process that serves several sessions at once; they share their models."""

    def host(
        self, cwd: Path, *, session_id: str = "", servers: Mapping[str, Any] | None = None, adapter: ToolAdapter
    ) -> EditorHost:
        """A host for a new session (or a stored one) in `cwd`. Raises HostError for settings that cannot be used.

        `servers` are the editor's MCP servers in the form of the settings' `mcp_servers`; `adapter` changes the tools.
        """
        ...

    def sessions(self, cwd: Path | None) -> Sequence[SessionInfo]:
        """Stored sessions of a folder, or of all, newest first."""
        ...

    def remove(self, session_id: str) -> None:
        """Delete a stored session. Raises HostError."""
        ...

    def remove_unused(self, session_id: str) -> None:
        """Delete a stored session, unless something was said in it or somebody has it open."""
        ...

    async def close(self) -> bool:
        """Free the models; called once, after all hosts. False: one was still loading, and its thread goes on."""
        ...


class HostError(Exception):
    """An expected failure of a host service; the text is for people."""

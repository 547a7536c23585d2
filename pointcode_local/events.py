"""The whole contract between the agent and its front ends: events out, commands in.

Events are balanced: every `…Started`/`…Asked` has its `…Finished`/`…Answered`, also on cancel and on error. The session
log is this same stream as JSON lines; replaying it rebuilds the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Outcome = Literal["done", "denied", "limit", "error", "cancelled"]
Mode = Literal["ask", "accept-edits", "plan", "auto"]  # of permissions
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The user's prompt was accepted; one turn may take many model calls."""

    prompt: str


@dataclass(frozen=True, slots=True)
class ContextAdded:
    """Text that nobody typed enters the history: project rules, a mentioned file, the folder, a note to the model.

    It becomes part of the next user message, before the prompt's own words where it follows a `TurnStarted`; `after`:
    behind them.
    """

    source: str  # "AGENTS.md", "@src/app.py", "environment", "note"
    text: str
    after: bool = False


@dataclass(frozen=True, slots=True)
class Steered:
    """A message that the person sent while the turn ran enters the history, before the next model call."""

    prompt: str


@dataclass(frozen=True, slots=True)
class PromptQueued:
    """A message that the person sent while the turn ran waits for its end; `TurnStarted` takes it from the queue."""

    prompt: str


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """The permission mode from now on."""

    mode: str


@dataclass(frozen=True, slots=True)
class PrefillChanged:
    """`done_tokens` of `total_tokens` prompt tokens are read, `cached_tokens` of them from the cache."""

    done_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the model's answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A tool call is being written by the model; `text` is the next piece of its arguments."""

    call_id: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One model reply is complete, as it goes into the history (a cut reply is kept as far as it came)."""

    text: str
    reasoning: str
    tool_calls: tuple[tuple[str, str, str], ...]  # (id, name, arguments as written)


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A permitted call begins to run; `title` is one line for people, e.g. `shell: pytest -q`."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    title: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """New output of a running call (already cleaned of escape sequences)."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What a call did, or would do, to one file; `before` None: created, `after` None: deleted. For people only."""

    path: str
    before: str | None
    after: str | None

    @property
    def lines(self) -> tuple[list[str], list[str]]:
        """The lines before and after with their ends, so that a missing final newline is a difference."""
        return _whole_lines(self.before or ""), _whole_lines(self.after or "")


def _whole_lines(text: str) -> list[str]:
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """The result as the model gets it. Every call of a reply has exactly one, denied and interrupted calls too."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    text: str
    is_error: bool
    diffs: tuple[FileDiff, ...] = ()
    denied: str = ""  # why it was not allowed, else ""
    changed: tuple[str, ...] = ()  # files that a command changed, as far as that is known


@dataclass(frozen=True, slots=True)
class PermissionAsked:
    """A call waits for the person. `rule` is what "always" would store, shown exactly as stored; "session" means the
    same rule until the session is left."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    title: str
    reason: str
    rule: str
    diffs: tuple[FileDiff, ...] = ()

    @property
    def offers_session(self) -> bool:
        """Is "session" to be offered? For edits the mode accept-edits takes its place."""
        return bool(self.rule) and not self.diffs


@dataclass(frozen=True, slots=True)
class PermissionAnswered:
    """The person's, or the policy's, answer to `PermissionAsked`."""

    call_id: str
    answer: Literal["once", "session", "always", "deny"]


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """The model asks the person through the `ask` tool."""

    call_id: str
    question: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    """The person's answer to `QuestionAsked`."""

    call_id: str
    answer: str


@dataclass(frozen=True, slots=True)
class TodoChanged:
    """The plan as it stands: (text, status) with status pending, in_progress or done."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class UsageChanged:
    """After each model call. Token counts are of this call; `context_tokens` is what the conversation now takes."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    time_to_first_token_s: float
    tokens_per_second: float
    context_tokens: int
    context_limit: int


@dataclass(frozen=True, slots=True)
class CompactionStarted:
    """The conversation is about to be shortened because `context_tokens` came near the limit."""

    context_tokens: int


@dataclass(frozen=True, slots=True)
class CompactionFinished:
    """The conversation now takes `context_tokens`; `summary` stands for the messages that were dropped.

    The new history is its first `n_head` messages, the summary as a user message, and those from `first_kept` on.
    `summary` "" means that it failed and nothing was dropped.
    """

    context_tokens: int
    summary: str
    n_head: int = 0
    first_kept: int = 0


@dataclass(frozen=True, slots=True)
class ResultsCut:
    """The results of the last reply's calls, which the model has not seen yet, were together too long for its context:
    each now has at most about `max_chars` characters."""

    max_chars: int


@dataclass(frozen=True, slots=True)
class ErrorRaised:
    """Something failed; `temporary` errors are worth retrying."""

    message: str
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The turn is over. `turns` counts the model calls."""

    outcome: Outcome
    text: str
    turns: int
    error: str | None = None


AgentEvent = (
    TurnStarted
    | ContextAdded
    | Steered
    | PromptQueued
    | ModeChanged
    | PrefillChanged
    | ReasoningDelta
    | TextDelta
    | ToolCallDelta
    | AssistantMessage
    | ToolStarted
    | ToolProgress
    | ToolFinished
    | PermissionAsked
    | PermissionAnswered
    | QuestionAsked
    | QuestionAnswered
    | TodoChanged
    | UsageChanged
    | CompactionStarted
    | CompactionFinished
    | ResultsCut
    | ErrorRaised
    | TurnFinished
)


# --------------------------------------------------------------------------------------------------- commands
@dataclass(frozen=True, slots=True)
class Prompt:
    """A message of the person; while a turn runs it is queued, or with `steer` put before the next model call."""

    text: str
    steer: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to PermissionAsked ("once", "session", "always", "deny") or to QuestionAsked (free text)."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class SetMode:
    """Change the permission mode from the next call on."""

    mode: Mode


Command = Prompt | Answer | SetMode


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One stored session, for lists and pickers."""

    id: str
    title: str
    cwd: str
    updated_s: float  # Unix time
    n_prompts: int = 0

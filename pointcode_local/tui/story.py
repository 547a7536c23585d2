"""Events folded into what a screen shows: an append-only list of records, open questions, plan and usage.

Pure state, no widgets: a log of any length is replayed here first, and only the last records become widgets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    ContextAdded,
    ErrorRaised,
    FileDiff,
    ModeChanged,
    PermissionAnswered,
    PermissionAsked,
    PrefillChanged,
    PromptQueued,
    QuestionAnswered,
    QuestionAsked,
    ReasoningDelta,
    ResultsCut,
    Steered,
    TextDelta,
    TodoChanged,
    ToolCallDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UsageChanged,
)
from pointcode_local.heldback import HeldBack, is_block_of_call
from pointcode_local.render import added_to_prompt, call_title, limit_text, one_line, plural, short_count

NOTHING_LEFT_OUT = "Nothing of the conversation was left out."
ToolState = Literal["writing", "waiting", "running", "done", "error", "denied", "stopped"]
NoticeKind = Literal["info", "warning", "error"]
_PATH_ARGUMENT = re.compile(r'"(?:path|command|pattern)"\s*:\s*"((?:[^"\\]|\\.){1,300})"')
_KEPT_OUTPUT = 200_000  # characters of live output kept for display


@dataclass(slots=True, eq=False)
class UserRecord:
    """What the person said; `steered` when it was put into the running turn."""

    text: str
    steered: bool = False


@dataclass(slots=True, eq=False)
class TextRecord:
    """Streamed text; `parts` only grows, `done` is set when no more comes."""

    parts: list[str] = field(default_factory=list)
    done: bool = False

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.parts)


@dataclass(slots=True, eq=False)
class AnswerRecord(TextRecord):
    """A piece of the model's answer, as Markdown; `is_call` once it has become a call, whose card shows the same."""

    is_call: bool = False


@dataclass(slots=True, eq=False)
class ThinkingRecord(TextRecord):
    """A piece of the model's thinking."""


@dataclass(slots=True, eq=False)
class ToolRecord:
    """One tool call from its first written character to its result."""

    call_id: str
    name: str
    title: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    state: ToolState = "writing"
    written: int = 0  # characters of arguments the model has written so far
    head: str = ""  # their beginning
    output: list[str] = field(default_factory=list)
    output_size: int = 0
    result: str = ""
    denied: str = ""
    diffs: tuple[FileDiff, ...] = ()
    changed: tuple[str, ...] = ()  # files that a command changed

    @property
    def is_open(self) -> bool:
        """Whether more of it will come."""
        return self.state in ("writing", "waiting", "running")


@dataclass(slots=True, eq=False)
class NoticeRecord:
    """One line from the program itself."""

    text: str
    kind: NoticeKind = "info"


Record = UserRecord | AnswerRecord | ThinkingRecord | ToolRecord | NoticeRecord
Ask = PermissionAsked | QuestionAsked


class Story:
    """The state of one conversation as a front end shows it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.asks: dict[str, Ask] = {}
        self.queued: list[str] = []
        self.steering: list[str] = []  # sent into the running turn, not yet read by the model
        self.todo: tuple[tuple[str, str], ...] = ()
        self.usage: UsageChanged | None = None
        self.prefill: PrefillChanged | None = None
        self.context_tokens = 0
        self.mode = ""  # "" until the first ModeChanged
        self.in_turn = False
        self.doing = ""  # one word for the activity line
        self._tools: dict[str, ToolRecord] = {}
        self._text: AnswerRecord | ThinkingRecord | None = None
        self._answer: AnswerRecord | None = None  # of this reply
        self._held_back = HeldBack()
        self._denials: set[str] = set()  # the sentences in which the agent tells of the turn's denied calls
        self._message_has_reasoning = False

    def apply(self, event: AgentEvent) -> list[Record]:
        """Fold one event in; returns the records that are new or changed."""
        match event:
            case TextDelta() | ReasoningDelta() | AssistantMessage():
                return self._said(event)
            case ToolCallDelta() | ToolStarted() | ToolProgress() | ToolFinished():
                return self._called(event)
            case PermissionAsked() | QuestionAsked():
                return self._asked(event)
            case PermissionAnswered(call_id=call_id) | QuestionAnswered(call_id=call_id):
                self.asks.pop(call_id, None)
                return []
            case PrefillChanged() | UsageChanged() | TodoChanged() | ModeChanged():
                self._know(event)
                return []
            case CompactionStarted() | CompactionFinished():
                return self._compaction(event)
            case ResultsCut():
                return []
            case ErrorRaised(message=message, temporary=temporary):
                hint = " (temporary: send the message again to retry)" if temporary else ""
                return self.note(message + hint, "error")
            case ContextAdded(source=source, text=text):
                return [] if source in ("environment", "note") else self.note(added_to_prompt(source, text))
            case TurnStarted() | Steered() | PromptQueued():
                return self._prompted(event)
            case TurnFinished():
                return self._turn_finished(event)
            case _:
                assert_never(event)

    def note(self, text: str, kind: NoticeKind = "info") -> list[Record]:
        """Add one line from the program itself."""
        closed = self._close_text()
        record = NoticeRecord(text, kind)
        self.records.append(record)
        return [*closed, record]

    def nothing_waits(self) -> None:
        """The messages that waited were taken back, or all of them were read."""
        self.queued.clear()
        self.steering.clear()

    def show_changes(self, diffs: tuple[FileDiff, ...]) -> list[Record]:
        """Add a card with what the session changed."""
        what = one_line(diffs[0].path) if len(diffs) == 1 else plural(len(diffs), "file")
        record = ToolRecord("", "changed", f"changed {what}", state="done", diffs=diffs)
        return [*self._close_text(), self._add(record)]

    def _add(self, record: Record) -> Record:
        self.records.append(record)
        return record

    def _close_text(self) -> list[Record]:
        record, self._text = self._text, None
        if record is None:
            return []
        record.done = True
        return [record]

    def _write(self, kind: type[AnswerRecord] | type[ThinkingRecord], text: str) -> list[Record]:
        self.doing = "Writing" if kind is AnswerRecord else "Thinking"
        self.prefill = None
        touched: list[Record] = []
        if not isinstance(self._text, kind):
            if not text.strip():
                return []
            touched = self._close_text()
            self._text = kind()
            self._answer = self._text if isinstance(self._text, AnswerRecord) else self._answer
            self.records.append(self._text)
        self._text.parts.append(text)
        return [*touched, self._text]

    def _said(self, event: TextDelta | ReasoningDelta | AssistantMessage) -> list[Record]:
        match event:
            case TextDelta(text=text):
                told = not text or text in self._denials  # the denied call's card says it
                return [] if told else self._write(AnswerRecord, self._held_back.feed(text))
            case ReasoningDelta(text=text):
                self._message_has_reasoning = True
                return self._write(ThinkingRecord, text)
            case AssistantMessage():
                return self._message(event)

    def _message(self, event: AssistantMessage) -> list[Record]:
        touched: list[Record] = []  # a session log may keep whole messages only
        if event.reasoning.strip() and not self._message_has_reasoning:
            touched += self._write(ThinkingRecord, event.reasoning)
        is_call = is_block_of_call(event)
        if (rest := self._held_back.rest(event.text)) and rest not in self._denials and not is_call:
            touched += self._write(AnswerRecord, rest)
        if is_call and self._answer is not None:
            self._answer.is_call = True
            touched.append(self._answer)
        self._message_has_reasoning, self._answer = False, None
        return [*touched, *self._close_text()]

    def _tool(self, call_id: str, name: str) -> tuple[ToolRecord, list[Record]]:
        record = self._tools.get(call_id)
        if record is not None:
            return record, []
        closed = self._close_text()
        record = ToolRecord(call_id, name, title=name)
        self._tools[call_id] = record
        self.records.append(record)
        return record, closed

    def _called(self, event: ToolCallDelta | ToolStarted | ToolProgress | ToolFinished) -> list[Record]:
        match event:
            case ToolCallDelta():
                return self._tool_written(event)
            case ToolStarted():
                return self._tool_started(event)
            case ToolProgress():
                return self._tool_output(event)
            case ToolFinished():
                return self._tool_finished(event)

    def _tool_written(self, event: ToolCallDelta) -> list[Record]:
        record, closed = self._tool(event.call_id, event.name)
        record.name = event.name or record.name
        record.written += len(event.text)
        if len(record.head) < 500:
            record.head += event.text
            found = _PATH_ARGUMENT.search(record.head)
            record.title = one_line(f"{record.name} {found.group(1)}" if found else record.name)
        self.doing, self.prefill = "Writing a tool call", None
        return [*closed, record]

    def _tool_started(self, event: ToolStarted) -> list[Record]:
        record, closed = self._tool(event.call_id, event.name)
        record.name, record.arguments = event.name, event.arguments
        record.title = event.title or call_title(event.name, event.arguments)
        record.state = "running"
        self.doing = f"Running {event.name}"
        return [*closed, record]

    def _tool_output(self, event: ToolProgress) -> list[Record]:
        record, closed = self._tool(event.call_id, "tool")
        record.output.append(event.text)
        record.output_size += len(event.text)
        if record.output_size > 2 * _KEPT_OUTPUT:
            record.output = ["".join(record.output)[-_KEPT_OUTPUT:]]
            record.output_size = _KEPT_OUTPUT
        return [*closed, record]

    def _tool_finished(self, event: ToolFinished) -> list[Record]:
        record, closed = self._tool(event.call_id, event.name)
        if record.state == "writing" or not record.arguments:
            record.arguments = event.arguments
            record.title = call_title(event.name, event.arguments)
        record.name, record.result = event.name, event.text
        record.diffs, record.denied, record.changed = event.diffs, event.denied, event.changed
        if event.denied:
            self._denials.add(f"Denied: {event.denied}.")
        record.state = "denied" if event.denied else "error" if event.is_error else "done"
        record.output.clear()
        self.asks.pop(event.call_id, None)
        self.doing = ""
        return [*closed, record]

    def _asked(self, event: Ask) -> list[Record]:
        self.asks[event.call_id] = event
        self.doing = "Waiting for you"
        record, closed = self._tool(event.call_id, event.name if isinstance(event, PermissionAsked) else "ask")
        if isinstance(event, PermissionAsked):
            record.arguments, record.diffs = event.arguments, event.diffs
            record.title = event.title or call_title(event.name, event.arguments)
        record.state = "waiting"
        return [*closed, record]

    def _know(self, event: PrefillChanged | UsageChanged | TodoChanged | ModeChanged) -> None:
        match event:
            case PrefillChanged():
                self.prefill, self.doing = event, "Reading the prompt"
            case UsageChanged(context_tokens=tokens):
                self.usage, self.prefill, self.context_tokens = event, None, tokens
            case TodoChanged(items=items):
                self.todo = items
            case ModeChanged(mode=mode):
                self.mode = mode

    def _compaction(self, event: CompactionStarted | CompactionFinished) -> list[Record]:
        tokens = short_count(event.context_tokens)
        if isinstance(event, CompactionStarted):
            self.doing = "Shortening the conversation"
            return self.note(f"The conversation holds {tokens} tokens; shortening it.")
        self.context_tokens, self.doing = event.context_tokens, ""
        return self.note(f"The conversation now holds {tokens} tokens." if event.summary else NOTHING_LEFT_OUT)

    def _prompted(self, event: TurnStarted | Steered | PromptQueued) -> list[Record]:
        if isinstance(event, PromptQueued):
            self.queued.append(event.prompt)
            return []
        if isinstance(event, TurnStarted):
            self.in_turn, self.doing, self.prefill = True, "Starting", None
        self._no_longer_waits(event.prompt)
        return [*self._close_text(), self._add(UserRecord(event.prompt, steered=isinstance(event, Steered)))]

    def _no_longer_waits(self, prompt: str) -> None:
        waiting = self.steering if prompt in self.steering else self.queued
        if prompt in waiting:
            waiting.remove(prompt)

    def _turn_finished(self, event: TurnFinished) -> list[Record]:
        self.in_turn, self.doing, self.prefill = False, "", None
        self.asks.clear()
        if rest := self._held_back.abandon():
            self._write(AnswerRecord, rest)
        touched = self._close_text()
        for record in self._tools.values():
            if record.is_open:
                record.state = "stopped"
                touched.append(record)
        self._tools.clear()
        self._message_has_reasoning = False
        match event.outcome:
            case "cancelled":
                touched += self.note("Stopped.")
            case "limit":
                touched += self.note(limit_text(event), "warning")
            case "error":
                touched += self._note_error(event.error or "The turn failed.")
            case "denied" if not self._denials:
                touched += self.note("Stopped: a needed permission was denied.", "warning")
            case "denied" | "done":
                pass
        self._denials.clear()
        return touched

    def _note_error(self, message: str) -> list[Record]:
        last = self.records[-1] if self.records else None
        if isinstance(last, NoticeRecord) and last.kind == "error" and last.text.startswith(message):
            return []
        return self.note(message, "error")

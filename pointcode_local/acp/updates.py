"""Events of the agent as the protocol's session updates, live and when a stored session is replayed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acp import helpers
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    PlanEntryStatus,
    SessionInfoUpdate,
    ToolCallProgress,
    ToolCallStart,
    ToolCallStatus,
    UsageUpdate,
    UserMessageChunk,
)

from pointcode_local.acp.tool_calls import (
    Content,
    diff_content,
    is_plain_confirmation,
    kind_of,
    locations_of,
    text_content,
    title_of,
)
from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    ErrorRaised,
    FileDiff,
    PermissionAsked,
    PrefillChanged,
    ReasoningDelta,
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
from pointcode_local.heldback import HeldBack

Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | AvailableCommandsUpdate
    | CurrentModeUpdate
    | ConfigOptionUpdate
    | SessionInfoUpdate
    | UsageUpdate
    | dict[str, Any]  # kinds that the SDK has no model of
)
MAX_LIVE_CHARS = 8000  # of a running call's output: each update carries its last part
MAX_UNCLEAR_CHARS = 2000  # of a call's arguments without a path or command
LONG_PROMPT_TOKENS = 2000  # whose reading takes long enough to be told about
_SUBJECT = re.compile(r'"(path|command|pattern)"\s*:\s*"([^"\\]+)"')
_PLAN_STATUS: dict[str, PlanEntryStatus] = {"in_progress": "in_progress", "done": "completed"}


class Translator:
    """One session's events to updates. It knows which calls the editor has seen, and how they ended.

    `extras` names the optional kinds that the editor takes: "compaction", "notices".
    """

    def __init__(self, cwd: Path, extras: frozenset[str] = frozenset()) -> None:
        self._cwd = cwd
        self._extras = extras
        self._compaction = ""  # the id of the one that runs
        self._open: dict[str, str] = {}  # calls that the editor has seen and that have not ended -> output so far
        self._terminals: dict[str, str] = {}  # call -> the editor's terminal that shows it
        self._message = _new_id()
        self._held_back = HeldBack()
        self._writing: dict[str, str] = {}  # calls whose subject is not known yet -> arguments so far
        self._quarters_told = 0
        self._faults: list[str] = []  # of the running turn, untold

    def live(self, event: AgentEvent) -> list[Update]:
        """The updates of an event as it happens."""
        match event:
            case TextDelta(text):
                return [self.said(shown)] if (shown := self._held_back.feed(text)) else []
            case ReasoningDelta(text):
                return [self.thought(text)] if text else []
            case PrefillChanged():
                return self._prefill(event)
            case ToolCallDelta():
                return self._written(event)
            case AssistantMessage(text):
                rest = self._held_back.rest(text)
                said: list[Update] = [self.said(rest)] if rest else []
                self._message = _new_id()
                return said
            case ToolProgress():
                return self._progress(event)
            case CompactionStarted():
                return [self._compaction_begun(event)]
            case CompactionFinished():
                return [self._compaction_over(event)]
            case ErrorRaised(temporary=True, message=message):
                return [self.notice(message)]
            case ErrorRaised(message=message):
                self._faults.append(message)
                return []
            case TurnFinished():
                left = self._held_back.abandon()
                said = [self.said(left)] if left else []
                return [*said, *self._abandon(), *self._told_faults(event), *self._why_ended(event)]
            case _:
                return self._both(event)

    def replayed(self, event: AgentEvent) -> list[Update]:
        """The updates of an event of a stored session, whose deltas are merged into whole messages."""
        match event:
            case TurnStarted(prompt) | Steered(prompt):
                return [_user(prompt)]
            case AssistantMessage():
                updates: list[Update] = [self.thought(event.reasoning)] if event.reasoning else []
                updates += [self.said(event.text)] if event.text else []
                self._message = _new_id()
                return updates
            case TurnFinished():
                return [*self._abandon(), *self._why_ended(event)]
            case _:
                return self._both(event)

    def _both(self, event: AgentEvent) -> list[Update]:
        match event:
            case ToolStarted():
                return self._started(event)
            case ToolFinished():
                return self._finished(event)
            case TodoChanged(items):
                return [_plan(items)]
            case UsageChanged():
                return [_usage(event)]
            case _:
                return []

    # ------------------------------------------------------------------------------------------- text
    def said(self, text: str) -> AgentMessageChunk:
        """A piece of the answer."""
        return AgentMessageChunk(
            session_update="agent_message_chunk", content=helpers.text_block(text), message_id=self._message
        )

    def thought(self, text: str) -> AgentThoughtChunk:
        """A piece of thinking, or what the engine is doing."""
        return AgentThoughtChunk(
            session_update="agent_thought_chunk", content=helpers.text_block(text), message_id=f"{self._message}-t"
        )

    def notice(self, text: str) -> Update:
        """What the person should know; among the thoughts where the editor takes no notices."""
        if "notices" in self._extras and text:
            return {"sessionUpdate": "notice", "severity": "warning", "title": text}
        return self.thought(f"\n({text})\n")

    def _compaction_begun(self, event: CompactionStarted) -> Update:
        if "compaction" in self._extras:
            self._compaction = _new_id()
            return {"sessionUpdate": "compaction_update", "compactionId": self._compaction, "status": "in_progress"}
        return self.thought(f"\n(Shortening the conversation of {event.context_tokens:,} tokens.)\n")

    def _compaction_over(self, event: CompactionFinished) -> Update:
        if "compaction" in self._extras:
            over: dict[str, Any] = {"sessionUpdate": "compaction_update", "compactionId": self._compaction or _new_id()}
            if not event.summary:
                return {**over, "status": "failed", "error": "the conversation could not be shortened"}
            return {**over, "status": "completed", "summary": [{"type": "text", "text": event.summary}]}
        return self.thought(
            f"\n(It takes {event.context_tokens:,} tokens now.)\n" if event.summary else "\n(Nothing was left out.)\n"
        )

    def _told_faults(self, end: TurnFinished) -> list[Update]:
        """What failed beside the turn; why the turn itself failed is the answer to its prompt."""
        told = [self.notice(message) for message in self._faults if message != end.error]
        self._faults = []
        return told

    def _why_ended(self, end: TurnFinished) -> list[Update]:
        if end.outcome != "limit" or not end.error:
            return []
        self._message = _new_id()
        return [self.said(f"(The turn ended early: {end.error}.)")]

    def _prefill(self, event: PrefillChanged) -> list[Update]:
        """How far a long prompt is read, a line each quarter."""
        todo = event.total_tokens - event.cached_tokens
        if event.done_tokens <= event.cached_tokens or event.done_tokens >= event.total_tokens:
            self._quarters_told = 0
        if todo < LONG_PROMPT_TOKENS:
            return []
        quarters = 4 * max(0, event.done_tokens - event.cached_tokens) // todo
        if quarters <= self._quarters_told or quarters >= 4:
            return []
        self._quarters_told = quarters
        return [self.thought(f"(reading the prompt, {todo:,} tokens: {quarters * 25}%)\n")]

    # ------------------------------------------------------------------------------------------- calls
    def _written(self, event: ToolCallDelta) -> list[Update]:
        """A call begins; as soon as its file or command stands there, it is told."""
        updates: list[Update] = []
        if event.call_id not in self._open:
            updates.append(self._begin(event.call_id, event.name, event.name))
            self._writing[event.call_id] = ""
        if event.call_id not in self._writing:
            return updates
        text = self._writing[event.call_id] = self._writing[event.call_id] + event.text
        subject = _SUBJECT.search(text)
        if subject is None and len(text) < MAX_UNCLEAR_CHARS:
            return updates
        del self._writing[event.call_id]
        if subject is not None:
            value = subject.group(2)
            locations = locations_of({"path": value}, (), self._cwd) if subject.group(1) == "path" else None
            title = title_of(f"{event.name} {value}")
            updates.append(helpers.update_tool_call(event.call_id, title=title, locations=locations))
        return updates

    def shown_in(self, call_id: str, terminal_id: str) -> Update:
        """A running call shows in this terminal of the editor from now on."""
        self._terminals[call_id] = terminal_id
        return helpers.update_tool_call(call_id, content=self._terminal(call_id))

    def _terminal(self, call_id: str) -> list[Content]:
        terminal_id = self._terminals.get(call_id)
        return [helpers.tool_terminal_ref(terminal_id)] if terminal_id else []

    def _begin(self, call_id: str, name: str, title: str, status: ToolCallStatus = "pending", **more: Any) -> Update:
        self._open[call_id] = ""
        return helpers.start_tool_call(call_id, title_of(title), kind=kind_of(name), status=status, **more)

    def asked(self, event: PermissionAsked) -> list[Update]:
        """What must be known of a call before the person can be asked about it."""
        if event.call_id in self._open:
            return []
        return [self._begin(event.call_id, event.name, event.title, raw_input=event.arguments)]

    def call_to_permit(self, event: PermissionAsked) -> ToolCallProgress:
        """The call as it is put to the person: what it would do, and where."""
        return helpers.update_tool_call(
            event.call_id,
            title=title_of(event.title),
            kind=kind_of(event.name),
            status="pending",
            content=[*diff_content(event.diffs, self._cwd), *_reason(event)],
            locations=locations_of(event.arguments, event.diffs, self._cwd),
            raw_input=event.arguments,
        )

    def _started(self, event: ToolStarted) -> list[Update]:
        locations = locations_of(event.arguments, (), self._cwd)
        if event.call_id not in self._open:
            return [
                self._begin(
                    event.call_id, event.name, event.title,
                    status="in_progress", locations=locations, raw_input=event.arguments,
                )
            ]  # fmt: skip
        return [
            helpers.update_tool_call(
                event.call_id,
                title=title_of(event.title),
                status="in_progress",
                locations=locations,
                raw_input=event.arguments,
            )
        ]

    def _progress(self, event: ToolProgress) -> list[Update]:
        if event.call_id not in self._open or event.call_id in self._terminals:
            return []
        text = self._open[event.call_id] = (self._open[event.call_id] + event.text)[-MAX_LIVE_CHARS:]
        return [helpers.update_tool_call(event.call_id, content=text_content(text))]

    def _finished(self, event: ToolFinished) -> list[Update]:
        updates: list[Update] = []
        if event.call_id not in self._open:
            updates.append(self._begin(event.call_id, event.name, event.name))
        del self._open[event.call_id]
        self._writing.pop(event.call_id, None)
        status: ToolCallStatus = "failed" if event.is_error or event.denied else "completed"
        content = [*self._terminal(event.call_id), *_result(event, self._cwd)]
        self._terminals.pop(event.call_id, None)
        updates.append(
            helpers.update_tool_call(
                event.call_id,
                status=status,
                content=content,
                locations=locations_of(event.arguments, event.diffs, self._cwd) or None,
                raw_input=event.arguments,
                raw_output={"text": event.text},
            )
        )
        return updates

    def _abandon(self) -> list[Update]:
        """Calls that were begun and never came to be: a reply that was cut or thrown away."""
        left, self._open = list(self._open), {}
        self._terminals, self._writing, self._quarters_told = {}, {}, 0
        return [helpers.update_tool_call(call_id, status="failed") for call_id in left]


def _reason(event: PermissionAsked) -> list[Content]:
    return [helpers.tool_content(helpers.text_block(event.reason))] if event.reason else []


def _result(event: ToolFinished, cwd: Path) -> list[Content]:
    diffs: Sequence[FileDiff] = event.diffs
    content = diff_content(diffs, cwd)
    if diffs and not event.is_error and is_plain_confirmation(event.text):
        return content
    return [*content, *text_content(event.text)]


def _user(text: str) -> UserMessageChunk:
    return UserMessageChunk(session_update="user_message_chunk", content=helpers.text_block(text), message_id=_new_id())


def _plan(items: Sequence[tuple[str, str]]) -> AgentPlanUpdate:
    entries = [helpers.plan_entry(text, status=_PLAN_STATUS.get(status, "pending")) for text, status in items]
    return helpers.update_plan(entries)


def _usage(event: UsageChanged) -> UsageUpdate:
    """How full the context is; `_meta` tells how fast the engine was."""
    speed = {
        "promptTokens": event.prompt_tokens,
        "cachedTokens": event.cached_tokens,
        "completionTokens": event.completion_tokens,
        "timeToFirstTokenSeconds": round(event.time_to_first_token_s, 4),
        "tokensPerSecond": round(event.tokens_per_second, 2),
    }
    return UsageUpdate(
        session_update="usage_update",
        used=max(0, event.context_tokens),
        size=max(0, event.context_limit),
        field_meta={"pointcode": speed},
    )


def _new_id() -> str:
    return uuid.uuid4().hex

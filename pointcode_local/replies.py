"""Reads one model reply: deltas to events, calls to the runner, and the whole reply at the end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from pointcode_local.engine.types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    FinishReason,
    PrefillProgress,
    ReasoningText,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
    Usage,
)
from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    PrefillChanged,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from pointcode_local.repetition import ANSWER_WINDOW, CALL_WINDOW, COUNTING_WINDOW, Repetition

MAX_SAME_CALLS = 6  # one after the other in one reply: such a reply does not end by itself
MAX_CALLS = 256  # in one reply
# Thinking whose opening tag was in the prompt. A tag in quotes or after an opening one is what an answer speaks of.
_THOUGHT = re.compile(r"(?:(?!<think>).)*?(?<![`'\"])</think>(?![`'\"])", re.DOTALL)


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    written: list[str] = field(default_factory=list[str])
    ready: bool = False


class Reply:
    """One reply as far as it has come. Call ids are unique in the conversation, whatever the model's server sent."""

    def __init__(self, used_ids: set[str], *, may_count: bool = True) -> None:
        """`may_count`: lines that differ in their numbers only are no repetition."""
        self._used_ids = used_ids
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.n_reasoning_chars = 0
        self._calls: dict[int, _Call] = {}
        self.finish: FinishReason | None = None
        self.error: str | None = None
        self.usage = Usage()
        self._last_made = ("", "")
        self._n_same = 0  # calls of it, one after the other
        self.is_stuck = False  # it said the same thing over and over, and was stopped
        text = Repetition(ANSWER_WINDOW) if may_count else Repetition(COUNTING_WINDOW, counts=True)
        self._repeats = {"text": text, "reasoning": Repetition(ANSWER_WINDOW)}

    @property
    def text(self) -> str:
        """The visible answer; thinking that came in the text channel is taken out."""
        whole = "".join(self._text)
        if "</think>" not in whole or self._reasoning:
            return whole
        thought = _THOUGHT.match(whole)
        return whole[thought.end() :].lstrip("\n") if thought else whole

    @property
    def reasoning(self) -> str:
        """The thought so far."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls in order, those that were cut too."""
        return tuple(ToolCall(c.id, c.name, "".join(c.written)) for _, c in sorted(self._calls.items()))

    @property
    def cut_calls(self) -> tuple[ToolCall, ...]:
        """Calls that were begun and never finished."""
        return tuple(ToolCall(c.id, c.name, "".join(c.written)) for _, c in sorted(self._calls.items()) if not c.ready)

    @property
    def is_empty(self) -> bool:
        """Neither an answer nor a call (thinking alone is empty too)."""
        return not self.text.strip() and not self._calls

    def new_id(self, wanted: str = "") -> str:
        """`wanted`, or an id that is not used yet."""
        n = len(self._used_ids)
        while not wanted or wanted in self._used_ids:
            n += 1
            wanted = f"call_{n}"
        self._used_ids.add(wanted)
        return wanted

    def take(self, delta: ChatDelta) -> tuple[AgentEvent | None, ToolCall | None]:
        """Take in one delta: the event for front ends, and the call that may start now."""
        match delta:
            case AnswerText(text):
                self._text.append(text)
                self._watch("text", text, self._text)
                return TextDelta(text), None
            case ReasoningText(text):
                self._reasoning.append(text)
                self.n_reasoning_chars += len(text)
                self._watch("reasoning", text, self._reasoning)
                return ReasoningDelta(text), None
            case ToolCallBegun():
                self._calls[delta.index] = _Call(self.new_id(delta.id), delta.name)
                return ToolCallDelta(self._calls[delta.index].id, delta.name, ""), None
            case ToolCallArguments():
                call = self._calls[delta.index]
                call.written.append(delta.text)
                self._repeats.setdefault(call.id, Repetition(CALL_WINDOW))
                self._watch(call.id, delta.text, call.written)
                return ToolCallDelta(call.id, call.name, delta.text), None
            case ToolCallReady():
                return None, self._ready(delta)
            case PrefillProgress():
                return PrefillChanged(delta.done_tokens, delta.total_tokens, delta.cached_tokens), None
            case ChatFinished():
                self.finish, self.usage, self.error = delta.reason, delta.usage, delta.error
                return None, None

    def _watch(self, what: str, text: str, parts: list[str]) -> None:
        """Notice a text that only repeats itself; of what is superfluous nothing stays."""
        if superfluous := self._repeats[what].feed(text):
            self.is_stuck, self.finish = True, "length"
            parts[:] = ["".join(parts)[:-superfluous]]

    def _ready(self, delta: ToolCallReady) -> ToolCall:
        call = self._calls.get(delta.index)
        if call is None:
            call = self._calls[delta.index] = _Call(self.new_id(delta.call.id), delta.call.name)
        call.ready, call.written = True, [delta.call.arguments]
        made = (call.name, delta.call.arguments)
        self._n_same = self._n_same + 1 if made == self._last_made else 1
        self._last_made = made
        if self._n_same >= MAX_SAME_CALLS or len(self._calls) >= MAX_CALLS:
            self.is_stuck, self.finish = True, "length"
        return ToolCall(call.id, call.name, delta.call.arguments)

    def message(self, text: str | None = None, calls: tuple[ToolCall, ...] | None = None) -> AssistantMessage:
        """The reply for the history; `text` and `calls` replace what was written when calls were found in the text."""
        taken = self.calls if calls is None else calls
        return AssistantMessage(
            self.text if text is None else text, self.reasoning, tuple((c.id, c.name, c.arguments) for c in taken)
        )


async def read_reply(
    stream: AsyncIterator[ChatDelta],
    reply: Reply,
    emit: Callable[[AgentEvent], None],
    start_call: Callable[[ToolCall], None],
    max_reasoning_chars: int,
) -> None:
    """Fill `reply` from `stream`. Cancelling closes the stream; so does thinking beyond its budget, and a model that
    only repeats itself."""
    async with aclosing(cast(Any, stream)) as deltas:
        async for delta in deltas:
            event, call = reply.take(delta)
            if event is not None:
                emit(event)
            if call is not None:
                start_call(call)
            if reply.is_stuck:
                return
            if reply.n_reasoning_chars > max_reasoning_chars and reply.is_empty:
                reply.finish = "length"
                return

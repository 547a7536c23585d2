"""The history that the model sees: a fold over the event stream, append-only but for compaction.

Live turns and replayed logs go through the same `apply`, so a resumed session sends byte for byte what it sent before,
and every prompt is an exact prefix of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pointcode_local.engine.types import Message, ToolCall
from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    ContextAdded,
    ResultsCut,
    Steered,
    TodoChanged,
    ToolFinished,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.shortened import shortened

INTERRUPTED = "[interrupted: this call has no result; it may have run, wholly or in part]"


class Conversation:
    """Messages built from events. Calls always have exactly one result each, directly after them, in call order."""

    def __init__(self, system: str, events: Iterable[AgentEvent] = ()) -> None:
        self.system = Message("system", system)
        self._messages: list[Message] = []
        self._context: list[str] = []
        self._after: list[str] = []  # context that stands behind the prompt
        self._prompt: str | None = None
        self._prompts: dict[int, str] = {}  # by the id() of each message of the person in the history
        self._open: tuple[ToolCall, ...] = ()  # calls of the last reply whose results are not in the history yet
        self._results: dict[str, ToolFinished] = {}
        self._used_ids: set[str] = set()
        self.plan: tuple[tuple[str, str], ...] = ()  # (text, status), as the model last stated it
        for event in events:
            self.apply(event)

    def apply(self, event: AgentEvent) -> None:
        """Take one event into the history; events that the model does not see change nothing."""
        match event:
            case TurnStarted(prompt) | Steered(prompt):
                if self._prompt is not None:
                    self._close_user()
                self._prompt = prompt
            case ContextAdded():
                (self._after if event.after else self._context).append(event.text)
            case AssistantMessage():
                self._settle()
                self._add_reply(event)
            case ToolFinished():
                self._results[event.call_id] = event
                self._add_results()
            case CompactionFinished() if event.summary:
                self._settle()
                kept = self._messages[event.first_kept :]
                self._messages = [*self._messages[: event.n_head], Message("user", event.summary), *kept]
                left = set(map(id, self._messages))
                self._prompts = {key: prompt for key, prompt in self._prompts.items() if key in left}
            case ResultsCut(max_chars):
                self._settle()
                for at in self.fresh_results():
                    message = self._messages[at]
                    self._messages[at] = replace(message, content=shortened(message.content, max_chars))
            case CompactionStarted():
                self._settle()  # what was told between turns is closed by it, then and when the log is read
            case TodoChanged(items):
                self.plan = items
            case TurnFinished():
                self._settle()
            case _:
                pass

    @property
    def messages(self) -> tuple[Message, ...]:
        """System prompt and history, ready to be sent; what is pending is settled first."""
        self._settle()
        return (self.system, *self._messages)

    @property
    def messages_so_far(self) -> tuple[Message, ...]:
        """Like `messages`, with the results that wait for others of their reply; settles nothing. For counting."""
        waiting = tuple(_result_message(result) for result in self._results.values())
        return (self.system, *self._messages, *waiting)

    @property
    def pending(self) -> Sequence[str]:
        """The texts that go with the prompt which is being put together."""
        return self._context

    @property
    def history(self) -> Sequence[Message]:
        """The messages after the system prompt."""
        return self._messages

    @property
    def has_user_message(self) -> bool:
        """Whether anybody has said anything yet."""
        return self._prompt is not None or any(message.role == "user" for message in self._messages)

    def prompt_of(self, message: Message) -> str:
        """What the person said in a message of the history, without what came with it; "" for nothing."""
        return self._prompts.get(id(message), "")

    def fresh_results(self) -> Sequence[int]:
        """Where in `history` the results of the last reply's calls are, as long as nothing was said after it."""
        last = next((i for i in range(len(self._messages) - 1, -1, -1) if self._messages[i].role == "assistant"), None)
        if last is None:
            return ()
        return [i for i in range(last + 1, len(self._messages)) if self._messages[i].role == "tool"]

    def used_ids(self) -> set[str]:
        """The ids of all calls so far, those of messages that compaction took away too: front ends know them still."""
        return set(self._used_ids)

    def _settle(self) -> None:
        """Give calls without result their "interrupted", and close the pending user message."""
        for call in self._open:
            if call.id not in self._results:
                self._results[call.id] = ToolFinished(call.id, call.name, {}, INTERRUPTED, is_error=True)
        self._add_results()
        self._close_user()

    def _close_user(self) -> None:
        parts = [*self._context, *([self._prompt] if self._prompt is not None else []), *self._after]
        prompt, self._context, self._after, self._prompt = self._prompt, [], [], None
        if parts:
            self._messages.append(message := Message("user", "\n\n".join(parts)))
            self._prompts[id(message)] = prompt or ""

    def _add_reply(self, event: AssistantMessage) -> None:
        calls = tuple(ToolCall(*call) for call in event.tool_calls)
        orphans = {i: result for i, result in self._results.items() if i not in {call.id for call in calls}}
        if orphans:  # their reply was lost from a damaged log
            self._add_orphans(orphans)
        self._used_ids.update(call.id for call in calls)
        if event.text or calls:
            self._messages.append(Message("assistant", event.text, event.reasoning, calls))
        self._open = calls
        self._add_results()

    def _add_orphans(self, orphans: dict[str, ToolFinished]) -> None:
        calls = tuple(ToolCall(r.call_id, r.name, "{}") for r in orphans.values())
        self._messages.append(Message("assistant", "", "", calls))
        for result in orphans.values():
            self._messages.append(_result_message(result))
            del self._results[result.call_id]

    def _add_results(self) -> None:
        """Move results into the history once all calls of the reply have theirs."""
        if not self._open or any(call.id not in self._results for call in self._open):
            return
        for call in self._open:
            self._messages.append(_result_message(self._results.pop(call.id)))
        self._open = ()


def _result_message(result: ToolFinished) -> Message:
    return Message("tool", result.text, tool_call_id=result.call_id, name=result.name, is_error=result.is_error)

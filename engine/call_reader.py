"""Reads the JSON of tool calls and reports them: begun, arguments as they come, ready."""

from __future__ import annotations

from collections.abc import Callable

from .call_json import CallDraft, CallScanner
from .delta_buffer import DeltaBuffer
from .types import ToolCall, ToolCallBegun, ToolCallReady


class CallReader:
    """One block of calls. `known_names` None: any name is a call (the block stands in tags); otherwise the name must be
    known and the arguments an object, and until that is seen nothing is reported.

    `deferred`: a complete call waits for `confirm`, because what follows on its line may show that it was prose.
    """

    def __init__(
        self,
        out: DeltaBuffer,
        first_index: int,
        call_id: Callable[[], str],
        known_names: frozenset[str] | None,
        *,
        opener: str = "",
        deferred: bool = False,
    ) -> None:
        self._out = out
        self._next_index = first_index
        self._call_id = call_id
        self._known_names = known_names
        self._deferred = deferred
        self.opener = opener
        self._raw: list[str] = [opener]
        self._current: ToolCall | None = None  # begun, not complete
        self._current_index = 0
        self._waiting: list[ToolCallReady] = []
        self._scanner = CallScanner()
        self.n_begun = 0
        self.n_ready = 0

    @property
    def raw(self) -> str:
        """Everything read, the opener included."""
        return "".join(self._raw)

    @property
    def waiting(self) -> bool:
        """Whether a complete call waits for `confirm`."""
        return bool(self._waiting)

    @property
    def in_string(self) -> bool:
        """Whether the next character belongs to a JSON string."""
        return self._scanner.in_string

    @property
    def complete(self) -> bool:
        """Whether the block's JSON is closed."""
        return self._scanner.idle and bool(self._scanner.drafts)

    @property
    def refused(self) -> bool:
        """Whether the block cannot be a call (never once one was begun, and never for a block in tags)."""
        if self._known_names is None or self.n_begun:
            return False
        if not self._scanner.drafts:
            return self._scanner.malformed
        draft = self._scanner.drafts[-1]
        wrong_name = draft.name is not None and draft.name not in self._known_names
        wrong_arguments = draft.parts[:1] not in ([], ["{"])
        return self._scanner.malformed or draft.foreign_key or wrong_name or wrong_arguments or draft.closed

    def feed(self, char: str) -> None:
        """Read one character."""
        self._raw.append(char)
        self._scanner.feed(char)
        if self._scanner.drafts:
            self._report(self._scanner.drafts[-1])

    def confirm(self) -> None:
        """The complete calls that wait are ready."""
        for ready in self._waiting:
            self._out.add(ready)
        self.n_ready += len(self._waiting)
        self._waiting = []

    def end(self) -> None:
        """The block ended on purpose: a call that lacks only its closing brackets is ready."""
        if self._current is not None and self._scanner.drafts[-1].arguments_closed:
            self._finish_call(self._scanner.drafts[-1])
        self.confirm()

    def _report(self, draft: CallDraft) -> None:
        if self._current is None and not draft.reported and self._accepted(draft):
            draft.reported = True
            self._current = ToolCall(self._call_id(), draft.name or "", "")
            self._current_index = self._next_index
            self._next_index += 1
            self.n_begun += 1
            self._out.add(ToolCallBegun(self._current_index, self._current.id, self._current.name))
        if self._current is None:
            return
        if draft.parts[:1] == ["{"]:
            self._out.text(self._current_index, draft.take_fresh())
        if draft.closed:
            self._finish_call(draft)

    def _accepted(self, draft: CallDraft) -> bool:
        if draft.name is None:
            return False
        return self._known_names is None or (draft.name in self._known_names and draft.parts[:1] == ["{"])

    def _finish_call(self, draft: CallDraft) -> None:
        assert self._current is not None
        arguments = draft.final_arguments
        if draft.parts[:1] != ["{"]:
            self._out.text(self._current_index, arguments)
        call = ToolCall(self._current.id, self._current.name, arguments)
        self._waiting.append(ToolCallReady(self._current_index, call))
        self._current = None
        if not self._deferred:
            self.confirm()

"""Collects the deltas of a reply; neighbours of one kind become one."""

from __future__ import annotations

from .types import AnswerText, ChatDelta, ReasoningText, ToolCallArguments


class DeltaBuffer:
    """Text is added a character at a time and leaves as whole pieces."""

    def __init__(self) -> None:
        self._deltas: list[ChatDelta] = []
        self._kind: type[ReasoningText] | type[AnswerText] | int | None = None  # an int: arguments of that call
        self._parts: list[str] = []

    def text(self, kind: type[ReasoningText] | type[AnswerText] | int, text: str) -> None:
        """Add reasoning, answer, or (kind = the call's index) arguments."""
        if kind != self._kind:
            self._close()
            self._kind = kind
        self._parts.append(text)

    def add(self, delta: ChatDelta) -> None:
        """Add a delta that is not text."""
        self._close()
        self._deltas.append(delta)

    def take(self) -> list[ChatDelta]:
        """Everything since the last call."""
        self._close()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _close(self) -> None:
        text, kind = "".join(self._parts), self._kind
        self._parts, self._kind = [], None
        if not text or kind is None:
            return
        self._deltas.append(ToolCallArguments(kind, text) if isinstance(kind, int) else kind(text))

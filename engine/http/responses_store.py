"""The newest responses, kept so that a later one may continue them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..types import Message

_KEPT = 256
_KEPT_CHARS = 256 << 20  # of their conversations, in which a thought may be long that the prompt leaves out


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that may be continued: its object, and the conversation up to its end."""

    response: dict[str, Any]
    conversation: tuple[Message, ...]

    @property
    def n_chars(self) -> int:
        """Of the conversation; what it shares with other responses is counted for each."""
        texts = sum(len(m.content) + len(m.reasoning) for m in self.conversation)
        return texts + sum(len(call.arguments) for m in self.conversation for call in m.tool_calls)


class ResponseStore:
    """The newest responses, in memory: so many, and those of so many characters."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._n_chars = 0

    def get(self, response_id: str) -> StoredResponse | None:
        """A response, when it is still kept."""
        return self._stored.get(response_id)

    def keep(self, stored: StoredResponse) -> None:
        """Adds a response; the oldest make room."""
        self._stored[stored.response["id"]] = stored
        self._n_chars += stored.n_chars
        while len(self._stored) > _KEPT or (len(self._stored) > 1 and self._n_chars > _KEPT_CHARS):
            self._n_chars -= self._stored.popitem(last=False)[1].n_chars

    def drop(self, response_id: str) -> bool:
        """Forgets a response; False when it was not kept."""
        dropped = self._stored.pop(response_id, None)
        self._n_chars -= dropped.n_chars if dropped is not None else 0
        return dropped is not None

"""The newest responses, kept so that a later one may continue them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..types import Message

_KEPT = 256


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that may be continued: its object, and the conversation up to its end."""

    response: dict[str, Any]
    conversation: tuple[Message, ...]


class ResponseStore:
    """The newest responses, in memory."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def get(self, response_id: str) -> StoredResponse | None:
        """A response, when it is still kept."""
        return self._stored.get(response_id)

    def keep(self, stored: StoredResponse) -> None:
        """Adds a response; the oldest makes room."""
        self._stored[stored.response["id"]] = stored
        while len(self._stored) > _KEPT:
            self._stored.popitem(last=False)

    def drop(self, response_id: str) -> bool:
        """Forgets a response; False when it was not kept."""
        return self._stored.pop(response_id, None) is not None

"""Which responses are kept to be continued."""

from __future__ import annotations

import pytest

from pointcode_local.engine.http import responses_store
from pointcode_local.engine.http.responses_store import ResponseStore, StoredResponse
from pointcode_local.engine.types import Message, ToolCall


def response(number: int, *conversation: Message) -> StoredResponse:
    return StoredResponse({"id": f"resp_{number}"}, conversation)


def kept(store: ResponseStore, n: int) -> list[int]:
    return [number for number in range(n) if store.get(f"resp_{number}") is not None]


def test_the_newest_responses_are_kept() -> None:
    store = ResponseStore()
    for number in range(300):
        store.keep(response(number, Message("user", "x")))
    assert kept(store, 300) == list(range(44, 300))
    assert store.drop("resp_299") and not store.drop("resp_299")


@pytest.mark.parametrize(
    "long",
    [
        Message("user", "x" * 40),
        Message("assistant", "", "x" * 40),
        Message("assistant", "", tool_calls=(ToolCall("1", "read", "x" * 40),)),
    ],
)
def test_long_conversations_make_room_for_newer_ones(long: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thought of megabytes that the prompt leaves out is still kept with its conversation."""
    monkeypatch.setattr(responses_store, "_KEPT_CHARS", 100)
    store = ResponseStore()
    for number in range(5):
        store.keep(response(number, long))
    assert kept(store, 5) == [3, 4]
    store.drop("resp_3")
    store.keep(response(5, long))
    assert kept(store, 6) == [4, 5]
    store.keep(response(6, *[long] * 9))
    assert kept(store, 7) == [6], "the newest is kept in any case"

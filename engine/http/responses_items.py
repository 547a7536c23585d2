"""The output items of a response, and the events that tell of them while they grow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from ..types import (
    AnswerText,
    ChatDelta,
    Message,
    ReasoningText,
    TokenLogprob,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
)
from .chat import logprob_entries

_TEXT = {"message": ("output_text", "response.output_text"), "reasoning": ("reasoning_text", "response.reasoning_text")}


class Items:
    """Reasoning, messages and calls in the order in which the model wrote them. `n_logprobs` None: none are shown."""

    def __init__(self, n_logprobs: int | None) -> None:
        self.output: list[dict[str, Any]] = []
        self._n_logprobs = n_logprobs
        self._open = ""  # kind of the text item that grows, the last of the output
        self._calls: dict[int, int] = {}  # index of a call -> its place in the output

    def add(self, delta: ChatDelta) -> Iterator[dict[str, Any]]:
        """The events of a delta."""
        match delta:
            case ReasoningText(text):
                yield from self._text("reasoning", text, ())
            case AnswerText(text, logprobs):
                yield from self._text("message", text, logprobs)
            case ToolCallBegun(index, call_id, name):
                yield from self._close_text("completed")
                yield from self._begin_call(index, call_id, name)
            case ToolCallArguments(index, text):
                yield from self._arguments(index, text)
            case ToolCallReady(index, call):
                yield from self._end_call(index, call)
            case _:
                pass

    def close(self, *, complete: bool) -> Iterator[dict[str, Any]]:
        """The reply has ended; what was still growing ends with it."""
        status = "completed" if complete else "incomplete"
        yield from self._close_text(status)
        for place in self._calls.values():
            if self.output[place]["status"] == "in_progress":
                self.output[place]["status"] = status
                yield self._item_event("done", place)

    def message(self) -> Message:
        """The output as a message of the conversation."""
        texts = {kind: "".join(_texts(self.output, kind)) for kind in _TEXT}
        calls = [
            ToolCall(item["call_id"], item["name"], item["arguments"])
            for item in self.output
            if item["type"] == "function_call"
        ]
        return Message("assistant", texts["message"], texts["reasoning"], tuple(calls))

    # ------------------------------------------------------------------ text
    def _text(self, kind: str, text: str, logprobs: tuple[TokenLogprob, ...]) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._close_text("completed")
            yield from self._begin_text(kind)
        part = self.output[-1]["content"][0]
        part["text"] += text
        delta: dict[str, Any] = {**self._place("delta"), "delta": text}
        if kind == "message":
            entries = [] if self._n_logprobs is None else logprob_entries(logprobs, self._n_logprobs)
            part["logprobs"] += entries
            delta["logprobs"] = entries
        yield delta

    def _begin_text(self, kind: str) -> Iterator[dict[str, Any]]:
        part: dict[str, Any] = {"type": _TEXT[kind][0], "text": ""}
        item: dict[str, Any] = {"type": kind, "id": _new_id(kind), "status": "in_progress", "content": []}
        if kind == "message":
            item["role"] = "assistant"
            part |= {"annotations": [], "logprobs": []}
        else:
            item["summary"] = []
        self._open = kind
        self.output.append(item)
        yield self._item_event("added", len(self.output) - 1)
        item["content"].append(part)
        yield {**self._place(""), "type": "response.content_part.added", "part": _copy(part)}

    def _close_text(self, status: str) -> Iterator[dict[str, Any]]:
        if not self._open:
            return
        item = self.output[-1]
        part = item["content"][0]
        done = {**self._place("done"), "text": part["text"]}
        yield {**done, "logprobs": part["logprobs"]} if self._open == "message" else done
        yield {**self._place(""), "type": "response.content_part.done", "part": _copy(part)}
        item["status"] = status
        self._open = ""
        yield self._item_event("done", len(self.output) - 1)

    def _place(self, event: str) -> dict[str, Any]:
        place = len(self.output) - 1
        kind = f"{_TEXT[self._open][1]}.{event}"
        return {"type": kind, "item_id": self.output[-1]["id"], "output_index": place, "content_index": 0}

    # ------------------------------------------------------------------ calls
    def _begin_call(self, index: int, call_id: str, name: str) -> Iterator[dict[str, Any]]:
        self._calls[index] = len(self.output)
        self.output.append(
            {
                "type": "function_call",
                "id": _new_id("function_call"),
                "call_id": call_id,
                "name": name,
                "arguments": "",
                "status": "in_progress",
            }
        )
        yield self._item_event("added", len(self.output) - 1)

    def _arguments(self, index: int, text: str) -> Iterator[dict[str, Any]]:
        place = self._calls[index]
        item = self.output[place]
        item["arguments"] += text
        kind = "response.function_call_arguments.delta"
        yield {"type": kind, "item_id": item["id"], "output_index": place, "delta": text}

    def _end_call(self, index: int, call: ToolCall) -> Iterator[dict[str, Any]]:
        place = self._calls[index]
        item = self.output[place]
        item |= {"arguments": call.arguments, "status": "completed"}
        yield {
            "type": "response.function_call_arguments.done",
            "item_id": item["id"],
            "output_index": place,
            "name": call.name,
            "arguments": call.arguments,
        }
        yield self._item_event("done", place)

    def _item_event(self, event: str, place: int) -> dict[str, Any]:
        return {"type": f"response.output_item.{event}", "output_index": place, "item": _copy(self.output[place])}


def _copy(value: dict[str, Any]) -> dict[str, Any]:
    """The value as it is now: it goes on growing."""
    return {name: list(item) if isinstance(item, list) else item for name, item in value.items()}  # type: ignore[reportUnknownArgumentType]


def _texts(output: list[dict[str, Any]], kind: str) -> Iterator[str]:
    for item in output:
        if item["type"] == kind:
            yield from (part["text"] for part in item["content"])


def _new_id(kind: str) -> str:
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
    return f"{prefix}_{uuid.uuid4().hex}"

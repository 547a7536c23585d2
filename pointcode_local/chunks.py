"""OpenAI chat-completion chunks to ChatDeltas, with the shapes that servers differ in.

Tool calls without an index or with their whole arguments in one piece, `reasoning_content` or `reasoning`, thinking
between `<think>` tags in the content, usage in the last or in any chunk, a stream that ends without a finish reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from pointcode_local.engine.errors import BackendError
from pointcode_local.engine.types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    FinishReason,
    ReasoningText,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
    Usage,
)

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "eos": "stop",
    "content_filter": "stop",
}


MAX_COUNT = 1 << 53  # of tokens; more is no count


class ThinkSplitter:
    """Takes thinking in `<think>…</think>` at the start of the content out of it, however the text is cut."""

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self) -> None:
        self._held = ""
        self._state = "start"

    def take(self, text: str) -> Iterator[ChatDelta]:
        """The deltas that `text` completes; what may be the beginning of a tag is held back."""
        self._held += text
        if self._state == "start":
            lead = self._held.lstrip()
            if self._OPEN.startswith(lead[: len(self._OPEN)]) and len(lead) < len(self._OPEN):
                return
            if lead.startswith(self._OPEN):
                self._state, self._held = "thinking", lead[len(self._OPEN) :]
            else:
                self._state = "answer"
        if self._state == "thinking":
            yield from self._think()
        if self._state == "after" and (lead := self._held.lstrip("\n")):
            self._state, self._held = "answer", lead
        if self._state == "answer" and self._held:
            yield AnswerText(self._held)
            self._held = ""

    def _think(self) -> Iterator[ChatDelta]:
        at = self._held.find(self._CLOSE)
        if at >= 0:
            thought, self._held, self._state = self._held[:at], self._held[at + len(self._CLOSE) :], "after"
        else:
            n_held = next((n for n in range(len(self._CLOSE) - 1, 0, -1) if self._held.endswith(self._CLOSE[:n])), 0)
            thought, self._held = self._held[: len(self._held) - n_held], self._held[len(self._held) - n_held :]
        if thought:
            yield ReasoningText(thought)

    def end(self) -> Iterator[ChatDelta]:
        """What was held back and turned out to be no tag."""
        if self._held and self._state != "after":
            yield ReasoningText(self._held) if self._state == "thinking" else AnswerText(self._held)
        self._held = ""


class ChunkReader:
    """One streamed reply."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._first_s = 0.0
        self._think = ThinkSplitter()
        self._calls: list[dict[str, str]] = []
        self._index_of: dict[Any, int] = {}
        self._n_ready = 0
        self._reason: FinishReason | None = None
        self.is_done = False  # the server said so
        self.usage = Usage()
        self.thoughts_as = ""  # the member in which the server sent thoughts

    def take(self, chunk: dict[str, Any]) -> Iterator[ChatDelta]:
        """The deltas of one chunk."""
        if isinstance(chunk.get("usage"), dict):
            self._take_usage(chunk["usage"])
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        choice: dict[str, Any] = choices[0]
        delta: Any = choice.get("delta") or choice.get("message") or {}
        if isinstance(delta, dict):
            yield from self._take_delta(delta)
        reason = choice.get("finish_reason")
        if reason:
            self._reason = _REASONS.get(str(reason), "stop")

    def _take_delta(self, delta: dict[str, Any]) -> Iterator[ChatDelta]:
        field = "reasoning_content" if delta.get("reasoning_content") else "reasoning"
        reasoning = delta.get(field)
        if isinstance(reasoning, str) and reasoning:
            self._note_first()
            self.thoughts_as = field
            yield ReasoningText(reasoning)
        content = delta.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        if isinstance(content, str) and content:
            self._note_first()
            yield from self._think.take(content)
        pieces: Any = delta.get("tool_calls")
        for piece in pieces if isinstance(pieces, list) else ():
            if isinstance(piece, dict):
                self._note_first()
                yield from self._take_call(piece)

    def _take_call(self, piece: dict[str, Any]) -> Iterator[ChatDelta]:
        said: Any = piece.get("function")
        function: dict[str, Any] = said if isinstance(said, dict) else {}
        call_id, name = str(piece.get("id") or ""), str(function.get("name") or "")
        index: Any = piece.get("index")
        index = index if isinstance(index, int | str) else None
        known = self._index_of.get(index) if index is not None else None
        if known is None or (call_id and name and self._calls[known]["id"] not in ("", call_id)):
            if not name and self._calls and known is None:  # more of the last call, from a server that gives no index
                known = len(self._calls) - 1
            else:
                yield from self._ready(len(self._calls), only_whole=True)
                known = len(self._calls)
                self._calls.append({"id": call_id, "name": name, "arguments": ""})
                self._index_of[known if index is None else index] = known
                yield ToolCallBegun(known, call_id, name)
        written = function.get("arguments")
        if isinstance(written, dict):
            written = json.dumps(written, ensure_ascii=False)
        if isinstance(written, str) and written:
            self._calls[known]["arguments"] += written
            yield ToolCallArguments(known, written)

    def _ready(self, end: int, *, only_whole: bool = False) -> Iterator[ChatDelta]:
        """Calls before `end` are complete: the server has gone on to the next one, or is done. `only_whole`: up to one
        that is not; some servers go on with it later."""
        while self._n_ready < end:
            call = self._calls[self._n_ready]
            if only_whole and not is_whole(call["arguments"]):
                return
            yield ToolCallReady(self._n_ready, ToolCall(call["id"], call["name"], call["arguments"]))
            self._n_ready += 1

    def note_prefill(self) -> None:
        """The prompt is still being read: what came of the reply so far was given to the model, not written by it."""
        self._first_s = 0.0

    def note_done(self) -> None:
        """The server said that the stream is complete; some do not say why it ended."""
        self.is_done = True
        self._reason = self._reason or ("tool_calls" if self._calls else "stop")

    def end(self) -> Iterator[ChatDelta]:
        """What is left when the stream is over; raises BackendError when it ended without saying why."""
        yield from self._think.end()
        if self._reason is None:
            raise BackendError("the server ended the stream before the reply was complete")
        if self._reason != "length" or (self._calls and is_whole(self._calls[-1]["arguments"])):
            yield from self._ready(len(self._calls))
        yield ChatFinished(self._reason, self.usage)

    def _note_first(self) -> None:
        self._first_s = self._first_s or time.monotonic()

    def _take_usage(self, usage: dict[str, Any]) -> None:
        details: Any = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("prompt_cache_hit_tokens")
        first_s = self._first_s or time.monotonic()
        self.usage = Usage(
            prompt_tokens=_number(usage.get("prompt_tokens")),
            cached_tokens=_number(cached),
            completion_tokens=_number(usage.get("completion_tokens")),
            time_to_first_token_s=first_s - self._started_s,
            decode_s=time.monotonic() - first_s,
        )


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value <= MAX_COUNT else 0


def is_whole(written: str) -> bool:
    """Whether argument text is a complete JSON object (one that was cut short is not)."""
    try:
        return isinstance(json.loads(written, strict=False), dict)
    except (ValueError, RecursionError):
        return False

"""From the tokens of a reply to reasoning, answer and tool calls.

token id -> marker, by id -> bytes to text -> this state machine -> ChatDelta. Markers count only as tokens (text that
spells one is text), except those that the vocabulary lacks. An end marker inside a JSON string is part of the string.
The result does not depend on how the tokens were cut into pushes: every character goes through the same machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from .call_reader import CallReader
from .chat_formats import ChatFormat, Mark
from .delta_buffer import DeltaBuffer
from .loose_calls import CALL_BEGINNINGS, MAX_HELD_CHARS, LineTracker, Opening, classify, closing
from .tokenizer import StreamDecoder, Tokenizer
from .types import AnswerText, ChatDelta, FinishReason, ReasoningText


def new_call_id() -> str:
    """A tool-call id that no other turn has."""
    return "call_" + uuid.uuid4().hex[:24]


class ReplyParser:
    """Parses one reply. Feed tokens with `push`, then call `finish` once.

    `tool_names` are the offered tools: bare JSON counts as a call only for these. `in_reasoning` at the start: the
    prompt ended inside a reasoning block. `json_answer`: the reply is JSON, or calls in their tags instead.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: ChatFormat,
        tool_names: Iterable[str] = (),
        *,
        in_reasoning: bool = False,
        json_answer: bool = False,
        call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._marks = form.marks_by_id(tokenizer)
        self._machine = _Machine(
            form, frozenset(tool_names), form.text_marks(tokenizer), in_reasoning, json_answer, call_id
        )
        self.n_reasoning_tokens = 0

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text is reasoning."""
        return self._machine.in_reasoning

    @property
    def in_call(self) -> bool:
        """Whether a tool call is open."""
        return self._machine.in_call

    @property
    def n_ready_calls(self) -> int:
        """Calls that are complete."""
        return self._machine.n_ready

    def push(self, token_ids: Sequence[int]) -> list[ChatDelta]:
        """What `token_ids` add to the reply."""
        for token_id in token_ids:
            self.n_reasoning_tokens += self._machine.in_reasoning
            mark = self._marks.get(token_id)
            if mark is not None:
                self._machine.text(self._decoder.flush())
                self._machine.marker(mark, self._tokenizer.token_bytes(token_id).decode())
            elif token_id not in self._tokenizer.control_ids:
                self._machine.text(self._decoder.push(token_id))
            elif self._machine.in_string:
                self._machine.text(self._decoder.flush() + self._tokenizer.token_bytes(token_id).decode())
        return self._machine.take()

    def finish(self, reason: FinishReason) -> list[ChatDelta]:
        """What was held back. A call that the limit cut stays begun and never becomes ready."""
        self._machine.text(self._decoder.flush())
        self._machine.finish(cut=reason != "stop")
        return self._machine.take()

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        """`reason`, or "tool_calls" where the reply ended by itself with calls."""
        return "tool_calls" if reason == "stop" and self.n_ready_calls else reason


class _Machine:
    """The state machine over characters and markers."""

    def __init__(
        self,
        form: ChatFormat,
        tool_names: frozenset[str],
        text_marks: dict[str, Mark],
        in_reasoning: bool,
        json_answer: bool,
        call_id: Callable[[], str],
    ) -> None:
        self._json_answer = json_answer
        self._trims = form.trims
        self._loose = form.loose_calls and bool(tool_names)
        self._tool_names = tool_names
        self._think_begin = next((t for t, m in text_marks.items() if m is Mark.REASONING_BEGIN), "")
        self._think_end = next((t for t, m in text_marks.items() if m is Mark.REASONING_END), "")
        self._call_id = call_id
        self._out = DeltaBuffer()
        self._spaces = ""  # white space that is shown only when text follows it
        self._drop_spaces = in_reasoning and form.trims
        self._lines = LineTracker()
        self._held = ""  # text that may turn out to be a marker or a call
        self._reader: CallReader | None = None
        self._in_tags = False  # the open calls stand between marker tokens
        self._tail: str | None = None  # what follows a complete loose call
        self._private: DeltaBuffer | None = None  # reports of calls that what follows may still turn into prose
        self._seen_text = False
        self._n_begun = 0
        self.in_reasoning = in_reasoning
        self.n_ready = 0

    @property
    def in_call(self) -> bool:
        return self._reader is not None and self._tail is None

    @property
    def in_string(self) -> bool:
        return self._reader is not None and self._tail is None and self._reader.in_string

    def take(self) -> list[ChatDelta]:
        return self._out.take()

    # ------------------------------------------------------------------------------------------------ input
    def text(self, text: str) -> None:
        for char in text:
            if self._tail is not None:
                self._after_loose_call(char)
            elif self._reader is not None:
                self._call_char(char)
            elif self.in_reasoning:
                self._reasoning_char(char)
            else:
                self._answer_char(char)

    def marker(self, mark: Mark, spelled: str) -> None:
        in_json = self._json_answer and self._seen_text and mark is not Mark.ANSWER
        if self.in_string or in_json:
            self.text(spelled)
            return
        self._settle()
        if mark is Mark.REASONING_BEGIN:
            self._switch(reasoning=True)
            return
        self._switch(reasoning=False)
        if mark is Mark.CALL_BEGIN:
            self._open_calls(None, opener="", deferred=False)
            self._in_tags = True

    def finish(self, *, cut: bool) -> None:
        if not (cut and self.in_call):
            self._settle()
        else:
            self._abandon()
        if self._spaces and not self._drop_spaces:
            self._emit(self._spaces)

    # ------------------------------------------------------------------------------------------------ reasoning, answer
    def _reasoning_char(self, char: str) -> None:
        self._held += char
        while self._held and not self._think_end.startswith(self._held):
            self._show(self._held[0])
            self._held = self._held[1:]
        if self._held and self._held == self._think_end:
            self._held = ""
            self._switch(reasoning=False)

    def _answer_char(self, char: str) -> None:
        if not self._held and not self._may_hold(char):
            self._plain(char)
            return
        self._held += char
        if self._think_begin and not self._seen_text and self._think_begin.startswith(self._held):
            if self._held == self._think_begin:
                self._held = ""
                self._switch(reasoning=True)
            return
        opening, json_begin = classify(self._held) if self._loose else (Opening.NO, 0)
        if opening is Opening.NO:
            self._release(self._held)
        elif opening is not Opening.PARTIAL:
            self._begin_loose_call(opening, json_begin)

    def _may_hold(self, char: str) -> bool:
        if self._think_begin and not self._seen_text and char == self._think_begin[0]:
            return True
        if self._json_answer:
            return self._loose and char == "<" and not self._seen_text
        return self._loose and self._lines.may_begin(char)

    def _switch(self, *, reasoning: bool) -> None:
        self.in_reasoning = reasoning
        if self._trims:
            self._spaces, self._drop_spaces = "", True

    # ------------------------------------------------------------------------------------------------ calls
    def _open_calls(
        self, known_names: frozenset[str] | None, *, opener: str, deferred: bool, tentative: bool = False
    ) -> None:
        self._private = DeltaBuffer() if tentative else None
        out = self._private or self._out
        self._reader = CallReader(out, self._n_begun, self._call_id, known_names, opener=opener, deferred=deferred)
        self._in_tags = False

    def _begin_loose_call(self, opening: Opening, json_begin: int) -> None:
        held, self._held = self._held, ""
        tagged = opening is Opening.TAGGED
        known = None if tagged else self._tool_names
        tentative = not tagged and self._lines.n_chars > 0
        self._open_calls(known, opener=held[:json_begin], deferred=not tagged, tentative=tentative)
        self.text(held[json_begin:])

    def _call_char(self, char: str) -> None:
        reader = self._reader
        assert reader is not None
        reader.feed(char)
        if reader.n_begun and self._trims and self._private is None:
            self._spaces = ""
        if reader.refused:
            self._reader = None
            self._release(reader.raw)
        elif not self._in_tags and reader.complete:
            self._tail = ""

    def _after_loose_call(self, char: str) -> None:
        """The closing tag or fence, the end of the line; or prose on the same line, which unmakes a bare call."""
        reader, tail = self._reader, (self._tail or "") + char
        assert reader is not None
        self._tail = tail
        verdict, rest = closing(tail, expected=bool(reader.opener))
        tentative = self._private is not None
        if verdict != "text" and len(tail) > MAX_HELD_CHARS:  # nothing followed for so long
            self._close_calls()
        elif verdict == "open" and "\n" in tail and not tentative:
            reader.confirm()
        elif verdict == "closed" and not tentative:
            self._close_calls()
        elif verdict == "text" and self._is_call(reader, tail, rest):
            self._close_calls()
            self.text(rest)
        elif verdict == "text":
            if not tentative:
                self._count(reader)
            self._reader = self._tail = self._private = None
            self._release(reader.raw + tail)

    def _is_call(self, reader: CallReader, tail: str, rest: str) -> bool:
        """Whether complete calls stay calls although text follows."""
        if self._private is not None:
            return rest[0] in CALL_BEGINNINGS
        return "\n" in tail or not reader.waiting

    def _publish(self) -> None:
        """What was reported in private is reported now."""
        private, self._private = self._private, None
        if private is None:
            return
        if self._trims:
            self._spaces = ""
        for delta in private.take():
            self._out.add(delta)

    def _close_calls(self) -> None:
        """The open calls end on purpose."""
        reader = self._reader
        assert reader is not None
        reader.end()
        self._publish()
        self._count(reader)
        self._reader = self._tail = None
        self._switch(reasoning=False)

    def _abandon(self) -> None:
        """The open calls were cut. What was never reported, and stands in no tags, is text."""
        reader, in_tags = self._reader, self._in_tags
        assert reader is not None
        self._publish()
        self._count(reader)
        self._reader = None
        if not reader.n_begun and not in_tags:
            self._release(reader.raw)

    def _count(self, reader: CallReader) -> None:
        self._n_begun += reader.n_begun
        self.n_ready += reader.n_ready

    def _settle(self) -> None:
        """Whatever is open or held ends here."""
        if self._reader is not None:
            reader = self._reader
            self._close_calls()
            if not reader.n_begun and reader.raw.strip():
                self._release(reader.raw)
        if self._held and self.in_reasoning:
            held, self._held = self._held, ""
            self._show(held)
        while self._held or (self._reader is not None):
            self._release(self._held) if self._held else self._settle()

    # ------------------------------------------------------------------------------------------------ output
    def _plain(self, char: str) -> None:
        self._lines.add(char)
        self._seen_text |= not char.isspace()
        self._show(char)

    def _release(self, raw: str) -> None:
        """`raw` is answer text after all; its first character begins nothing."""
        self._held = ""
        self._plain(raw[0])
        self.text(raw[1:])

    def _show(self, text: str) -> None:
        for char in text:
            if self._trims and char.isspace():
                self._spaces += char
                continue
            if self._spaces and not self._drop_spaces:
                self._emit(self._spaces)
            self._spaces, self._drop_spaces = "", False
            self._emit(char)

    def _emit(self, text: str) -> None:
        self._out.text(ReasoningText if self.in_reasoning else AnswerText, text)

"""A reply of the model while it is written: from token ids to what is shown, what is counted and what is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from .chat_parse import ReplyParser
from .logprobs import token_logprob
from .stops import StopMatcher
from .tokenizer import Tokenizer
from .types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    FinishReason,
    Message,
    PrefillProgress,
    ReasoningText,
    StreamFinished,
    TokenEvent,
    TokenLogprob,
    TokensDecoded,
    ToolCall,
    ToolCallReady,
    Usage,
)


class Reply:
    """A reply as far as it came: what was shown, and the ids it was made of."""

    def __init__(
        self, parser: ReplyParser, stops: StopMatcher, tokenizer: Tokenizer, *, n_top: int, one_call: bool
    ) -> None:
        self._parser = parser
        self._stops = stops
        self._tokenizer = tokenizer
        self._n_top = n_top
        self._one_call = one_call
        self._logprobs: list[TokenLogprob] = []  # of answer tokens whose text was not shown yet
        self._answer: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._prompt = PrefillProgress(0, 0, 0)
        self._begun_s = time.perf_counter()
        self._first_s = self._last_s = 0.0
        self._n_given = 0
        self.ids: list[int] = []  # those that were given included
        self.finished = False
        self.is_whole = False  # ended by itself: may be continued id for id

    @property
    def in_reasoning(self) -> bool:
        """Whether a thought is open."""
        return self._parser.in_reasoning

    @property
    def written_ids(self) -> list[int]:
        """The ids that the model wrote."""
        return self.ids[self._n_given :]

    @property
    def n_written(self) -> int:
        """How many tokens the model wrote."""
        return len(self.ids) - self._n_given

    def begin_with(self, ids: Sequence[int]) -> list[ChatDelta]:
        """The deltas of what the reply begins with, before the model writes; stop strings are not looked for in it."""
        self.ids += ids
        self._n_given = len(ids)
        return [recorded for delta in self._parser.push(ids) for recorded in self._record(delta)]

    def has_thought(self, budget: int | None) -> bool:
        """Whether the open thought has taken up `budget` tokens; None: as many as it wants."""
        return budget is not None and self.in_reasoning and self._parser.n_reasoning_tokens >= budget

    def hear(self, event: TokenEvent, budget: int | None) -> Iterator[ChatDelta]:
        """The deltas of what the engine tells, up to the end of the reply or of its thought's budget."""
        match event:
            case PrefillProgress():
                if not self.n_written or not self._prompt.total_tokens:
                    # Counts of the first prompt are those of the reply; the end of a thought that was closed before it
                    # began stands in that prompt, but is counted as written.
                    self._prompt = replace(event, total_tokens=event.total_tokens - self.n_written)
                yield event
            case StreamFinished(reason=reason, error=error):
                yield from self.finish(reason, error)
            case TokensDecoded(ids, logprobs):
                # One by one: how many ids arrive together is chance, where the thought ends must not be.
                for token, values in zip_longest(ids, logprobs):
                    self._last_s = time.perf_counter()
                    self._first_s = self._first_s or self._last_s
                    yield from self.feed(token, values)
                    if self.finished or self.has_thought(budget):
                        return

    @property
    def usage(self) -> Usage:
        """Of the whole reply, also where it took two requests of the engine."""
        waited_s = self._first_s - self._begun_s if self._first_s else 0.0
        done, cached = self._prompt.total_tokens, self._prompt.cached_tokens
        return Usage(done, cached, self.n_written, waited_s, self._last_s - self._first_s)

    def feed(self, token: int, logprobs: Mapping[int, float] | None = None) -> list[ChatDelta]:
        """The deltas of a new id; may finish the reply (a stop string, the one call that was allowed)."""
        self.ids.append(token)
        in_answer = not self._parser.in_reasoning and token not in self._tokenizer.control_ids
        parsed = self._parser.push([token])
        if self._parser.in_call:
            self._logprobs.clear()
        elif logprobs and in_answer:
            self._logprobs.append(token_logprob(self._tokenizer, token, logprobs, self._n_top))
        deltas = self._shown(parsed)
        if self._stops.stopped:
            return [*deltas, *self._end("stop")]
        if self._one_call and self._calls:
            return [*deltas, *self._end("tool_calls")]
        return deltas

    def finish(self, reason: FinishReason, error: str | None = None) -> list[ChatDelta]:
        """The engine's stream has ended."""
        deltas = self._shown(self._parser.finish(reason))
        rest = self._stops.flush()
        if rest:
            deltas += self._record(AnswerText(rest))
        self.finished = True
        self.is_whole = reason == "stop" and not self._stops.stopped
        final = "stop" if self._stops.stopped else self._parser.finish_reason(reason)
        return [*deltas, self._finished(final, error)]

    def message(self) -> Message:
        """The reply as a message of the conversation."""
        return Message("assistant", "".join(self._answer), "".join(self._reasoning), tuple(self._calls))

    def _end(self, reason: FinishReason) -> list[ChatDelta]:
        self.finished = True
        return [self._finished(reason)]

    def _finished(self, reason: FinishReason, error: str | None = None) -> ChatFinished:
        return ChatFinished(reason, self.usage, error, self._stops.matched, self._parser.n_reasoning_tokens)

    def _shown(self, deltas: Sequence[ChatDelta]) -> list[ChatDelta]:
        shown: list[ChatDelta] = []
        for delta in deltas:
            if isinstance(delta, AnswerText):
                text = self._stops.feed(delta.text)
                shown += self._record(AnswerText(text)) if text else []
            elif not self._stops.stopped:
                held = self._stops.flush()
                shown += self._record(AnswerText(held)) if held else []
                shown += self._record(delta)
        return shown

    def _record(self, delta: ChatDelta) -> list[ChatDelta]:
        match delta:
            case AnswerText(text):
                self._answer.append(text)
                delta = AnswerText(text, tuple(self._logprobs))
                self._logprobs.clear()
            case ReasoningText(text):
                self._reasoning.append(text)
            case ToolCallReady(call=call):
                self._calls.append(call)
            case _:
                pass
        return [delta]

"""Plain text completion: token ids in, text and logprobs out, without a chat template."""

from __future__ import annotations

import codecs
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ..chat_model import LocalChatModel
from ..logprobs import token_logprob
from ..stops import StopMatcher
from ..tokenizer import StreamDecoder, Tokenizer
from ..types import AnswerText, ChatDelta, ChatFinished, PrefillProgress, Request, StreamFinished, TokenLogprob, Usage


def prompt_text(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, bytes]:
    """The text of the ids, and the bytes of a character that they leave incomplete at the end."""
    data = b"".join(tokenizer.token_bytes(i) for i in ids)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, decoder.getstate()[0]


class _Text:
    """The text of a completion as it comes; a character that the prompt left incomplete is completed by it."""

    def __init__(self, tokenizer: Tokenizer, stops: StopMatcher, tail: bytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._decoder.feed_bytes(tail)
        self._stops = stops
        self._logprobs: list[TokenLogprob] = []

    def add(self, token: int, logprob: TokenLogprob | None) -> list[ChatDelta]:
        if logprob is not None:
            self._logprobs.append(logprob)
        hidden = token in self._tokenizer.control_ids
        return self._shown(self._stops.feed("" if hidden else self._decoder.push(token)))

    def flush(self) -> list[ChatDelta]:
        if self._stops.stopped:
            return []
        return self._shown(self._stops.feed(self._decoder.flush()) + self._stops.flush(), last=True)

    def _shown(self, text: str, *, last: bool = False) -> list[ChatDelta]:
        if not text and not (last and self._logprobs):
            return []
        delta = AnswerText(text, tuple(self._logprobs))
        self._logprobs.clear()
        return [delta]


async def complete(
    model: LocalChatModel, request: Request, stop: Sequence[str], n_top: int
) -> AsyncGenerator[ChatDelta, None]:
    """The deltas of a completion; raises EngineError for a request that cannot be served."""
    tokenizer = model.files.tokenizer
    stops = StopMatcher(stop)
    text = _Text(tokenizer, stops, prompt_text(tokenizer, request.token_ids)[1])
    progress, n_tokens = PrefillProgress(0, len(request.token_ids), 0), 0
    begun_s = last_s = time.perf_counter()
    first_s = 0.0
    async with aclosing(model.engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, PrefillProgress):
                progress = event
                yield event
                continue
            if isinstance(event, StreamFinished):
                for delta in text.flush():
                    yield delta
                yield ChatFinished(event.reason, event.usage, event.error)
                return
            last_s = time.perf_counter()
            first_s = first_s or last_s
            for i, token in enumerate(event.ids):
                n_tokens += 1
                values = event.logprobs[i] if event.logprobs else None
                for delta in text.add(token, token_logprob(tokenizer, token, values, n_top) if values else None):
                    yield delta
                if stops.stopped:
                    usage = Usage(
                        progress.total_tokens, progress.cached_tokens, n_tokens, first_s - begun_s, last_s - first_s
                    )
                    yield ChatFinished("stop", usage, stop_sequence=stops.matched)
                    return

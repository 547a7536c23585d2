"""The model's context as a budget: what a prompt takes, what is left, and cutting a text to what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pointcode_local.engine.errors import ContextOverflow
from pointcode_local.engine.types import ChatModel, Message, ToolSpec
from pointcode_local.events import ContextAdded
from pointcode_local.shortened import shortened

MAX_RESULT_TOKENS = 30_000
MIN_RESULT_TOKENS = 150


class Window:
    """Counts prompts in tokens. A part of the context stays free for the answer (`reserve`)."""

    def __init__(self, model: ChatModel, tools: Sequence[ToolSpec]) -> None:
        self._model = model
        self._tools = tuple(tools)
        self._begin()

    def _begin(self) -> None:
        self._scale = 1.0  # above 1 when a server counted more tokens than we did
        self.limit = self._model.context_tokens
        self.reserve = min(4096, self.limit // 4)

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt with these messages and the tools."""
        return math.ceil(self._model.count_tokens(messages, self._tools) * self._scale)

    def count_text(self, text: str) -> int:
        """Tokens that `text` adds to a prompt."""
        return math.ceil(self._model.count_tokens((Message("user", text),)) * self._scale)

    def room(self, messages: Sequence[Message]) -> int:
        """Tokens left after the prompt and the reserve; negative when it does not fit."""
        return self.limit - self.reserve - self.count(messages)

    @property
    def working_room(self) -> int:
        """Tokens that should be left before a model call, so that the next results need not be cut to nothing."""
        return self.limit // 8

    def learn(self, error: ContextOverflow, messages: Sequence[Message]) -> None:
        """Correct the count by what a server said when it refused `messages`."""
        counted = self._model.count_tokens(messages, self._tools)
        if 0 < error.context_tokens < self.limit:
            self.limit = error.context_tokens
            self.reserve = min(4096, self.limit // 4)
        if error.prompt_tokens > counted > 0:
            self._scale = error.prompt_tokens / counted
        elif counted <= self.limit:
            self._scale *= 1.3

    def forget(self) -> bool:
        """Take back what refusals taught: the server is asked again. False when there is nothing to take back."""
        if self._scale == 1.0 and self.limit == self._model.context_tokens:
            return False
        self._begin()
        return True

    def settle(self, prompt_tokens: int, messages: Sequence[Message]) -> None:
        """A server has read `messages` and counted them: what was learnt from a refusal is measured again, since the
        model's own count may have learnt from it too."""
        if self._scale > 1.0 and prompt_tokens > 0:
            self._scale = max(1.0, prompt_tokens / max(1, self._model.count_tokens(messages, self._tools)))

    def cut_result(self, text: str, messages: Sequence[Message]) -> str:
        """A tool's result cut so that it takes at most two thirds of what is left, and no more than its share."""
        share = min(MAX_RESULT_TOKENS, (self.limit - self.reserve) * 2 // 5)
        if len(text) <= MIN_RESULT_TOKENS:  # a character is at most about one token
            return text
        left = max(MIN_RESULT_TOKENS, self.room(messages) * 2 // 3)
        return self.cut(text, min(share, left))

    def fitted(self, added: Sequence[ContextAdded]) -> list[ContextAdded]:
        """Texts that come with one prompt, cut so that together they take at most two thirds of the context; what a
        short one leaves goes to those after it."""
        left = (self.limit - self.reserve) * 2 // 3
        out: list[ContextAdded] = []
        for i, one in enumerate(added):
            out.append(replace(one, text=self.cut(one.text, max(MIN_RESULT_TOKENS, left // (len(added) - i)))))
            left -= self.count_text(out[-1].text)
        return out

    def cut(self, text: str, max_tokens: int) -> str:
        """`text` with its middle left out when it has more than `max_tokens`; head and tail stay, cut at line ends."""
        n_tokens = self.count_text(text)
        if n_tokens <= max_tokens:
            return text
        return shortened(text, int(len(text) * max_tokens / n_tokens * 0.95))

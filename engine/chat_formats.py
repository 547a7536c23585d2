"""How each family marks reasoning, answers and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from .tokenizer import Tokenizer


class Mark(Enum):
    """What a marker does."""

    REASONING_BEGIN = "reasoning_begin"
    REASONING_END = "reasoning_end"
    ANSWER = "answer"  # begins or ends the visible answer; never shown itself
    CALL_BEGIN = "call_begin"
    CALL_END = "call_end"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A family's markers. `marks` are those that a marker's text stands for.

    `loose_calls`: the model also writes calls as bare or fenced JSON. `trims`: line breaks around reasoning and calls
    belong to the form, not to the text.
    """

    name: str
    marks: Mapping[str, Mark]
    loose_calls: bool
    trims: bool
    call_keys: tuple[str, str] = ("name", "arguments")
    call_array: bool = False
    call_begin: str = field(default="")
    call_end: str = field(default="")

    def marks_by_id(self, tokenizer: Tokenizer) -> dict[int, Mark]:
        """The markers that are entries of the tokenizer's vocabulary."""
        return {tokenizer.markers[text]: mark for text, mark in self.marks.items() if text in tokenizer.markers}

    def text_marks(self, tokenizer: Tokenizer) -> dict[str, Mark]:
        """The markers that the model can only spell out."""
        return {text: mark for text, mark in self.marks.items() if text not in tokenizer.markers}


CHATML = ChatFormat(
    name="chatml",
    marks={
        "<think>": Mark.REASONING_BEGIN,
        "</think>": Mark.REASONING_END,
        "<tool_call>": Mark.CALL_BEGIN,
        "</tool_call>": Mark.CALL_END,
    },
    loose_calls=True,
    trims=True,
    call_begin="<tool_call>",
    call_end="</tool_call>",
)
COHERE = ChatFormat(
    name="cohere",
    marks={
        "<|START_THINKING|>": Mark.REASONING_BEGIN,
        "<|END_THINKING|>": Mark.REASONING_END,
        "<|START_TEXT|>": Mark.ANSWER,
        "<|END_TEXT|>": Mark.ANSWER,
        "<|START_RESPONSE|>": Mark.ANSWER,
        "<|END_RESPONSE|>": Mark.ANSWER,
        "<|START_ACTION|>": Mark.CALL_BEGIN,
        "<|END_ACTION|>": Mark.CALL_END,
    },
    loose_calls=False,
    trims=False,
    call_keys=("tool_name", "parameters"),
    call_array=True,
    call_begin="<|START_ACTION|>",
    call_end="<|END_ACTION|>",
)


def format_of(tokenizer: Tokenizer) -> ChatFormat:
    """The form that a model's markers belong to: Cohere's when its vocabulary has them, ChatML otherwise."""
    return COHERE if COHERE.call_begin in tokenizer.markers else CHATML


def opens_reasoning(prompt_ids: Sequence[int], tokenizer: Tokenizer, form: ChatFormat) -> bool:
    """Whether the prompt ends inside a reasoning block, so that the reply begins there without an opener."""
    marks = form.marks_by_id(tokenizer)
    for i in reversed(prompt_ids):
        if i in marks:
            return marks[i] is Mark.REASONING_BEGIN
        if i in tokenizer.control_ids:
            return False
    return False


def reasoning_end_id(tokenizer: Tokenizer, form: ChatFormat) -> int | None:
    """The token that closes a reasoning block (to force when its budget is spent); None where it is not one token."""
    return next((i for i, mark in form.marks_by_id(tokenizer).items() if mark is Mark.REASONING_END), None)

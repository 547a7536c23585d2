"""White space and brackets without end around calls, as small models write them: the parser holds little of it."""

from __future__ import annotations

import pytest

from pointcode_local.engine.loose_calls import MAX_HELD_CHARS
from pointcode_local.engine.types import AnswerText

from .test_chat_parse import call, merged, parser_of, tokenizer_of


@pytest.mark.parametrize("begun", ["```json", "```json\n", "<function_call>", "<function_call>\n"])
@pytest.mark.parametrize("space", [" ", "\n"])
def test_white_space_without_end_before_a_call_is_text_and_not_held(begun: str, space: str) -> None:
    """Small models write it up to their limit; each character would look at all of what is held."""
    parser = parser_of("llama")
    shown = merged(parser.push(tokenizer_of("llama").encode(begun + space * 5000)))
    assert len(parser._machine._held) <= MAX_HELD_CHARS
    assert merged([*shown, *parser.finish("length")]) == [AnswerText(begun + space * 5000)]


@pytest.mark.parametrize("tail", [" ", "}", "\n", "\t"])
@pytest.mark.parametrize("opener", ["", "```json\n", "Well.\n"])
def test_a_call_stands_when_nothing_follows_for_long(opener: str, tail: str) -> None:
    parser = parser_of("llama")
    reply = opener + '{"name": "read", "arguments": {"path": "a"}}' + tail * 5000
    deltas = merged(parser.push(tokenizer_of("llama").encode(reply)))
    assert deltas[-1 if tail != "}" else -2] == call(0, "read", '{"path": "a"}')[-1], "before the end of the reply"
    assert parser.finish_reason("stop") == "tool_calls"

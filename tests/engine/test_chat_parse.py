"""Replies of every family become reasoning, answer and tool calls; the cases that other engines got wrong included."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.engine.chat_formats import format_of, opens_reasoning, reasoning_end_id
from pointcode_local.engine.chat_parse import ReplyParser, new_call_id
from pointcode_local.engine.tokenizer import Tokenizer
from pointcode_local.engine.types import (
    AnswerText,
    ChatDelta,
    FinishReason,
    ReasoningText,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
)

from .tiny_models import Family, write_tokenizer

TOOLS = ("read", "list")


@functools.cache
def tokenizer_of(family: Family) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(family, Path(folder))
        return Tokenizer.from_folder(Path(folder))


def parser_of(family: Family, *, in_reasoning: bool = False, tools: tuple[str, ...] = TOOLS) -> ReplyParser:
    tokenizer = tokenizer_of(family)
    ids = (f"c{n}" for n in range(100))
    form = format_of(tokenizer)
    return ReplyParser(tokenizer, form, tools, in_reasoning=in_reasoning, call_id=lambda: next(ids))


def merged(deltas: list[ChatDelta]) -> list[ChatDelta]:
    out: list[ChatDelta] = []
    for delta in deltas:
        match out[-1:], delta:
            case [AnswerText(text=before)], AnswerText(text=text):
                out[-1] = AnswerText(before + text)
            case [ReasoningText(text=before)], ReasoningText(text=text):
                out[-1] = ReasoningText(before + text)
            case [ToolCallArguments(index=i, text=before)], ToolCallArguments(index=j, text=text) if i == j:
                out[-1] = ToolCallArguments(i, before + text)
            case _:
                out.append(delta)
    return out


def parse(
    family: Family,
    reply: str,
    *,
    reason: FinishReason = "stop",
    in_reasoning: bool = False,
    tools: tuple[str, ...] = TOOLS,
) -> list[ChatDelta]:
    parser = parser_of(family, in_reasoning=in_reasoning, tools=tools)
    ids = tokenizer_of(family).encode(reply, allow_special=True)
    return merged([*parser.push(ids), *parser.finish(reason)])


def call(index: int, name: str, arguments: str) -> list[ChatDelta]:
    """The whole life of a call."""
    begun = ToolCallBegun(index, f"c{index}", name)
    return [begun, ToolCallArguments(index, arguments), ToolCallReady(index, ToolCall(f"c{index}", name, arguments))]


# ---------------------------------------------------------------------------------------------------------- ChatML
def test_a_tagged_call_after_text() -> None:
    reply = 'Let me see.\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    assert parse("qwen2", reply) == [AnswerText("Let me see."), *call(0, "read", '{"path": "a"}')]


def test_several_calls_are_numbered_and_text_between_them_is_kept() -> None:
    one = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>\n'
    expected = [*call(0, "read", "{}"), AnswerText("and"), *call(1, "read", "{}")]
    assert parse("qwen2", one + "and\n" + one) == expected


def test_the_order_of_keys_does_not_matter() -> None:
    reply = '<tool_call>{"arguments": {"path": [1, {"x": "}"}]}, "name": "read"}</tool_call>'
    assert parse("qwen2", reply) == call(0, "read", '{"path": [1, {"x": "}"}]}')


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "read"}', "{}"),
        ('{"name": "read", "arguments": {}}', "{}"),
        ('{"name": "read", "arguments": null}', "{}"),
        ('{"name": "read", "arguments": "{\\"path\\": 1}"}', '{"path": 1}'),
        ('{"type": "function", "function": {"name": "read", "arguments": {"path": "a"}}}', '{"path": "a"}'),
        ('{"function": "read", "parameters": {"path": "a"}}', '{"path": "a"}'),
        ('{"name": "read", "arguments": {"path": "a\nb"}}', '{"path": "a\\nb"}'),
        ('{"name": "read", "arguments": {"path": "é\\u00e9"}}', '{"path": "é\\u00e9"}'),
        ('{"name": "read", "arguments": {"path": "a"}', '{"path": "a"}'),
        ('{"name": "read", "arguments": {"path": "\\\\"}}', '{"path": "\\\\"}'),
    ],
)
def test_sloppy_json_in_tags_is_read(text: str, arguments: str) -> None:
    assert parse("qwen2", f"<tool_call>\n{text}\n</tool_call>") == call(0, "read", arguments)


def test_an_end_marker_inside_a_string_does_not_end_the_call() -> None:
    reply = '<tool_call>{"name": "read", "arguments": {"path": "a</tool_call>b"}}</tool_call>'
    assert parse("qwen2", reply) == call(0, "read", '{"path": "a</tool_call>b"}')


def test_a_call_cut_by_the_limit_is_begun_but_never_ready() -> None:
    reply = '<tool_call>{"name": "read", "arguments": {"path": "a"}'
    cut = parse("qwen2", reply, reason="length")
    assert cut == [ToolCallBegun(0, "c0", "read"), ToolCallArguments(0, '{"path": "a"}')]
    assert parse("qwen2", '<tool_call>{"name": "re', reason="length") == []


def test_a_block_without_a_call_is_shown_as_text() -> None:
    assert parse("qwen2", "<tool_call>nothing</tool_call>") == [AnswerText("nothing")]


def test_thinking_is_reasoning_and_its_line_breaks_are_not_shown() -> None:
    assert parse("qwen2", "<think>\nhm\n</think>\n\nHi  you") == [ReasoningText("hm"), AnswerText("Hi  you")]
    assert parse("llama", "<think>\nhm </t\n</think>\n\nHi") == [ReasoningText("hm </t"), AnswerText("Hi")]


def test_reasoning_cut_by_the_limit_is_not_shown_as_answer() -> None:
    assert parse("qwen2", "<think>so far", reason="length") == [ReasoningText("so far")]
    assert parse("qwen2", "so far", reason="length", in_reasoning=True) == [ReasoningText("so far")]


def test_leading_and_trailing_white_space_of_an_answer_stays() -> None:
    assert parse("qwen2", "  a\n\n b \n") == [AnswerText("  a\n\n b \n")]


# ---------------------------------------------------------------------------------------------------------- loose calls
BARE = '{"name": "read", "arguments": {"path": "a"}}'


@pytest.mark.parametrize(
    "reply",
    [
        BARE,
        f"\n\n{BARE}\n",
        f"```json\n{BARE}\n```",
        f"```\n{BARE}\n```\n",
        f"<tools>\n{BARE}\n</tools>",
        f"[{BARE}]",
        json.dumps(json.loads(BARE), indent=2),
        BARE + "}",
        BARE + "</tool_call>",
    ],
)
def test_json_alone_is_a_call(reply: str) -> None:
    assert parse("qwen2", reply) == call(0, "read", parse_arguments_of(reply))


def parse_arguments_of(reply: str) -> str:
    begin = reply.index("{", reply.index("arguments"))
    return reply[begin : reply.index("}", begin) + 1]


def test_json_after_one_short_sentence_is_a_call() -> None:
    assert parse("llama", f"I will read it:\n\n{BARE}") == [
        AnswerText("I will read it:"),
        *call(0, "read", '{"path": "a"}'),
    ]


@pytest.mark.parametrize("block", [f"```json\n{BARE}\n```", BARE, f"[{BARE}]"])
def test_an_explanation_of_the_form_is_not_executed(block: str) -> None:
    """As a 0.5 B model explains the form when asked: a sentence, the block, and prose about it."""
    reply = f"To read a file, you would write:\n\n{block}\n\nThis names the tool and the path."
    assert parse("qwen2", reply) == [AnswerText(reply)]


def test_several_calls_after_one_short_sentence() -> None:
    reply = f"Both:\n{BARE}\n```json\n{BARE}\n```\n"
    calls = [*call(0, "read", '{"path": "a"}'), *call(1, "read", '{"path": "a"}')]
    assert parse("qwen2", reply) == [AnswerText("Both:"), *calls]


def test_a_call_after_a_sentence_that_the_limit_cuts_is_begun() -> None:
    cut = parse("qwen2", 'I read:\n{"name": "read", "arguments": {"path": "a', reason="length")
    begun = [ToolCallBegun(0, "c0", "read"), ToolCallArguments(0, '{"path": "a')]
    assert cut == [AnswerText("I read:"), *begun]


def test_two_bare_calls_on_lines_of_their_own() -> None:
    assert parse("llama", f"{BARE}\n{BARE}") == [*call(0, "read", '{"path": "a"}'), *call(1, "read", '{"path": "a"}')]


def test_tags_that_the_vocabulary_lacks_are_read_as_text() -> None:
    reply = f"First this.\n\nThen a second paragraph, long enough.\n<tool_call>\n{BARE}\n</tool_call>\nDone"
    text = AnswerText("First this.\n\nThen a second paragraph, long enough.")
    assert parse("llama", reply) == [text, *call(0, "read", '{"path": "a"}'), AnswerText("Done")]


@pytest.mark.parametrize(
    "reply",
    [
        f"Use `{BARE}` to call it.",
        f"The form is {BARE}",
        'A line.\nAnother line.\n{"name": "read", "arguments": {"path": "a"}}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "read"}',
        '{"path": "a"}',
        '{"name": "Ann", "age": 3}',
        '```json\n{"path": "a"}\n```',
        f"```python\n{BARE}\n```",
        "[link](target) and {braces}",
        "{",
        "<tool_",
        "``",
        "<b>bold</b>",
    ],
)
def test_other_json_and_prose_about_the_format_stay_text(reply: str) -> None:
    assert parse("qwen2", reply) == [AnswerText(reply)]


def test_prose_behind_a_bare_call_on_its_line_unmakes_it() -> None:
    deltas = parse("qwen2", BARE + " is the form")
    assert [d for d in deltas if isinstance(d, ToolCallReady)] == []
    assert deltas[-1] == AnswerText(BARE + " is the form")


def test_without_tools_json_is_text() -> None:
    assert parse("qwen2", BARE, tools=()) == [AnswerText(BARE)]


# ---------------------------------------------------------------------------------------------------------- Cohere
ACTION = '{"tool_call_id": "0", "tool_name": "read", "parameters": {"path": "a"}}'


def test_cohere_thinks_then_answers() -> None:
    reply = "hm<|END_THINKING|><|START_TEXT|> Hello <|END_TEXT|>"
    assert parse("cohere2_moe", reply, in_reasoning=True) == [ReasoningText("hm"), AnswerText(" Hello ")]


def test_cohere_old_response_markers_are_accepted() -> None:
    assert parse("cohere2_moe", "<|START_RESPONSE|>Hi<|END_RESPONSE|>") == [AnswerText("Hi")]


@pytest.mark.parametrize(
    "block",
    [
        f"[\n{ACTION}\n]",
        ACTION,
        ACTION.replace('"tool_call_id": "0", ', ""),
    ],
    ids=["array", "single object", "no id"],
)
def test_cohere_calls_are_read_from_an_array_a_single_object_or_without_an_id(block: str) -> None:
    reply = f"hm<|END_THINKING|><|START_ACTION|>{block}<|END_ACTION|>"
    expected = [ReasoningText("hm"), *call(0, "read", '{"path": "a"}')]
    assert parse("cohere2_moe", reply, in_reasoning=True) == expected


def test_an_echoed_opener_is_not_shown() -> None:
    reply = "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>Hi<|END_TEXT|>"
    assert parse("cohere2_moe", reply, in_reasoning=True) == [ReasoningText("hm"), AnswerText("Hi")]


def test_a_closer_without_an_opener_is_not_shown() -> None:
    reply = f"I will look.<|END_THINKING|><|START_ACTION|>{ACTION}<|END_ACTION|>"
    assert parse("cohere2_moe", reply) == [AnswerText("I will look."), *call(0, "read", '{"path": "a"}')]


def test_two_actions_in_one_block_and_an_end_marker_in_a_string() -> None:
    second = '{"tool_name": "list", "parameters": {"p": "<|END_ACTION|>"}}'
    block = f"[{ACTION}, {second}]"
    reply = f"<|START_ACTION|>{block}<|END_ACTION|>"
    expected = [*call(0, "read", '{"path": "a"}'), *call(1, "list", '{"p": "<|END_ACTION|>"}')]
    assert parse("cohere2_moe", reply) == expected


def test_a_last_block_without_its_end_marker_is_not_lost() -> None:
    assert parse("cohere2_moe", f"<|START_ACTION|>[{ACTION}") == call(0, "read", '{"path": "a"}')


def test_marker_text_spelled_by_ordinary_tokens_is_text() -> None:
    parser = parser_of("cohere2_moe")
    ids = tokenizer_of("cohere2_moe").encode("see <|START_ACTION|> there")
    assert merged([*parser.push(ids), *parser.finish("stop")]) == [AnswerText("see <|START_ACTION|> there")]


# ---------------------------------------------------------------------------------------------------------- properties
REPLIES: list[tuple[Family, str, bool]] = [
    ("qwen2", f"<think>\nhm 👩‍👩‍👧\n</think>\n\nI read.\n<tool_call>\n{BARE}\n</tool_call>\n", False),
    ("qwen2", f"```json\n{BARE}\n```\nThat é was 日本 it.", False),
    ("qwen2", f"So:\n```json\n{BARE}\n```\nThat é was it.", False),
    ("qwen2", f"So:\n{BARE}\n{BARE}\n", False),
    ("llama", f"<think>a</think>Text\n\n<tool_call>\n{BARE}\n</tool_call>\n<tool_call>{BARE}", False),
    ("llama", BARE + " is the form", False),
    ("cohere2_moe", f"h\nm<|END_THINKING|><|START_ACTION|>[{ACTION},{ACTION}]<|END_ACTION|>", True),
    ("cohere2_moe", "h m<|END_THINKING|><|START_TEXT|> é\n<|END_TEXT|>", True),
]


@pytest.mark.parametrize(("family", "reply", "in_reasoning"), REPLIES)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_result_does_not_depend_on_a_cut_in_two(
    family: Family, reply: str, in_reasoning: bool, reason: FinishReason
) -> None:
    ids = tokenizer_of(family).encode(reply, allow_special=True)
    whole = parse(family, reply, reason=reason, in_reasoning=in_reasoning)
    for cut in range(len(ids) + 1):
        parser = parser_of(family, in_reasoning=in_reasoning)
        assert merged([*parser.push(ids[:cut]), *parser.push(ids[cut:]), *parser.finish(reason)]) == whole


PIECES = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", BARE, "{", "}", "[", '"', "\n", " ", "a", "```", "é", ",",
     "\\", '{"name": "read"', '"arguments": {', "<tools>", "```json\n", "text. "]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=25),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    family=st.sampled_from(["qwen2", "llama"]),
)
def test_any_reply_is_parsed_alike_however_it_is_cut(pieces: list[str], cuts: list[int], family: Family) -> None:
    ids = tokenizer_of(family).encode("".join(pieces), allow_special=True)
    bounds = sorted({0, len(ids), *(c for c in cuts if c < len(ids))})
    parser, deltas = parser_of(family), list[ChatDelta]()
    for begin, end in zip(bounds, bounds[1:], strict=False):
        deltas += parser.push(ids[begin:end])
    deltas = merged([*deltas, *parser.finish("stop")])
    assert deltas == parse(family, "".join(pieces))
    streamed: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallArguments):
            streamed[delta.index] = streamed.get(delta.index, "") + delta.text
        if isinstance(delta, ToolCallReady):
            assert streamed[delta.index] == delta.call.arguments


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_plain_text_comes_through_unchanged(text: str) -> None:
    for family in ("qwen2", "cohere2_moe"):
        parser = parser_of(family, tools=())
        ids = tokenizer_of(family).encode(text)
        assert "".join(d.text for d in [*parser.push(ids), *parser.finish("stop")] if isinstance(d, AnswerText)) == text


# ---------------------------------------------------------------------------------------------------------- helpers
def test_call_ids_are_unique() -> None:
    assert len({new_call_id() for _ in range(100)}) == 100


def test_a_reply_that_ends_with_calls_finishes_as_tool_calls() -> None:
    parser = parser_of("qwen2")
    parser.push(tokenizer_of("qwen2").encode(BARE))
    parser.finish("stop")
    assert parser.finish_reason("stop") == "tool_calls" and parser.finish_reason("length") == "length"


def test_reasoning_is_opened_by_the_prompt_and_can_be_closed_by_one_token() -> None:
    tokenizer = tokenizer_of("cohere2_moe")
    form = format_of(tokenizer)
    prompt = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>"
    assert opens_reasoning(tokenizer.encode(prompt, allow_special=True), tokenizer, form)
    assert not opens_reasoning(tokenizer.encode(prompt + "<|END_THINKING|>", allow_special=True), tokenizer, form)
    assert not opens_reasoning(tokenizer.encode(prompt), tokenizer, form), "user text opens nothing"
    assert reasoning_end_id(tokenizer, form) == tokenizer.markers["<|END_THINKING|>"]


def test_reasoning_tokens_are_counted() -> None:
    parser = parser_of("cohere2_moe", in_reasoning=True)
    ids = tokenizer_of("cohere2_moe").encode("xyz<|END_THINKING|>answer", allow_special=True)
    parser.push(ids)
    assert parser.n_reasoning_tokens == 4 and not parser.in_reasoning

"""Tool-call grammars: what llguidance accepts and refuses under them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.engine.call_grammar import answer_grammar, tool_call_grammar
from pointcode_local.engine.chat_formats import format_of
from pointcode_local.engine.constrain import GrammarFactory
from pointcode_local.engine.tokenizer import Tokenizer
from pointcode_local.engine.tool_schemas import ToolSchemas
from pointcode_local.engine.types import Grammar, ToolSpec

from .tiny_models import Family, write_tokenizer

READ = ToolSpec(
    "read",
    "Read a file",
    {"type": "object", "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}}, "required": ["path"]},
)
LIST = ToolSpec("list", "List a folder", {"type": "object", "properties": {}})


def tokenizer_of(family: Family, tmp_path: Path) -> Tokenizer:
    write_tokenizer(family, tmp_path)
    return Tokenizer.from_folder(tmp_path)


def accepts(grammar: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the whole text, markers included, may be written and may end there."""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    class Words:
        tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.size)]
        special_token_ids = sorted(tokenizer.control_ids)
        eos_token_id = min(tokenizer.end_ids)
        bos_token_id = None

        def __call__(self, text: str) -> list[int]:
            return tokenizer.encode(text)

    words: Any = Words()
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(words)), grammar.source)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, allow_special=True)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


GOOD_CHATML = '\n{"name": "read", "arguments": {"path": "a</tool_call>", "offset": 3}}\n</tool_call>'
BAD_CHATML = [
    '\n{"name": "write", "arguments": {"path": "a"}}\n</tool_call>',
    '\n{"name": "read", "arguments": {"offset": 3}}\n</tool_call>',
    '\n{"name": "read", "arguments": {"path": "a", "mode": 1}}\n</tool_call>',
    '\n{"name": "read", "arguments": {"path": "a"}}\n',
    "\nI will read.</tool_call>",
]


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_chatml_call_keeps_to_name_and_schema(family: Family, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(family, tmp_path)
    grammar = tool_call_grammar([READ, LIST], format_of(tokenizer), tokenizer)
    assert grammar.trigger == "<tool_call>"
    good = GOOD_CHATML.replace("</tool_call>", "", 1) if family == "qwen2" else GOOD_CHATML
    assert accepts(grammar, tokenizer, good)
    assert accepts(grammar, tokenizer, '{"name":"list","arguments":{}}</tool_call>')
    assert [text for text in BAD_CHATML if accepts(grammar, tokenizer, text)] == []


def test_a_cohere_action_is_an_array_of_calls(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("cohere2_moe", tmp_path)
    grammar = tool_call_grammar([READ, LIST], format_of(tokenizer), tokenizer)
    one = '{"tool_call_id": "0", "tool_name": "read", "parameters": {"path": "a"}}'
    two = '{"tool_call_id": "1", "tool_name": "list", "parameters": {}}'
    assert grammar.trigger == "<|START_ACTION|>"
    assert accepts(grammar, tokenizer, f"[\n{one},\n{two}\n]<|END_ACTION|>")
    assert not accepts(grammar, tokenizer, f"{one}<|END_ACTION|>")
    assert not accepts(grammar, tokenizer, "[]<|END_ACTION|>")
    assert not accepts(grammar, tokenizer, f"[{one}]"), "the end marker is a token of its own"


def test_an_end_marker_cannot_stand_inside_a_string(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("cohere2_moe", tmp_path)
    grammar = tool_call_grammar([READ], format_of(tokenizer), tokenizer)
    inside = '[{"tool_call_id": "0", "tool_name": "read", "parameters": {"path": "a<|END_ACTION|>b"}}]<|END_ACTION|>'
    assert not accepts(grammar, tokenizer, inside)


def test_a_forced_reply_is_calls_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("llama", tmp_path)
    form = format_of(tokenizer)
    call = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'
    many = tool_call_grammar([READ, LIST], form, tokenizer, forced=True)
    assert many.trigger == "" and accepts(many, tokenizer, call) and accepts(many, tokenizer, call + "\n" + call)
    assert not accepts(many, tokenizer, "Hello")
    single = tool_call_grammar([LIST], form, tokenizer, forced=True, parallel=False)
    assert accepts(single, tokenizer, call) and not accepts(single, tokenizer, call + "\n" + call)


def test_references_inside_a_tools_schema_are_its_own(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("llama", tmp_path)
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }

    def tool(name: str, point: dict[str, Any]) -> ToolSpec:
        schema = {"type": "object", "properties": {"at": {"$ref": "#/$defs/Point"}}, "required": ["at"]}
        return ToolSpec(name, "", {**schema, "$defs": {"Point": point}})

    tools = [tool("go", point), tool("say", {"type": "string"}), READ]
    grammar = tool_call_grammar(tools, format_of(tokenizer), tokenizer)
    assert accepts(grammar, tokenizer, '{"name": "go", "arguments": {"at": {"x": 3}}}</tool_call>')
    assert accepts(grammar, tokenizer, '{"name": "say", "arguments": {"at": "home"}}</tool_call>')
    assert not accepts(grammar, tokenizer, '{"name": "go", "arguments": {"at": "home"}}</tool_call>')
    assert not accepts(grammar, tokenizer, '{"name": "go", "arguments": {"at": {"x": 3}, "by": 1}}</tool_call>')


def test_a_schema_may_refer_to_itself(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("llama", tmp_path)
    children = {"type": "array", "items": {"$ref": "#"}}
    tree = ToolSpec("tree", "", {"type": "object", "properties": {"children": children}, "required": ["children"]})
    grammar = tool_call_grammar([tree], format_of(tokenizer), tokenizer)
    nested = '{"children": [{"children": []}, {"children": [{"children": []}]}]}'
    assert accepts(grammar, tokenizer, f'{{"name": "tree", "arguments": {nested}}}</tool_call>')
    assert not accepts(grammar, tokenizer, '{"name": "tree", "arguments": {"children": [{}]}}</tool_call>')


X = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
Y = {"type": "object", "properties": {"b": {"enum": [1]}}, "required": ["b"]}
REFERS = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}
DEFINES = {"$defs": {"A": {"enum": ["x"]}}}
GOOD_X, BAD_X = '{"a": "x"}', '{"a": "y"}'


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"anyOf": [X, Y]}, '{"b": 1}', '{"b": 2}'),
        ({"oneOf": [X, Y]}, GOOD_X, "[]"),
        ({"allOf": [X, Y]}, '{"a": "x", "b": 1}', GOOD_X),
        ({"$ref": "#/$defs/A", "$defs": {"A": X}}, GOOD_X, BAD_X),
        ({"$id": "https://x/tool.json", **REFERS, **DEFINES}, GOOD_X, BAD_X),
        ({"$id": "urn:uuid:1-2", **REFERS, **DEFINES}, GOOD_X, BAD_X),
        ({"$id": "https://x/t", "properties": {"a": {"$ref": "https://x/t#/$defs/A"}}, **DEFINES}, GOOD_X, BAD_X),
        ({"$id": "https://x/t", "properties": {"a": {"$ref": "t#/$defs/A"}}, **DEFINES}, GOOD_X, BAD_X),
        ({"properties": {"a": {"$ref": "#one"}}, "$defs": {"A": {"$anchor": "one", "enum": ["x"]}}}, GOOD_X, BAD_X),
        ({"properties": {"a": {"$id": "https://y/z", "$ref": "#/$defs/A", **DEFINES}}}, GOOD_X, BAD_X),
        ({"type": "object", "minProperties": 1}, '{"any": 1}', "{}"),
        ({"type": "object", "properties": {}, "required": ["q"]}, '{"q": 1}', "{}"),
        ({"type": ["object", "null"], "properties": {"a": {"enum": ["x"]}}}, GOOD_X, "null"),
        ({"type": "string"}, "{}", '"x"'),
        ({"const": 5}, '{"any": 1}', "5"),
        ({"$ref": "#"}, '{"any": 1}', "5"),
    ],
)
def test_arguments_of_any_form_are_held_and_fail_nobody(
    schema: dict[str, Any], good: str, bad: str, tmp_path: Path
) -> None:
    """One tool that says its arguments in an unusual way must not fail every request that offers it."""
    tokenizer = tokenizer_of("llama", tmp_path)
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.size)]
    factory = GrammarFactory(tokens, tokenizer.control_ids, sorted(tokenizer.end_ids), tokenizer.encode)
    tools = ToolSchemas(factory.problem_of).held([ToolSpec("odd", "", schema), READ])
    grammar = tool_call_grammar(tools, format_of(tokenizer), tokenizer)
    call = '{"name": "odd", "arguments": %s}</tool_call>'
    assert accepts(grammar, tokenizer, call % good)
    assert not accepts(grammar, tokenizer, call % bad)
    assert accepts(grammar, tokenizer, '{"name": "read", "arguments": {"path": "a"}}</tool_call>')


VERDICT = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


@pytest.mark.parametrize("family", ["qwen2", "llama", "cohere2_moe"])
def test_an_answer_of_a_schema_or_calls_instead(family: Family, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(family, tmp_path)
    form = format_of(tokenizer)
    if form.call_array:
        call = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "list", "parameters": {}}]<|END_ACTION|>'
        answer = '<|START_TEXT|>{"ok": true}<|END_TEXT|>'
    else:
        call = '<tool_call>\n{"name": "list", "arguments": {}}\n</tool_call>'
        answer = '{"ok": true}'
    only = answer_grammar(VERDICT, form, tokenizer)
    either = answer_grammar(VERDICT, form, tokenizer, [LIST], parallel=False)
    assert [accepts(only, tokenizer, text) for text in (answer, call)] == [True, False]
    assert [accepts(either, tokenizer, text) for text in (answer, call)] == [True, True]
    for wrong in ("Well.", answer.replace("true", "1"), answer + call, call + answer, call + call, ""):
        assert not accepts(either, tokenizer, wrong)
    endless = answer.replace("{", "{" + " " * 40)
    assert not accepts(either, tokenizer, endless)


def test_a_name_with_quotes_line_breaks_and_marks_of_direction_is_only_a_name(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("llama", tmp_path)
    name = 'we"ird\n\\ name é\u202e %json {} start: 漢'
    grammar = tool_call_grammar([ToolSpec(name, "", {"type": "object"})], format_of(tokenizer), tokenizer)
    assert accepts(grammar, tokenizer, json.dumps({"name": name, "arguments": {}}, ensure_ascii=False) + "</tool_call>")
    assert not accepts(grammar, tokenizer, '{"name": "we", "arguments": {}}</tool_call>')

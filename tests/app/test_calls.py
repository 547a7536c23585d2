"""Calls in the reply's text: what is run, what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.calls import TextCall, find_calls
from tests.app.agents import Bench, assert_valid_history
from tests.fakes import FakeTool, ScriptedModel, Step, call, say

SCHEMAS: dict[str, Any] = {
    "write": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    "shell": {"type": "object", "properties": {"command": {"type": "string"}, "timeout_s": {"type": "integer"}}},
}
ARGUMENTS = {"path": "a.txt", "content": "line\n"}
CALL = json.dumps({"name": "write", "arguments": ARGUMENTS})
XML = "<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=content>\nline\n\n</parameter>\n</function>"
INVOKE = (
    '<invoke name="write">\n<parameter name="path">a.txt</parameter>\n'
    '<parameter name="content">\nline\n\n</parameter>\n</invoke>'
)

RUN = {
    "tagged": f"<tool_call>\n{CALL}\n</tool_call>",
    "tag without its end": f"<tool_call>\n{CALL}",
    "bare JSON": CALL,
    "a list": f"[{CALL}]",
    "fenced": f"```json\n{CALL}\n```",
    "fenced after a plan": f"I'll create the file.\n\n```json\n{CALL}\n```",
    "after words": f"The file is missing.\n\n{CALL}",
    "parameters": json.dumps({"tool": "write", "parameters": ARGUMENTS}),
    "arguments as text": json.dumps({"name": "write", "arguments": json.dumps(ARGUMENTS)}),
    "OpenAI's shape": json.dumps(
        {"type": "function", "function": {"name": "write", "arguments": json.dumps(ARGUMENTS)}}
    ),
    "function tags": XML,
    "function tags in a call tag": f"<tool_call>\n{XML}\n</tool_call>",
    "invoke tags": f"<function_calls>\n{INVOKE}\n</function_calls>",
    "Mistral's list": f"[TOOL_CALLS] [{CALL}]",
    "Mistral's name": f"[TOOL_CALLS]write{json.dumps(ARGUMENTS)}",
    "Llama's tag": f"<|python_tag|>{CALL}",
    "Cohere's action": "<|START_ACTION|>["
    + json.dumps({"tool_call_id": "0", "tool_name": "write", "parameters": ARGUMENTS})
    + "]<|END_ACTION|>",
    "raw line feeds in strings": '<tool_call>{"name": "write", "arguments": {"path": "a.txt", "content": "line\n"}}',
}


@pytest.mark.parametrize("text", RUN.values(), ids=RUN.keys())
def test_a_call_that_ends_the_reply_is_found_in_every_form(text: str):
    found = find_calls(text, SCHEMAS)
    assert found.problem == ""
    assert [(c.name, json.loads(c.arguments, strict=False)) for c in found.calls] == [("write", ARGUMENTS)]


NOT_RUN = {
    "in back quotes": f"A call is `<tool_call>{CALL}</tool_call>`, one a message.",
    "fenced, with words after it": f"Write this:\n```\n<tool_call>{CALL}</tool_call>\n```\nThat is all.",
    "fenced as an example": f"The format is:\n```json\n{CALL}\n```",
    "fenced after other words": f"Tools take JSON:\n\n```json\n{CALL}\n```",
    "an example": f"An example:\n\n<tool_call>\n{CALL}\n</tool_call>",
    "words after it": f"<tool_call>{CALL}</tool_call>\nis how it is done.",
    "quoted": f"> <tool_call>{CALL}</tool_call>",
    "another language": f"```python\ncall = {CALL}\n```",
    "no tool of that name": json.dumps({"name": "Ada", "arguments": {"x": 1}}),
    "no arguments": json.dumps({"name": "write", "size": 3}),
    "tags alone": "The tags are <tool_call> and </tool_call>.",
    "in the middle of a line": f"As in <tool_call>{CALL}</tool_call>, for one.",
    "a link": "[link](https://example.invalid)\n{a: b}",
}


@pytest.mark.parametrize("text", NOT_RUN.values(), ids=NOT_RUN.keys())
def test_words_about_calls_are_not_run(text: str):
    found = find_calls(text, SCHEMAS)
    assert found.calls == ()
    assert found.text == text


CUT = {
    "tagged": '<tool_call>\n{"name": "write", "arguments": {"path": "a.txt", "content": "li',
    "bare": CALL[:-6],
    "fenced": f"```json\n{CALL[:-6]}",
    "function tags": XML[:70],
    "function tags with a parameter open": XML.replace("</parameter>\n</function>", ""),
    "the second of two": f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL[:20]}",
}


@pytest.mark.parametrize("text", CUT.values(), ids=CUT.keys())
def test_a_call_that_is_cut_short_is_never_run(text: str):
    found = find_calls(text, SCHEMAS)
    assert found.calls == ()
    assert found.problem == "cut"


@given(st.integers(min_value=1, max_value=len(CALL) - 1))
def test_no_beginning_of_a_call_is_run(n: int):
    assert find_calls(f"<tool_call>{CALL[:n]}", SCHEMAS).calls == ()


@given(st.text())
def test_any_text_is_read_without_an_error(text: str):
    assert find_calls(text, SCHEMAS).calls == () or "write" in text or "shell" in text


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_content_comes_through_as_it_is(content: str):
    text = json.dumps({"name": "write", "arguments": {"path": "a", "content": content}}, ensure_ascii=False)
    (found,) = find_calls(f"<tool_call>\n{text}\n</tool_call>", SCHEMAS).calls
    assert json.loads(found.arguments)["content"] == content


def test_several_calls_keep_their_order():
    other = '{"name": "shell", "arguments": {"command": "ls"}}'
    found = find_calls(f"<tool_call>{CALL}</tool_call>\n<tool_call>{other}</tool_call>", SCHEMAS)
    assert [c.name for c in found.calls] == ["write", "shell"]


def test_values_in_tags_take_the_type_of_the_schema():
    text = "<function=shell><parameter=command>echo 1</parameter><parameter=timeout_s>7</parameter></function>"
    assert find_calls(text, SCHEMAS).calls == (TextCall("shell", '{"command": "echo 1", "timeout_s": 7}'),)


def test_a_bare_call_of_an_unknown_tool_is_asked_about():
    found = find_calls('{"name": "add", "arguments": {"a": 1}}', SCHEMAS)
    assert (found.calls, found.problem) == ((), "doubtful")


def test_words_before_a_call_stay():
    assert find_calls(f"I will write it.\n\n{CALL}", SCHEMAS).text == "I will write it."


def test_a_tagged_call_of_an_unknown_tool_is_a_call():
    found = find_calls('<tool_call>{"name": "open", "arguments": {}}</tool_call>', SCHEMAS)
    assert [c.name for c in found.calls] == ["open"]


QUOTED = f"The last line of the file says:\n\n{json.dumps({'name': 'look', 'arguments': {}})}"


def looks(folder: Path, *steps: Step, is_small: bool = False) -> int:
    """How often the tool was called in a turn whose last words are QUOTED."""
    tool = FakeTool("look")
    bench = Bench(folder, ScriptedModel(*steps, is_small=is_small), [tool])
    bench.play()
    assert_valid_history(bench.last_messages)
    return len(tool.contexts)


def test_what_a_model_quotes_that_makes_its_calls_properly_is_not_run(tmp_path: Path):
    """A file that it reads could else bring it to run what stands in it."""
    for n, steps in enumerate(([say(QUOTED), say(QUOTED)], [say(QUOTED), say("It says so.")])):
        (tmp_path / str(n)).mkdir()
        assert looks(tmp_path / str(n), call("look"), *steps) == 1


def test_calls_in_text_are_run_for_models_that_know_no_other_way(tmp_path: Path):
    for name, steps, is_small in (
        ("text", [say(QUOTED), say("Done.")], False),
        ("small", [call("look"), say(QUOTED), say("Done.")], True),
        ("tagged", [call("look"), say(f"<tool_call>\n{QUOTED.splitlines()[-1]}\n</tool_call>"), say("Done.")], False),
    ):
        (tmp_path / name).mkdir()
        assert looks(tmp_path / name, *steps, is_small=is_small) == len(steps) - 1

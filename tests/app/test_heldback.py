"""What a reply shows while it is written: its words at once, what may become a call only when it is known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.events import AssistantMessage
from pointcode_local.heldback import HeldBack, is_block_of_call

PIECES = ["a", "\n", "<", "<tool_call>", "{", '"name":', "```json\n", " ", "[TOOL"]
FUNCTION = "<function=read>\n<parameter=path>a</parameter></function>"
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'


def played(text: str, whole: str, cut: int = 1) -> tuple[str, str]:
    """What is shown while `text` arrives, and what is added when `whole` is known to be the answer."""
    reply = HeldBack()
    shown = "".join(reply.feed(text[at : at + cut]) for at in range(0, len(text), cut))
    return shown, reply.rest(whole)


@pytest.mark.parametrize("cut", [1, 3, 1000])
@pytest.mark.parametrize("call", [CALL, FUNCTION, "[TOOL_CALLS] [1]"])
def test_the_text_of_a_call_is_never_shown(call: str, cut: int) -> None:
    assert played(f"I look.\n\n{call}", "I look.", cut) == ("I look.\n", "")


@pytest.mark.parametrize(
    "call", ['{"name": "read", "arguments": {}}', '```json\n{"name": "read"}\n```', '\n\n```\n{"name": "x"}\n```']
)
def test_json_is_held_back_where_it_is_the_whole_reply(call: str) -> None:
    assert played(call, "") == ("", "")
    assert played(call, call) == ("", call)


def test_long_json_that_names_no_tool_is_an_answer_and_streams() -> None:
    json = '{"servers": [' + ", ".join(f'{{"host": "h{n}"}}' for n in range(40)) + "]}\nThat is all.\n"
    shown, rest = played(json, json)
    assert shown + rest == json and len(shown) > len(json) - 20


def test_prose_about_calls_streams_and_a_refused_call_is_shown_at_the_end() -> None:
    prose = "Write `<tool_call>` there.\n  <b>x</b>\n- {a}\n"
    assert played(prose, prose) == (prose, "")
    assert played(CALL, CALL) == ("", CALL)


def test_a_reply_that_is_stopped_gives_up_what_it_held() -> None:
    reply = HeldBack()
    assert reply.feed("One\n{") == "One\n{"
    assert reply.feed("\n<tool") == "\n" and reply.abandon() == "<tool"
    assert reply.feed("next") == "next"


@given(
    st.lists(st.sampled_from(["a", "\n", "<", "<tool_call>", "{", '"name":', "```json\n", " ", "[TOOL"]), max_size=12)
)
def test_however_it_is_cut_all_of_an_answer_is_shown_once(pieces: list[str]) -> None:
    text = "".join(pieces)
    reply = HeldBack()
    shown = "".join(map(reply.feed, pieces))
    assert shown + reply.rest(text) == text


@pytest.mark.parametrize(
    ("text", "call", "is_one"),
    [
        ("a.py:\n```python\nx = 1\n```", ("write", {"path": "a.py", "content": "x = 1\n"}), True),
        ("a.md:\n````markdown\n```\nx\n```\n````", ("edit", {"path": "a.md", "edits": []}), True),
        ("```sh\nls -l\n```", ("shell", {"command": "ls -l"}), True),
        ("```sh\nls -l\n```", ("shell", {"command": "ls"}), False),
        ("b.py:\n```python\nx = 1\n```", ("write", {"path": "a.py"}), False),
        ("I write a.py:\n```python\nx = 1\n```", ("write", {"path": "a.py"}), False),
        ("a.py:\n```python\nx = 1\n```\nDone.", ("write", {"path": "a.py"}), False),
        ("a.py:\n```\nx\n```\nand\n```\ny\n```", ("write", {"path": "a.py"}), False),
    ],
)
def test_a_block_that_became_a_call_is_known(text: str, call: tuple[str, dict[str, object]], is_one: bool) -> None:
    calls = (("c1", call[0], json.dumps(call[1])),)
    assert is_block_of_call(AssistantMessage(text, "", calls)) == is_one
    assert not is_block_of_call(AssistantMessage(text, "", ()))

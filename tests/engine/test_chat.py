"""Templates: the ids of transformers, nothing forged, prefixes that stay, templates that know no tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.engine import chat
from pointcode_local.engine.chat import ChatTemplate, ConversationIds, parse_arguments, template_of_folder
from pointcode_local.engine.errors import ModelError, RequestError
from pointcode_local.engine.tokenizer import Tokenizer
from pointcode_local.engine.types import Message, ToolCall, ToolSpec

from .tiny_models import Family, write_tokenizer

FAMILIES: list[Family] = ["qwen2", "llama", "cohere2_moe"]
READ = ToolSpec("read", 'Read <a> "file"', {"type": "object", "properties": {"path": {"type": "string"}}})
CALL = Message("assistant", "", reasoning="look", tool_calls=(ToolCall("x1", "read", '{"path": "ä.py"}'),))
RESULT = Message("tool", "print('hi')\n", tool_call_id="x1", name="read")
TALK = (
    Message("system", "Be brief."),
    Message("user", "Read ä.py"),
    CALL,
    RESULT,
    Message("assistant", "Done.", reasoning="ok"),
    Message("user", "Thanks"),
)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[Family, ChatTemplate]:
    made: dict[Family, ChatTemplate] = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        write_tokenizer(family, folder)
        made[family] = template_of_folder(folder, Tokenizer.from_folder(folder))
    return made


def text_of(template: ChatTemplate, ids: list[int]) -> str:
    return template.tokenizer.decode(ids)


@pytest.mark.parametrize("family", ["qwen2", "cohere2_moe"])
def test_the_ids_are_those_of_transformers(family: Family, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(family, tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    template = template_of_folder(tmp_path, Tokenizer.from_folder(tmp_path))
    call: dict[str, Any] = {"type": "function", "function": {"name": "read", "arguments": {"path": "ä.py"}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read ä.py"},
        {"role": "assistant", "content": "", "reasoning_content": "look", "tool_calls": [call]},
        {"role": "tool", "content": "print('hi')\n"},
        {"role": "assistant", "content": "Done.", "reasoning_content": "ok"},
        {"role": "user", "content": "Thanks"},
    ]
    function = {"name": READ.name, "description": READ.description, "parameters": dict(READ.parameters)}
    tools = [{"type": "function", "function": function}]
    expected = reference.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    ids = template.render(TALK, [READ])
    assert text_of(template, ids) == expected
    assert ids == reference.encode(expected, add_special_tokens=False)


FORGERIES = [
    "<|im_end|>",
    "<|im_start|>system\n",
    "<|END_OF_TURN_TOKEN|>",
    "<|START_ACTION|>",
    "<tool_call>",
    "</think>",
]


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.sampled_from([*FORGERIES, "a", "\ue000", " ", "<", '"', "\n"]), max_size=8))
def test_no_message_tool_or_argument_can_forge_a_marker(
    templates: dict[Family, ChatTemplate], pieces: list[str]
) -> None:
    text = "".join(pieces)
    tool = ToolSpec("read", text, {"type": "object", "properties": {"p": {"description": text, "type": "string"}}})
    for template in templates.values():
        markers = set(template.tokenizer.markers.values())

        def talk(content: str, template: ChatTemplate = template) -> list[int]:
            call = ToolCall("1", "read", '{"path": ' + __import__("json").dumps(content) + "}")
            messages = [
                Message("system", content),
                Message("user", content),
                Message("assistant", content, reasoning=content, tool_calls=(call,)),
                Message("tool", content, tool_call_id="1"),
            ]
            return template.render(messages, [tool])

        plain = [i for i in talk("a") if i in markers]
        assert [i for i in talk(text) if i in markers] == plain
        assert text.strip() in text_of(template, template.render([Message("user", text)]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_keeps_the_ids_of_its_beginning(family: Family, templates: dict[Family, ChatTemplate]) -> None:
    template = templates[family]
    whole = template.render(TALK, [READ])
    for n in (2, 4):
        prompt = template.render(TALK[:n], [READ])
        cut = len(prompt) - (1 if family == "cohere2_moe" else 0)  # its prompt ends inside the reply's thinking block
        assert whole[:cut] == prompt[:cut]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_model_wrote_keeps_its_exact_ids(family: Family, templates: dict[Family, ChatTemplate]) -> None:
    template = templates[family]
    conversation = ConversationIds(template)
    start = TALK[:2]
    prompt = conversation.prompt(start, [READ])
    assert prompt == template.render(start, [READ])
    generated = [template.tokenizer.encode(c)[0] for c in "odd spelling of {a call}"]
    end = min(template.tokenizer.end_ids)
    conversation.remember(start, [READ], CALL, prompt, [*generated, end])
    following = conversation.prompt([*start, CALL, RESULT], [READ])
    assert following[: len(prompt) + len(generated)] == [*prompt, *generated]
    rendered = text_of(template, template.render([*start, CALL, RESULT], [READ]))
    rest = text_of(template, following[len(prompt) + len(generated) :])
    assert rendered.endswith(rest) and rest.startswith(tuple(template.tokenizer.markers))
    again = conversation.prompt([*start, CALL, RESULT], [])
    assert again[: len(prompt)] != prompt or family == "llama", "other tools are another conversation"


def test_a_client_may_trim_a_reply_and_rename_its_calls(templates: dict[Family, ChatTemplate]) -> None:
    conversation = ConversationIds(templates["qwen2"])
    prompt = conversation.prompt(TALK[:2])
    call = ToolCall("x1", "read", "{}")
    conversation.remember(TALK[:2], (), Message("assistant", "Hi\n", tool_calls=(call,)), prompt, [270, 271])
    back = Message("assistant", "Hi", tool_calls=(ToolCall("call_9", "read", "{}"),))
    assert conversation.prompt([*TALK[:2], back, RESULT])[: len(prompt) + 2] == [*prompt, 270, 271]


def test_a_template_that_rewrites_history_is_rendered_anew(templates: dict[Family, ChatTemplate]) -> None:
    source = (
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
        "{%- if m.role == 'assistant' and loop.last %}{{ m.reasoning_content }}{% endif %}{{ m.content }}<|im_end|>\n"
        "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ChatTemplate(source, templates["qwen2"].tokenizer)
    messages = [Message("user", "a"), Message("assistant", "b", reasoning="long"), Message("user", "c")]
    prompt = template.render(messages[:1])
    assert template.extend(prompt, [5, 6], messages, 2) is None
    conversation = ConversationIds(template)
    conversation.remember(messages[:1], (), messages[1], prompt, [5, 6])
    assert conversation.prompt(messages) == template.render(messages)


def test_tools_are_described_in_the_system_message_where_the_template_knows_none(
    templates: dict[Family, ChatTemplate],
) -> None:
    template = templates["llama"]
    assert not template.knows_tools and templates["qwen2"].knows_tools and templates["cohere2_moe"].knows_tools
    text = text_of(template, template.render(TALK[:4], [READ]))
    for part in (
        "Be brief.\n\n# Tools",
        '"name": "read"',
        '<tool_call>\n{"name": "read", "arguments": {"path": "ä.py"}}',
    ):
        assert part in text
    assert "<|im_start|>user\n<tool_response>\nprint('hi')" in text and "<|im_start|>tool" not in text
    assert "# Tools" in text_of(template, template.render(TALK[1:2], [READ]))


def test_thinking_can_be_switched_off_by_a_variable(templates: dict[Family, ChatTemplate]) -> None:
    on = templates["cohere2_moe"]
    off = ChatTemplate(on.source, on.tokenizer, {"reasoning": False})
    assert text_of(on, on.render(TALK[:2])).endswith("<|START_THINKING|>")
    assert text_of(off, off.render(TALK[:2])).endswith("<|START_THINKING|><|END_THINKING|>")


def test_arguments_reach_the_template_as_an_object() -> None:
    assert parse_arguments('{"a": 1}') == {"a": 1} and parse_arguments("") == {}
    assert parse_arguments('{"a": "line\nbreak"}') == {"a": "line\nbreak"}
    assert parse_arguments("not json") == {"raw": "not json"} and parse_arguments("[1]") == {"raw": "[1]"}


def test_invalid_arguments_in_the_history_do_not_fail_the_request(templates: dict[Family, ChatTemplate]) -> None:
    broken = Message("assistant", tool_calls=(ToolCall("1", "read", '{"path": '),))
    for template in templates.values():
        assert template.render([TALK[1], broken, RESULT], [READ])


def test_a_template_cannot_leave_its_sandbox(templates: dict[Family, ChatTemplate]) -> None:
    tokenizer = templates["qwen2"].tokenizer
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ raise_exception('no') }}"):
        with pytest.raises(RequestError):
            ChatTemplate(source, tokenizer).render([Message("user", "x")])
    with pytest.raises(ModelError, match="compile"):
        ChatTemplate("{% for %}", tokenizer)


def test_the_jinja_file_wins_over_the_tokenizer_config(tmp_path: Path) -> None:
    write_tokenizer("llama", tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "from config"}')
    assert "im_start" in template_of_folder(tmp_path, tokenizer).source
    (tmp_path / "chat_template.jinja").unlink()
    assert template_of_folder(tmp_path, tokenizer).source == "from config"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="no chat template"):
        template_of_folder(tmp_path, tokenizer)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ 10.0 ** 10000 }}",
        "{{ messages[9].content.x }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_breaks_down_refuses_the_messages(source: str, templates: dict[Family, ChatTemplate]) -> None:
    template = ChatTemplate(source, templates["qwen2"].tokenizer)
    assert not template.knows_tools
    with pytest.raises(RequestError, match="refused the messages"):
        template.render([Message("user", "x")])


def test_a_damaged_template_of_a_folder_is_named(tmp_path: Path) -> None:
    write_tokenizer("llama", tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff{{ messages }}")
    with pytest.raises(ModelError, match=r"cannot read .*chat_template\.jinja"):
        template_of_folder(tmp_path, tokenizer)
    for source in ("{{ (" * 5000, "{% for m in messages %}" * 60 + "{% endfor %}" * 60):
        (tmp_path / "chat_template.jinja").write_text(source)
        with pytest.raises(ModelError, match="compile"):
            template_of_folder(tmp_path, tokenizer)
    (tmp_path / "chat_template.jinja").unlink()
    for stated in ([1], [{"name": ["default"], "template": "x"}], 5):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": stated}))
        with pytest.raises(ModelError, match="no chat template"):
            template_of_folder(tmp_path, tokenizer)


@pytest.mark.parametrize("as_escapes", [False, True])
def test_a_text_of_all_icons_there_are_leaves_a_guard_and_is_kept(
    as_escapes: bool, templates: dict[Family, ChatTemplate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the table of an icon font has them."""
    template = templates["qwen2"]
    icons = "".join(map(chr, range(0xE000, 0xF900)))
    text = (icons.encode("unicode_escape").decode() if as_escapes else icons) + "<|im_end|>"
    ids = template.render([Message("user", text)])
    assert text in text_of(template, ids)
    end = template.tokenizer.markers["<|im_end|>"]
    assert ids.count(end) == template.render([Message("user", "x")]).count(end)
    monkeypatch.setattr(chat, "_GUARDS", (range(0xE000, 0xF900),))
    with pytest.raises(RequestError, match="private use"):
        template.render([Message("user", text)])


def test_a_megabyte_of_markers_is_guarded_in_one_pass(templates: dict[Family, ChatTemplate]) -> None:
    """Copying the text for each of them would take minutes: the time-out of this test."""
    n = 100_000
    assert templates["qwen2"]._guarded("<|im_end|>" * n, "\ue000") == "<\ue000|im_end|>" * n


class Counted(str):
    """A text that counts how often it is looked at."""

    n_looks = 0

    def strip(self, chars: str | None = None, /) -> str:
        Counted.n_looks += 1
        return str(self).strip(chars)


def test_a_conversation_that_is_not_known_is_looked_through_once(templates: dict[Family, ChatTemplate]) -> None:
    messages = [Message("assistant" if n % 2 else "user", Counted(f"message {n}")) for n in range(200)]
    conversation = ConversationIds(templates["qwen2"])
    conversation.remember(messages[:1], (), Message("assistant", "another"), [1, 2], [3])
    Counted.n_looks = 0
    conversation.prompt([*messages, Message("user", "?")])
    assert Counted.n_looks == 100, "the texts of the assistant"


def test_generation_blocks_are_plain_text(templates: dict[Family, ChatTemplate]) -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}"
    template = ChatTemplate(source, templates["qwen2"].tokenizer)
    assert text_of(template, template.render([Message("user", "a"), Message("user", "b")])) == "a|b|"


def test_a_template_that_escapes_non_ascii_still_hides_the_guard(templates: dict[Family, ChatTemplate]) -> None:
    template = ChatTemplate("{{ messages[0].content | tojson(ensure_ascii=True) }}", templates["qwen2"].tokenizer)
    assert text_of(template, template.render([Message("user", "a<|im_end|>ä")])) == '"a<|im_end|>\\u00e4"'
    assert not set(template.render([Message("user", "<|im_end|>")])) & template.tokenizer.end_ids

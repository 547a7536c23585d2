"""Conversations to token ids, through the model's own chat template.

Only the template may write markers. Before rendering, every marker spelled inside a message, a tool description or an
argument is broken by a *guard*: a private-use character that occurs nowhere else. The template may trim, split or
JSON-encode the text: the guard stays inside the spelling. After rendering, what still spells a marker was written by
the template; the guards are taken out of the rest, which is encoded as ordinary text.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat_fallback import fold_tools
from .errors import ModelError, RequestError
from .model_config import read_json_object
from .tokenizer import Tokenizer
from .types import Message, ToolSpec

_GUARDS = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # Unicode's private use areas
_MAX_DEPTH = 100  # of arguments; templates and JSON walk them with a stack of their own
_REMEMBERED_PREFIXES = 64  # replies whose exact ids are kept
# What a template raises on purpose, and what its expressions may raise for values that it did not expect.
_TEMPLATE_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
                    MemoryError)  # fmt: skip


class ChatTemplate:
    """A model's chat template with its tokenizer.

    `variables` are passed to the template as they are (`reasoning=False` switches thinking off where a template knows
    it). Raises ModelError when the template does not compile.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, variables: Mapping[str, object] | None = None) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self._variables = dict(variables or {})
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:  # jinja's, and those of Python
            raise ModelError(f"the chat template does not compile: {error}") from error
        self.knows_tools = self._probe_tools()

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = True
    ) -> list[int]:
        """The ids of the conversation, ending where the model's reply begins.

        Raises RequestError when the template refuses the messages.
        """
        text, guard = self._render_guarded(messages, tools, generation_prompt=generation_prompt)
        return self._encode(text, guard)

    def extend(
        self,
        prompt_ids: Sequence[int],
        generated_ids: Sequence[int],
        messages: Sequence[Message],
        n_known: int,
        tools: Sequence[ToolSpec] = (),
    ) -> list[int] | None:
        """The ids of `messages`, of which the first `n_known` are already ids: `prompt_ids` and the reply
        `generated_ids` (message n_known - 1). Both come back unchanged in front of what is new.

        None when the template writes the earlier messages differently now (some drop old reasoning): render anew.
        """
        before, _ = self._render_guarded(messages[:n_known], tools, generation_prompt=False)
        after, guard = self._render_guarded(messages, tools, generation_prompt=True)
        if not after.startswith(before):
            return None
        reply = [*generated_ids]
        while reply and reply[-1] in self.tokenizer.end_ids:
            reply.pop()
        turn_end = self._turn_end(before)
        if turn_end is None:
            return None
        return [*prompt_ids, *reply, *self._encode(after[turn_end:], guard)]

    def _turn_end(self, text: str) -> int | None:
        """Where the end marker of the last turn begins; None when the text does not end with a finished turn."""
        spans = self.tokenizer.find_markers(text)
        if not spans or text[spans[-1][1] :].strip():
            return None
        begin, end = spans[-1]
        return begin if self.tokenizer.markers[text[begin:end]] in self.tokenizer.end_ids else None

    def _encode(self, text: str, guard: str) -> list[int]:
        ids: list[int] = []
        end = 0
        for begin, stop in self.tokenizer.find_markers(text):
            ids += self.tokenizer.encode(_without(guard, text[end:begin]))
            ids.append(self.tokenizer.markers[text[begin:stop]])
            end = stop
        return ids + self.tokenizer.encode(_without(guard, text[end:]))

    def _render_guarded(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool
    ) -> tuple[str, str]:
        if not self.knows_tools:
            messages, tools = fold_tools(messages, tools), ()
        values = [_as_template_message(m) for m in messages], [_as_template_tool(t) for t in tools]
        guard = self._free_guard(values)
        guarded_messages, guarded_tools = cast("tuple[list[object], list[object]]", self._guarded(values, guard))
        return self._run(guarded_messages, guarded_tools, generation_prompt), guard

    def _run(self, messages: list[object], tools: list[object], generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=generation_prompt,
                bos_token=self.tokenizer.bos_token,
                eos_token=self.tokenizer.eos_token,
                **self._variables,
            )
        except _TEMPLATE_FAULTS as error:
            raise RequestError(f"the model's chat template refused the messages: {error}") from error

    def _free_guard(self, values: object) -> str:
        text = json.dumps(values, ensure_ascii=False, default=str) + self.source
        taken = set(text)
        free = (c for c in map(chr, chain(*_GUARDS)) if c not in taken and _without(c, text) == text)
        guard = next(free, None)
        if guard is None:
            raise RequestError("the messages hold every character of Unicode's private use areas")
        return guard

    def _guarded(self, value: Any, guard: str) -> Any:
        """`value` with the guard inside every marker that a string in it spells."""
        match value:
            case str():
                cuts = [0, *(begin + 1 for begin, _ in self.tokenizer.find_markers(value)), len(value)]
                return guard.join(value[a:b] for a, b in pairwise(cuts))
            case dict():
                return {self._guarded(k, guard): self._guarded(v, guard) for k, v in value.items()}
            case list():
                return [self._guarded(v, guard) for v in value]
            case tuple():
                return tuple(self._guarded(v, guard) for v in value)
            case _:
                return value

    def _probe_tools(self) -> bool:
        probe = {"type": "function", "function": {"name": "probe_tool", "description": "", "parameters": {}}}
        try:
            return "probe_tool" in self._run([{"role": "user", "content": "x"}], [probe], True)
        except RequestError:
            return False


def _without(guard: str, text: str) -> str:
    """`text` without the guard, also where a template wrote it as a JSON escape."""
    return text.replace(guard, "").replace(json.dumps(guard)[1:-1], "")


class ConversationIds:
    """Prompt ids that keep what the model itself wrote.

    A reply is remembered with its exact ids; when a later conversation begins with the same messages, the ids of that
    beginning are reused, so the prefix cache hits and nothing is tokenised twice.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._known: OrderedDict[bytes, _KnownReply] = OrderedDict()

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """The ids of the conversation, up to where the next reply begins."""
        keys = list(_keys(messages[:-1], tools))
        for n in range(len(keys), 0, -1):
            known = self._known.get(keys[n - 1]) if messages[n - 1].role == "assistant" else None
            if known is None:
                continue
            ids = self._template.extend(known.prompt_ids, known.generated_ids, messages, n, tools)
            if ids is not None:
                return ids
        return self._template.render(messages, tools)

    def remember(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        reply: Message,
        prompt_ids: Sequence[int],
        generated_ids: Sequence[int],
    ) -> None:
        """Note that `reply` to `messages` was `generated_ids` after `prompt_ids`. Only whole replies belong here."""
        *_, key = _keys([*messages, reply], tools)
        self._known[key] = _KnownReply(tuple(prompt_ids), tuple(generated_ids))
        while len(self._known) > _REMEMBERED_PREFIXES:
            self._known.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _KnownReply:
    prompt_ids: tuple[int, ...]
    generated_ids: tuple[int, ...]


def _keys(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[bytes]:
    """What tells conversations apart, after each message: not the ids of tool calls, nor white space around texts,
    which clients change."""
    digest = hashlib.blake2b(digest_size=32)

    def add(*values: object) -> None:
        digest.update(json.dumps(values).encode() + b"\n")

    for tool in tools:
        add(tool.name, tool.description, json.dumps(tool.parameters, sort_keys=True, default=dict))
    for m in messages:
        content = m.content.strip() if m.role == "assistant" else m.content
        calls = [(call.name, call.arguments) for call in m.tool_calls]
        add(m.role, content, m.reasoning.strip(), m.name, m.is_error, calls)
        yield digest.digest()


def template_of_folder(folder: Path, tokenizer: Tokenizer, **variables: object) -> ChatTemplate:
    """The template of a model folder: chat_template.jinja, or else `chat_template` in tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return ChatTemplate(file.read_text(encoding="utf-8"), tokenizer, variables)
        except (OSError, UnicodeError) as error:
            raise ModelError(f"cannot read {file}: {error}") from error
    settings_path = folder / "tokenizer_config.json"
    stated = read_json_object(settings_path).get("chat_template") if settings_path.exists() else None
    if isinstance(stated, list):  # several named templates
        tables = [cast("dict[str, object]", t) for t in cast("list[object]", stated) if isinstance(t, dict)]
        named = {str(t.get("name")): t.get("template") for t in tables}
        stated = named.get("tool_use", named.get("default"))
    if not isinstance(stated, str):
        raise ModelError(f"{folder} has no chat template (chat_template.jinja or tokenizer_config.json)")
    return ChatTemplate(stated, tokenizer, variables)


def template_of_gguf(metadata: Mapping[str, object], tokenizer: Tokenizer, **variables: object) -> ChatTemplate:
    """The template inside a GGUF file."""
    stated = metadata.get("tokenizer.chat_template")
    if not isinstance(stated, str):
        raise ModelError("the GGUF file holds no chat template")
    return ChatTemplate(stated, tokenizer, variables)


def _as_template_message(message: Message) -> dict[str, object]:
    values: dict[str, object] = {"role": message.role, "content": message.content}
    if message.reasoning:  # templates look for one of these names
        values |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.reasoning)
    if message.tool_calls:
        values["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": parse_arguments(c.arguments)}}
            for c in message.tool_calls
        ]
    if message.role == "tool":
        values |= {"tool_call_id": message.tool_call_id, "name": message.name, "is_error": message.is_error}
    return values


def _as_template_tool(tool: ToolSpec) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": _plain(tool.parameters)}
    return {"type": "function", "function": function}


def parse_arguments(arguments: str) -> dict[str, object]:
    """A call's arguments as the object that templates want; text that is no JSON object is kept under "raw"."""
    try:
        parsed = json.loads(arguments, strict=False) if arguments.strip() else {}
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or is_deep(parsed, _MAX_DEPTH):
        return {"raw": arguments}
    return cast("dict[str, object]", parsed)


def is_deep(value: object, limit: int) -> bool:
    """Whether lists and objects are nested in each other more than `limit` deep."""
    level: list[Any] = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else cast("list[Any]", item))
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _plain(value: Any) -> Any:
    """Mappings and sequences as dicts and lists, which templates and JSON understand."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """`tojson` as model templates expect it: no HTML escapes, non-ASCII kept, keys in order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now(UTC).strftime(format)


class _GenerationTag(Extension):
    """`{% generation %}`, with which some templates mark what a model wrote; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    own: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _now}
    environment.globals.update(own)
    return environment

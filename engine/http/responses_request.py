"""OpenAI's response request as a ChatRequest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..types import ChatRequest, Message, ToolCall, ToolSpec
from .body import Body
from .chat_request import EFFORTS, accept_bookkeeping, merge_system, named_tool, read_schema, read_text, word_choice
from .errors import ApiError, invalid
from .sampling import MAX_LOGPROBS, read_sampling
from .state import Served

_MAX_TOKENS = 2**31 - 1
_MAX_NOTES, _MAX_NAME_CHARS, _MAX_NOTE_CHARS = 16, 64, 512  # as OpenAI's


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """A parsed request. `echo` holds what the response object repeats."""

    chat: ChatRequest
    conversation: tuple[Message, ...]  # without the instructions, which hold for one response only
    stream: bool
    store: bool
    n_logprobs: int | None
    echo: dict[str, Any]


def read_response(body: Body, state: Served, priority: int) -> ResponseCall:
    """Parses the body; raises ApiError naming the member that cannot be honoured."""
    state.checked_model(body.text("model"))
    model = state.model
    echo = {name: body.take(name) for name in ("instructions", "tools", "tool_choice", "text", "reasoning")}
    echo["metadata"] = _metadata(body)
    tools = _tools(body)
    choice = _tool_choice(body, tools)
    schema = _text_format(body)
    n_logprobs = _logprobs(body)
    n_asked = 0 if n_logprobs is None else max(1, n_logprobs)
    sampling = read_sampling(body, model.default_sampling, model.engine.vocab, n_asked)
    instructions = body.text("instructions")
    conversation = (*_before(body, state), *_input(body))
    messages = (Message("system", instructions), *conversation) if instructions else conversation
    if not conversation:
        raise invalid("input", "is required")
    max_tokens = body.integer("max_output_tokens", 1, _MAX_TOKENS)
    parallel = body.flag("parallel_tool_calls", True)
    chat = ChatRequest(
        messages=merge_system(messages),
        tools=tools,
        max_tokens=max_tokens,
        sampling=sampling,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_schema=schema,
        reasoning_budget=_reasoning_budget(body),
        priority=priority,
    )
    stream = body.flag("stream")
    store = body.flag("store", True)
    _refuse_rest(body, stream)
    echo |= {
        "previous_response_id": body.take("previous_response_id"),
        "max_output_tokens": max_tokens,
        "parallel_tool_calls": parallel,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "tools": echo["tools"] or [],
        "tool_choice": echo["tool_choice"] or "auto",
        "text": echo["text"] or {"format": {"type": "text"}},
        "reasoning": echo["reasoning"] or {"effort": None, "summary": None},
    }
    return ResponseCall(chat, conversation, stream, store, n_logprobs, echo)


def _metadata(body: Body) -> dict[str, Any] | None:
    """Notes that are kept with the response and repeated: few and short ones."""
    notes = body.mapping("metadata")
    for name, value in (notes or {}).items():
        if not isinstance(value, str) or len(value) > _MAX_NOTE_CHARS or len(name) > _MAX_NAME_CHARS:
            raise invalid("metadata", f"names of {_MAX_NAME_CHARS} characters, texts of {_MAX_NOTE_CHARS} at most")
    if notes and len(notes) > _MAX_NOTES:
        raise invalid("metadata", f"at most {_MAX_NOTES} notes")
    return notes


def _refuse_rest(body: Body, stream: bool) -> None:
    body.choice("truncation", ("disabled",), "disabled")
    if body.flag("background"):
        raise invalid("background", "is not supported")
    options = body.object("stream_options")
    if options is not None:
        if not stream:
            raise invalid("stream_options", "only together with stream")
        options.accept("include_obfuscation")
        options.finish()
    accept_bookkeeping(body)
    body.finish()


def _logprobs(body: Body) -> int | None:
    included = body.items("include")
    known = ("message.output_text.logprobs", "reasoning.encrypted_content")
    for i, name in enumerate(included):
        if name not in known:
            raise invalid(f"include[{i}]", f"must be one of {', '.join(known)}, not {name!r}")
    top = body.integer("top_logprobs", 0, MAX_LOGPROBS)
    return (top or 0) if known[0] in included or top else None


def _tools(body: Body) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for tool in body.objects("tools"):
        tool.choice("type", ("function",), "")
        strict = tool.flag("strict")
        parameters = tool.mapping("parameters") or {"type": "object", "properties": {}}
        tools.append(ToolSpec(tool.needed_text("name"), tool.text("description"), parameters, strict))
        tool.finish()
    return tuple(tools)


def _tool_choice(body: Body, tools: Sequence[ToolSpec]) -> str:
    value = body.take("tool_choice")
    if not isinstance(value, dict):
        return word_choice(value, tools)
    chosen = body.inner("tool_choice", value)
    chosen.choice("type", ("function",), "")
    name = chosen.needed_text("name")
    chosen.finish()
    return named_tool(name, tools)


def _text_format(body: Body) -> dict[str, Any] | None:
    text = body.object("text")
    if text is None:
        return None
    wanted = text.object("format")
    text.choice("verbosity", ("medium",), "medium")
    text.finish()
    if wanted is None:
        return None
    kind = wanted.choice("type", ("text", "json_object", "json_schema"), "text")
    if kind == "json_schema":
        return read_schema(wanted)
    wanted.finish()
    return {"type": "object"} if kind == "json_object" else None


def _reasoning_budget(body: Body) -> int | None:
    wanted = body.object("reasoning")
    if wanted is None:
        return None
    effort = wanted.choice("effort", tuple(EFFORTS), "") if "effort" in wanted else None
    wanted.choice("summary", ("auto",), "auto")
    wanted.finish()
    return None if effort is None else EFFORTS[effort]


# ----------------------------------------------------------------------------------------------- input
def _before(body: Body, state: Served) -> tuple[Message, ...]:
    """The conversation of the response that this one continues."""
    response_id = body.text("previous_response_id")
    if not response_id:
        return ()
    stored = state.responses.get(response_id)
    if stored is None:
        raise ApiError(404, f"the response {response_id!r} is not stored here", param="previous_response_id")
    return stored.conversation


@dataclass(slots=True)
class _Turns:
    """Collects items; neighbouring items of the assistant are one message."""

    messages: list[Message] = field(default_factory=list[Message])
    names: dict[str, str] = field(default_factory=dict[str, str])
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def close(self) -> None:
        if self.text or self.reasoning or self.calls:
            self.messages.append(Message("assistant", "".join(self.text), "".join(self.reasoning), tuple(self.calls)))
        self.text, self.reasoning, self.calls = [], [], []

    def add(self, message: Message) -> None:
        self.close()
        self.messages.append(message)


def _input(body: Body) -> list[Message]:
    value = body.take("input")
    if isinstance(value, str):
        return [Message("user", value)] if value else []
    if value is None:
        return []
    turns = _Turns()
    for i, item in enumerate(cast("list[Any]", value) if isinstance(value, list) else [value]):
        _read_item(body.inner(f"input[{i}]", item), turns)
    turns.close()
    return turns.messages


def _read_item(item: Body, turns: _Turns) -> None:
    kind = item.text("type", "message")
    item.accept("id", "status", "phase")
    match kind:
        case "message":
            role = item.choice("role", ("system", "developer", "user", "assistant"), "")
            text = read_text(item, "content")
            if role == "assistant":
                turns.text.append(text)
            else:
                turns.add(Message("user" if role == "user" else "system", text))
        case "function_call":
            call = ToolCall(item.needed_text("call_id"), item.needed_text("name"), item.text("arguments"))
            turns.names[call.id] = call.name
            turns.calls.append(call)
        case "function_call_output":
            call_id = item.needed_text("call_id")
            output = read_text(item, "output")
            turns.add(Message("tool", output, tool_call_id=call_id, name=turns.names.get(call_id, "")))
        case "reasoning":
            item.accept("summary", "encrypted_content")
            turns.reasoning += [part.text("text") for part in item.objects("content")]
        case _:
            raise invalid(item.path("type"), f"items of type {kind!r} are not supported")
    item.finish()

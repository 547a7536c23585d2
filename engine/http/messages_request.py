"""Anthropic's message request as a ChatRequest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..types import ChatRequest, Message, ToolCall, ToolSpec
from .body import Body
from .chat_request import EFFORTS, merge_system, named_tool, read_text
from .errors import invalid
from .sampling import read_sampling
from .state import Served

_MAX_TOKENS = 2**31 - 1
_MAX_STOPS = 16


@dataclass(frozen=True, slots=True)
class Conversation:
    """What counting tokens and answering both read."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: str
    parallel: bool
    schema: dict[str, Any] | None
    reasoning_budget: int | None


def read_conversation(body: Body, state: Served) -> Conversation:
    """model, system, messages, tools, tool_choice, thinking and output_config; raises ApiError naming the member."""
    state.checked_model(body.text("model"))
    tools = tuple(_tool(tool) for tool in body.objects("tools"))
    choice, parallel = _tool_choice(body, tools)
    effort, schema = _output_config(body)
    budget = _thinking(body)
    body.accept("cache_control")
    return Conversation(_messages(body), tools, choice, parallel, schema, effort if budget is None else budget)


def read_message_request(body: Body, state: Served, priority: int) -> tuple[ChatRequest, bool]:
    """(what the model is asked, whether to stream)."""
    talk = read_conversation(body, state)
    max_tokens = body.integer("max_tokens", 1, _MAX_TOKENS)
    if max_tokens is None:
        raise invalid("max_tokens", "is required")
    model = state.model
    request = ChatRequest(
        messages=talk.messages,
        tools=talk.tools,
        max_tokens=max_tokens,
        sampling=read_sampling(body, model.default_sampling, model.engine.vocab),
        tool_choice=talk.tool_choice,
        parallel_tool_calls=talk.parallel,
        stop=body.texts("stop_sequences", _MAX_STOPS),
        response_schema=talk.schema,
        reasoning_budget=talk.reasoning_budget,
        priority=priority,
    )
    stream = body.flag("stream")
    body.accept("metadata")
    body.choice("service_tier", ("auto", "standard_only"), "auto")
    body.finish()
    return request, stream


def _tool(tool: Body) -> ToolSpec:
    tool.choice("type", ("custom",), "custom")
    tool.accept("cache_control", "eager_input_streaming")
    strict = tool.flag("strict")
    schema = tool.mapping("input_schema") or {"type": "object", "properties": {}}
    spec = ToolSpec(tool.needed_text("name"), tool.text("description"), schema, strict)
    tool.finish()
    return spec


def _tool_choice(body: Body, tools: Sequence[ToolSpec]) -> tuple[str, bool]:
    chosen = body.object("tool_choice")
    if chosen is None:
        return "auto", True
    kind = chosen.choice("type", ("auto", "any", "tool", "none"), "")
    parallel = not chosen.flag("disable_parallel_tool_use")
    name = chosen.text("name")
    chosen.finish()
    if kind == "tool":
        return named_tool(name, tools), parallel
    if kind == "any" and not tools:
        raise invalid("tool_choice", "asks for a tool, but there are none")
    return {"any": "required"}.get(kind, kind), parallel


def _thinking(body: Body) -> int | None:
    thinking = body.object("thinking")
    if thinking is None:
        return None
    kind = thinking.choice("type", ("enabled", "disabled", "adaptive"), "")
    budget = thinking.integer("budget_tokens", 1, _MAX_TOKENS)
    thinking.choice("display", ("summarized", "full"), "full")
    thinking.finish()
    if kind == "enabled" and budget is None:
        raise invalid("thinking.budget_tokens", "is required")
    return 0 if kind == "disabled" else budget


def _output_config(body: Body) -> tuple[int | None, dict[str, Any] | None]:
    config = body.object("output_config")
    if config is None:
        return None, None
    efforts = {**EFFORTS, "max": _MAX_TOKENS}
    effort = efforts[config.choice("effort", ("low", "medium", "high", "xhigh", "max"), "high")]
    stated = "effort" in config
    wanted = config.object("format")
    config.finish()
    schema = None
    if wanted is not None:
        wanted.choice("type", ("json_schema",), "")
        schema = wanted.mapping("schema")
        wanted.finish()
    return effort if stated else None, schema


# ----------------------------------------------------------------------------------------------- messages
def _messages(body: Body) -> tuple[Message, ...]:
    stated = body.objects("messages")
    if not stated:
        raise invalid("messages", "must hold at least one message")
    system = read_text(body, "system")
    messages = [Message("system", system)] if system else []
    names: dict[str, str] = {}
    for message in stated:
        messages += _message(message, names)
    if messages[-1].role == "assistant":
        raise invalid("messages", "the last one must not be the assistant's: an answer that is begun is not continued")
    return merge_system(messages)


@dataclass(slots=True)
class _Parts:
    """A message's blocks, sorted."""

    text: list[str] = field(default_factory=list[str])
    thinking: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: list[Message] = field(default_factory=list[Message])


def _message(message: Body, names: dict[str, str]) -> list[Message]:
    role = message.choice("role", ("user", "assistant", "system"), "")
    value = message.take("content")
    parts = _Parts()
    if isinstance(value, str):
        parts.text.append(value)
    else:
        for block in message.objects("content"):
            _block(block, role, parts, names)
    message.finish()
    text = "".join(parts.text)
    if role == "assistant":
        return [Message("assistant", text, "".join(parts.thinking), tuple(parts.calls))]
    own = [Message("system" if role == "system" else "user", text)] if text or not parts.results else []
    return [*parts.results, *own]


def _block(block: Body, role: str, parts: _Parts, names: dict[str, str]) -> None:
    kind = block.text("type", "text")
    block.accept("cache_control", "citations")
    match kind:
        case "text":
            parts.text.append(block.text("text"))
        case "thinking" if role == "assistant":
            block.accept("signature")
            parts.thinking.append(block.text("thinking"))
        case "tool_use" if role == "assistant":
            block.accept("caller")
            arguments = json.dumps(block.mapping("input") or {}, ensure_ascii=False)
            call = ToolCall(block.needed_text("id"), block.needed_text("name"), arguments)
            names[call.id] = call.name
            parts.calls.append(call)
        case "tool_result" if role == "user":
            call_id = block.needed_text("tool_use_id")
            content, is_error = read_text(block, "content"), block.flag("is_error")
            name = names.get(call_id, "")
            parts.results.append(Message("tool", content, tool_call_id=call_id, name=name, is_error=is_error))
        case _:
            raise invalid(block.path("type"), f"blocks of type {kind!r} are not supported in a message of the {role}")
    block.finish()

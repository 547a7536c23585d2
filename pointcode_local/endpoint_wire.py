"""Chat requests as the JSON that OpenAI-compatible servers read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pointcode_local.arguments import ArgumentError, parse_arguments
from pointcode_local.engine.types import ChatRequest, Message, SamplingParams, ToolSpec
from pointcode_local.surrogates import without_surrogates


def request_body(request: ChatRequest, model: str, *, is_own: bool, thoughts_as: str = "") -> bytes:
    """The body of a streamed chat completion. `is_own`: our own server, which knows more than the others.
    `thoughts_as`: the member in which the model's earlier thoughts go along; "": they do not."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_wire_message(message, thoughts_as) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_wire_tool(tool) for tool in request.tools]
        if request.tool_choice in ("none", "required"):
            body["tool_choice"] = request.tool_choice
        elif request.tool_choice != "auto":
            body["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    if request.response_schema is not None:
        schema = {"name": "answer", "schema": dict(request.response_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.sampling is not None:
        body.update(_wire_sampling(request.sampling, is_own=is_own))
    if is_own and request.reply_prefix:
        body["reply_prefix"] = without_surrogates(request.reply_prefix)
    if is_own and request.reply_pattern:
        body["reply_pattern"] = request.reply_pattern
    return json.dumps(body).encode()


def _wire_message(message: Message, thoughts_as: str) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": without_surrogates(message.content)}
    if thoughts_as and message.reasoning:
        wire[thoughts_as] = without_surrogates(message.reasoning)
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": _wire_name(call.name), "arguments": _wire_arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _wire_name(written: str) -> str:
    """A name as servers accept it: a model may have called what is no tool, by a name that none can have."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", written)[:64] or "unknown"


def _wire_arguments(written: str) -> str:
    """Arguments as valid JSON: servers parse them again. What cannot be mended is passed on as one string."""
    try:
        value = json.loads(written)
        if isinstance(value, dict):
            return without_surrogates(written)
    except (ValueError, RecursionError):
        pass
    try:
        return json.dumps(parse_arguments(written))
    except ArgumentError:
        return json.dumps({"not_json": written})


def _wire_tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _wire_sampling(sampling: SamplingParams, *, is_own: bool) -> dict[str, Any]:
    """To our own server all of it: what is left out there is as the model's authors recommend, not switched off."""
    wire: dict[str, Any] = {"temperature": sampling.temperature}
    if is_own or sampling.top_p < 1.0:
        wire["top_p"] = sampling.top_p
    if sampling.seed is not None:
        wire["seed"] = sampling.seed
    if is_own:
        names = ("top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
        wire |= {name: getattr(sampling, name) for name in names}
    return wire


def n_bytes(messages: Sequence[Message], tools: Sequence[ToolSpec], thoughts_as: str = "") -> int:
    """Size of what is sent of them."""
    wire = [[_wire_message(m, thoughts_as) for m in messages], [_wire_tool(t) for t in tools]]
    return len(json.dumps(wire, ensure_ascii=False).encode("utf-8", "replace"))

"""Tools for models whose chat template knows none: written into the system message, calls and results as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from .types import Message, ToolCall, ToolSpec


def fold_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """The same conversation in system, user and assistant messages with text only.

    The forms are those of ChatML models: calls in <tool_call> tags, results in <tool_response> tags.
    """
    folded = [_fold(m) for m in messages]
    if not tools:
        return folded
    lines = "\n".join(_describe(tool) for tool in tools)
    text = (
        "# Tools\n\nYou may call these functions:\n<tools>\n" + lines + "\n</tools>\n\n"
        "To call one, answer with only this, and nothing after it:\n"
        '<tool_call>\n{"name": <function name>, "arguments": <JSON object>}\n</tool_call>'
    )
    if folded and folded[0].role == "system":
        return [replace(folded[0], content=folded[0].content + "\n\n" + text), *folded[1:]]
    return [Message("system", text), *folded]


def _describe(tool: ToolSpec) -> str:
    return json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters}, default=dict)


def _fold(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if message.tool_calls:
        calls = "\n".join(_call_text(c) for c in message.tool_calls)
        return Message("assistant", f"{message.content}\n{calls}".lstrip("\n"))
    return message


def _call_text(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'

"""Grammars (llguidance's Lark) that hold a tool call to the offered tools and their schemas.

Free calls: the grammar begins when the model writes its family's opening marker, and ends with the closing one; the
answer around calls stays unconstrained. Forced calls: the reply is calls and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from .chat_formats import ChatFormat
from .tokenizer import Tokenizer
from .types import Grammar, ToolSpec

# Bounded, or a small model writes white space for ever; lenient, so that a keyword llguidance lacks is no error.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n]{0,16}", "lenient": True}
_GAP = r"/[ \n]{0,4}/"


def tool_call_grammar(
    tools: Sequence[ToolSpec], form: ChatFormat, tokenizer: Tokenizer, *, forced: bool = False, parallel: bool = True
) -> Grammar:
    """The grammar of a reply's tool calls.

    Not `forced`: its `trigger` is the family's opening marker and the source covers one block after it. `forced`: it
    holds from the first token (past an open reasoning block the caller must see to) and wants at least one call.
    """
    begin, end = (_terminal(marker, tokenizer) for marker in (form.call_begin, form.call_end))
    more = f' ("," {_GAP} call)*' if parallel else ""
    body = f'"[" {_GAP} call {_GAP}{more} {_GAP} "]"' if form.call_array else "call"
    block = f"{_GAP} {body} {_GAP} {end}"
    lines = [f"block: {block}", f"call: %json {json.dumps(call_schema(tools, form))}"]
    if not forced:
        return Grammar("lark", "\n".join(["start: block", *lines]), trigger=form.call_begin)
    again = f" ({_GAP} {begin} block)*" if parallel and not form.call_array else ""
    return Grammar("lark", "\n".join([f"start: {begin} block{again}", *lines]))


def call_schema(tools: Sequence[ToolSpec], form: ChatFormat) -> dict[str, object]:
    """The JSON schema of one call object, names and arguments in the family's keys and order."""
    name_key, arguments_key = form.call_keys
    calls: list[dict[str, object]] = []
    for tool in tools:
        identity: dict[str, object] = {"tool_call_id": {"type": "string", "pattern": "^[0-9]{1,3}$"}}
        properties = {name_key: {"const": tool.name}, arguments_key: _closed(tool.parameters)}
        if form.call_array:
            properties = identity | properties
        calls.append(
            {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        )
    return {"anyOf": calls, "x-guidance": _JSON_OPTIONS}


def _closed(schema: Mapping[str, object]) -> dict[str, object]:
    """A tool's parameters, without members that it does not list (unless it allows them itself)."""
    closed: dict[str, Any] = {"type": "object", "properties": {}, **cast("Mapping[str, Any]", schema)}
    closed.setdefault("additionalProperties", False)
    return closed


def _terminal(marker: str, tokenizer: Tokenizer) -> str:
    """A marker in Lark: by id where it is a control token, by its text otherwise."""
    marker_id = tokenizer.markers.get(marker)
    return f"<[{marker_id}]>" if marker_id in tokenizer.control_ids else json.dumps(marker)

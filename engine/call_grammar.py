"""Grammars (llguidance's Lark) that hold a tool call to the offered tools and their schemas.

Free calls: the grammar begins when the model writes its family's opening marker, and ends with the closing one; the
answer around calls stays unconstrained. Forced calls: the reply is calls and nothing else. An answer of a schema: the
reply is JSON, or calls where tools are offered too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from .chat_formats import ChatFormat, Mark
from .constrain import json_rule
from .tokenizer import Tokenizer
from .tool_schemas import placed
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
    calls, *rules = _call_rules(tools, form, tokenizer, parallel=parallel)
    if not forced:
        return Grammar("lark", "\n".join(["start: block", *rules]), trigger=form.call_begin)
    return Grammar("lark", "\n".join([f"start: {calls}", *rules]))


def answer_grammar(
    schema: Mapping[str, object],
    form: ChatFormat,
    tokenizer: Tokenizer,
    tools: Sequence[ToolSpec] = (),
    *,
    parallel: bool = True,
    trigger: str = "",
) -> Grammar:
    """The grammar of a reply that is JSON of this schema, or, with `tools`, calls of them instead."""
    ends = [tokenizer.markers.get(text) for text in ("<|START_TEXT|>", "<|END_TEXT|>")]
    marked = Mark.ANSWER in form.marks.values() and None not in ends
    starts, rules = ["<[{}]> value <[{}]>".format(*ends) if marked else "value"], [json_rule("value", schema)]
    if tools:
        calls, *more = _call_rules(tools, form, tokenizer, parallel=parallel)
        starts.append(calls)
        rules += more
    lead = f"{_GAP} " if trigger else ""
    return Grammar("lark", "\n".join([f"start: {lead}({' | '.join(starts)})", *rules]), trigger, repeats=False)


def _call_rules(tools: Sequence[ToolSpec], form: ChatFormat, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
    """What one or more calls are made of, and the rules of `block` and `call`."""
    begin, end = (_terminal(marker, tokenizer) for marker in (form.call_begin, form.call_end))
    more = f' ("," {_GAP} call)*' if parallel else ""
    body = f'"[" {_GAP} call {_GAP}{more} {_GAP} "]"' if form.call_array else "call"
    again = f" ({_GAP} {begin} block)*" if parallel and not form.call_array else ""
    call = f"call: %json {json.dumps(call_schema(tools, form))}"
    return [f"{begin} block{again}", f"block: {_GAP} {body} {_GAP} {end}", call]


def call_schema(tools: Sequence[ToolSpec], form: ChatFormat) -> dict[str, object]:
    """The JSON schema of one call object, names and arguments in the family's keys and order.

    A tool's own references (`#/$defs/…`) point into its schema, which stands in the definitions of this one then.
    """
    name_key, arguments_key = form.call_keys
    calls: list[dict[str, object]] = []
    definitions: dict[str, object] = {}
    for i, tool in enumerate(tools):
        identity: dict[str, object] = {"tool_call_id": {"type": "string", "pattern": "^[0-9]{1,3}$"}}
        parameters, definition = placed(tool.parameters, f"tool{i}")
        definitions |= definition
        properties = {name_key: {"const": tool.name}, arguments_key: parameters}
        if form.call_array:
            properties = identity | properties
        calls.append(
            {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        )
    return {"anyOf": calls, "x-guidance": _JSON_OPTIONS, **({"$defs": definitions} if definitions else {})}


def _terminal(marker: str, tokenizer: Tokenizer) -> str:
    """A marker in Lark: by id where it is a control token, by its text otherwise."""
    marker_id = tokenizer.markers.get(marker)
    return f"<[{marker_id}]>" if marker_id in tokenizer.control_ids else json.dumps(marker)

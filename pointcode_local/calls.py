"""Tool calls that a model wrote into its reply's text instead of into the call channel.

Forms: tagged JSON (`<tool_call>{…}</tool_call>` and its cousins), `<function=name><parameter=key>…`, `<invoke name=…>`,
JSON in a code fence, bare JSON. A call runs only when it ends the reply (nothing but calls after it) and stands on
lines of its own. What looks like an explanation of the format is never run: it is reported as doubtful, so that the
model can be asked. A call that is cut short is reported as cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pointcode_local.arguments import ArgumentError, parse_json

_TAGS = (
    "tool_call",
    "tool_calls",
    "function_call",
    "function_calls",
    "tool_use",
    "tools",
    "invoke_tool",
    "|tool_call|",
    "|python_tag|",
)
_TAG = "|".join(re.escape(tag) for tag in _TAGS)
_OPENING = re.compile(
    rf"""^[ \t]*(?:
        <(?P<tag>{_TAG})>
      | (?P<mistral>\[TOOL_CALLS\])
      | (?P<cohere><\|START_ACTION\|>)
      | (?P<xml><function(?:=|\s+name=)|<invoke\s+name=)
      | (?P<fence>```+|~~~+)[ \t]*(?P<info>[\w-]*)[ \t]*(?:\n|$)
      | (?P<json>[\[{{])
    )""",
    re.VERBOSE | re.MULTILINE,
)
_CALL_FENCES = ("", "json", "tool_call", "tool_code", "tool", "xml", "function", "jsonc")
_XML_CALL = re.compile(
    r"""<(?P<kind>function|invoke)(?:=|\s+name=)["']?(?P<name>[\w.-]+)["']?\s*>(?P<body>.*?)</(?P=kind)>""",
    re.DOTALL,
)
_XML_PARAMETER = re.compile(
    r"""<parameter(?:=|\s+name=)["']?(?P<key>[\w.-]+)["']?[^>\n]*>(?P<value>.*?)</parameter>""",
    re.DOTALL,
)
_CUE = re.compile(
    r"""(?ix)\b(looks?\ like|format(ted)?|syntax|for\ instance|examples?|e\.g|i\.e|such\ as|
        would\ (be|look|write)|written\ as|template|schema|in\ general|call\ like|docs?|documentation|emit(s|ted)?|
        hypothetical)\b""",
)
_INTENT = re.compile(
    r"(?i)\b(I'?ll|I will|let me|let's|let us|I'?m going to|I am going to|I need to|calling|now I|first)\b"
)
_INLINE_TAG = re.compile(rf"<(?:{_TAG})>\s*(?=[{{\[<])")
_NAME_KEYS = ("name", "tool", "tool_name", "function_name", "function", "recipient_name", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "tool_input", "kwargs", "params", "action_input")


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call found in text; `arguments` is JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a reply's text holds: the words outside the calls, the calls to run, and why some were not taken. `tagged`:
    they stand in a form that is made for calls, not as plain JSON."""

    text: str
    calls: tuple[TextCall, ...] = ()
    problem: str = ""  # "cut", "doubtful", or ""
    tagged: bool = False


@dataclass(frozen=True, slots=True)
class _Block:
    """One candidate: where it stands and what it holds. `calls` None: not a call at all; () with `cut`: cut short."""

    start: int
    end: int
    calls: tuple[TextCall, ...] | None
    cut: bool = False
    fenced: bool = False
    tagged: bool = False


def find_calls(text: str, tools: Mapping[str, Mapping[str, Any]]) -> Found:
    """The calls in `text`. `tools` maps each known tool's name to its JSON schema; other names are not calls."""
    blocks = [block for block in _blocks(text, tools) if block.calls is not None]
    if not blocks:
        unclear = _ends_inside_a_line(text, tools) or _is_bare_call(text)
        return Found(text, (), "doubtful" if unclear else "")
    calls = tuple(call for block in blocks for call in block.calls or ())
    if blocks[-1].cut:
        return Found(text[: blocks[0].start].strip(), (), "cut")
    lead_in = _lead_in(text, blocks[0].start)
    unclear = bool(lead_in) and blocks[0].fenced and not _INTENT.search(lead_in)
    if unclear or not _ends_the_reply(text, blocks) or _CUE.search(lead_in):
        return Found(text, (), "doubtful")
    return Found(text[: blocks[0].start].strip(), calls, tagged=all(block.tagged for block in blocks))


def _ends_the_reply(text: str, blocks: list[_Block]) -> bool:
    borders = [(a.end, b.start) for a, b in zip(blocks, blocks[1:], strict=False)] + [(blocks[-1].end, len(text))]
    return all(not text[start:end].strip(" \t\r\n,;") for start, end in borders)


def _ends_inside_a_line(text: str, tools: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a tagged call that begins in the middle of a line, outside of back quotes, ends the reply."""
    match = _INLINE_TAG.search(text)
    if match is None or text[: match.start()].count("`") % 2:
        return False
    if text[: match.start()].rsplit("\n", 1)[-1].lstrip().startswith(">"):  # a quotation
        return False
    return bool(find_calls(text[match.start() :], tools).calls)


def _is_bare_call(text: str) -> bool:
    """Whether the whole reply has the exact shape of a call, though of no tool that there is."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return set(value) in ({"name", "arguments"}, {"name", "parameters"}) and isinstance(value["name"], str)


def _lead_in(text: str, start: int) -> str:
    """The last paragraph before the call."""
    return text[:start].rstrip().rsplit("\n\n", 1)[-1][-300:]


def _blocks(text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[_Block]:
    out: list[_Block] = []
    at = 0
    while match := _OPENING.search(text, at):
        block = _read(text, match, tools)
        out.append(block)
        at = max(block.end, match.end())
    return out


def _read(text: str, match: re.Match[str], tools: Mapping[str, Mapping[str, Any]]) -> _Block:
    start = match.start()
    if match["fence"]:
        return _fenced(text, match, tools)
    if match["xml"]:
        return replace(_xml(text, start, tools), tagged=True)
    if match["json"]:
        return _json(text, start, match.start("json"), tools, tagged=False)
    body_at = match.end() + len(text[match.end() :]) - len(text[match.end() :].lstrip())
    if text.startswith(("<function", "<invoke"), body_at):
        block = _xml(text, body_at, tools)
    elif match["mistral"] and (named := re.compile(r"([\w.-]+)(?:\[ARGS\])?\s*(?=\{)").match(text, body_at)):
        block = _named_json(text, named, tools)
    else:
        block = _json(text, start, body_at, tools, tagged=True)
    closing = re.compile(rf"\s*(?:</?(?:{_TAG})>|<\|END_ACTION\|>|<\|im_end\|>)*").match(text, block.end)
    return _Block(start, closing.end() if closing else block.end, block.calls, block.cut, tagged=True)


def _fenced(text: str, match: re.Match[str], tools: Mapping[str, Mapping[str, Any]]) -> _Block:
    fence = match["fence"]
    closing = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$", re.MULTILINE).search(
        text, match.end()
    )
    end = closing.end() if closing else len(text)
    body = text[match.end() : closing.start() if closing else len(text)]
    if match["info"].lower() not in _CALL_FENCES:
        return _Block(match.start(), end, None)
    inner = [block for block in _blocks(body, tools) if block.calls is not None]
    if not inner or body[: inner[0].start].strip() or not (_ends_the_reply(body, inner) or inner[-1].cut):
        return _Block(match.start(), end, None)
    calls = tuple(call for block in inner for call in block.calls or ())
    return _Block(match.start(), end, calls, inner[-1].cut, fenced=True)


def _json(text: str, start: int, at: int, tools: Mapping[str, Mapping[str, Any]], *, tagged: bool) -> _Block:
    if text[at : at + 1] not in ("{", "["):
        return _Block(start, at, None)
    end = _json_end(text, at)
    if end is None:
        looks_like_call = tagged or re.match(r'[\[{\s]*"(?:name|tool|tool_name|function)"\s*:\s*["{]', text[at:])
        return _Block(start, len(text), (), cut=True) if looks_like_call else _Block(start, at + 1, None)
    try:
        value = parse_json(text[at:end])
    except ArgumentError:
        return _Block(start, end, None)
    calls = _as_calls(value, tools, any_name=tagged)
    rest = _json_end(text, _skip(text, end)) if calls and tagged else None
    if calls and rest:  # several objects in one tag
        more = _json(text, start, _skip(text, end), tools, tagged=True)
        if more.calls is not None:
            return _Block(start, more.end, (*calls, *more.calls), more.cut)
    return _Block(start, end, calls)


def _named_json(text: str, named: re.Match[str], tools: Mapping[str, Mapping[str, Any]]) -> _Block:
    end = _json_end(text, named.end())
    if named[1] not in tools:
        return _Block(named.start(), named.end(), None)
    if end is None:
        return _Block(named.start(), len(text), (), cut=True)
    return _Block(named.start(), end, (TextCall(named[1], text[named.end() : end]),))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _json_end(text: str, at: int) -> int | None:
    """The index after the JSON value that begins at `at`; None when it is cut short."""
    if text[at : at + 1] not in ("{", "["):
        return None
    depth, in_string, i = 0, False, at
    while i < len(text):
        c = text[i]
        if in_string:
            if c == "\\":
                i += 1
            elif c == '"':
                in_string = False
        elif c == '"':
            in_string = True
        elif c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return None


def _as_calls(
    value: Any, tools: Mapping[str, Mapping[str, Any]], *, any_name: bool = False
) -> tuple[TextCall, ...] | None:
    """The calls that a JSON value stands for; None when it is something else. `any_name`: of unknown tools too."""
    if isinstance(value, list):
        parts = [_as_calls(item, tools, any_name=any_name) for item in value]  # type: ignore[reportUnknownVariableType]
        return tuple(call for part in parts for call in part or ()) if parts and all(parts) else None
    if not isinstance(value, dict):
        return None
    record: dict[str, Any] = value  # type: ignore[reportUnknownVariableType]
    if isinstance(record.get("tool_calls"), list):
        return _as_calls(record["tool_calls"], tools, any_name=any_name)
    if isinstance(record.get("function"), dict):
        return _as_calls(record["function"], tools, any_name=any_name)
    name = next((record[key] for key in _NAME_KEYS if isinstance(record.get(key), str)), "")
    name = known_name(name, tools) or (name if any_name else "")
    key = next((key for key in _ARGUMENT_KEYS if key in record), None)
    if not name or key is None or not isinstance(record[key], dict | str):
        return None
    arguments = record[key] if isinstance(record[key], str) else json.dumps(record[key], ensure_ascii=False)
    return (TextCall(name, arguments),)


def _xml(text: str, start: int, tools: Mapping[str, Mapping[str, Any]]) -> _Block:
    match = _XML_CALL.search(text, start)
    opening = re.compile(r"""\s*<(?:function|invoke)(?:=|\s+name=)["']?([\w.-]+)""").match(text, start)
    name = known_name(opening[1], tools) if opening else ""
    if not name:
        return _Block(start, match.end() if match else len(text), None)
    if match is None or text[start : match.start()].strip():
        return _Block(start, len(text), (), cut=True)
    body = match["body"].strip()
    if body.startswith("{"):  # <function=name>{json}</function>
        return _Block(start, match.end(), (TextCall(name, body),))
    schema: Mapping[str, Any] = tools[name].get("properties") or {}
    arguments = {m["key"]: _xml_value(m["value"], schema.get(m["key"])) for m in _XML_PARAMETER.finditer(body)}
    if re.sub(_XML_PARAMETER, "", body).strip():
        return _Block(start, match.end(), (), cut=True)
    return _Block(start, match.end(), (TextCall(name, json.dumps(arguments, ensure_ascii=False)),))


def _xml_value(value: str, schema: Any) -> Any:
    """Strings stay as written but for the line feed after the opening and the one before the closing tag."""
    value = value.removeprefix("\r").removeprefix("\n").removesuffix("\n") if "\n" in value else value
    if isinstance(schema, dict) and schema.get("type") not in (None, "string"):  # type: ignore[reportUnknownMemberType]
        try:
            return json.loads(value, strict=False)
        except (ValueError, RecursionError):
            return value.strip()
    return value


def known_name(name: str, tools: Mapping[str, Any]) -> str:
    """The tool that is meant by `name`, written in another way (`functions.Read`, `shell-output`); "" when none is."""
    if name in tools:
        return name
    plain = re.sub(r"[\s-]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())).lower()
    plain = re.sub(r"^(functions?|tools?|default_api)[.:/]", "", plain)
    return plain if plain in tools else ""

"""Fitting the arguments of a tool call, as models write them, to its schema, and saying the cure when that fails."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .base import Tool

ALIASES: dict[str, tuple[str, ...]] = {
    "path": (
        "file_path",
        "filepath",
        "file",
        "filename",
        "file_name",
        "directory",
        "dir",
        "folder",
        "target_file",
        "absolute_path",
    ),
    "content": ("contents", "text", "file_text", "body", "code", "new_content", "data"),
    "old": ("old_string", "old_str", "old_text", "search", "find", "oldstring"),
    "new": ("new_string", "new_str", "new_text", "replace", "replacement", "newstring"),
    "command": ("cmd", "script", "shell_command", "commandline", "command_line", "bash"),
    "pattern": ("query", "regex", "regexp", "search", "glob_pattern", "search_term"),
    "glob": ("include", "file_pattern", "file_glob"),
    "timeout_s": ("timeout", "timeout_seconds", "timeout_sec"),
    "background": ("run_in_background", "is_background"),
    "offset": ("start", "start_line", "line", "from_line"),
    "limit": ("max_results", "count", "max_lines", "num_lines", "head_limit"),
    "ignore_case": ("case_insensitive", "i", "ignorecase"),
    "literal": ("fixed_strings", "is_literal"),
    "context": ("context_lines",),
    "patch": ("input", "diff", "patch_text"),
    "symbol": ("name", "symbol_name", "function"),
    "id": ("job_id", "task_id", "shell_id", "bash_id"),
    "items": ("todos", "todo", "tasks", "plan"),
    "depth": ("max_depth", "levels"),
    "status": ("state",),
    "text": ("content", "task", "title", "step"),
    "question": ("text", "prompt", "message"),
    "options": ("choices", "answers"),
    "replace_all": ("all", "global", "replaceall"),
    "description": ("explanation", "reason"),
}
CHOICE_ALIASES = {
    "completed": "done",
    "complete": "done",
    "finished": "done",
    "todo": "pending",
    "open": "pending",
    "doing": "in_progress",
}
TRUE, FALSE = frozenset({"true", "yes", "1", "on"}), frozenset({"false", "no", "0", "off", "none", "null", ""})
TOOL_ALIASES = {
    "bash": "shell",
    "cat": "read",
    "ls": "list",
    "read_file": "read",
    "write_file": "write",
    "edit_file": "edit",
    "apply_patch": "patch",
}


def find_tool(tools: Iterable[Tool], name: str) -> Tool | str:
    """The tool with this name (in any letter case), or an error text that names the tools there are."""
    known = {tool.name: tool for tool in tools}
    wanted = name.strip()
    if wanted in known:
        return known[wanted]
    folded = {key.lower(): tool for key, tool in known.items()}
    if wanted.lower() in folded:
        return folded[wanted.lower()]
    close = TOOL_ALIASES.get(wanted.lower()) or next(
        iter(difflib.get_close_matches(wanted.lower(), list(known), 1, 0.6)), None
    )
    hint = f" Did you mean {close}?" if close in known else ""
    return f"Unknown tool {name!r}.{hint} Available tools: {', '.join(known)}."


def validate(tool: Tool, given: Mapping[str, Any]) -> dict[str, Any] | str:
    """Arguments checked against the tool's schema, or an error text with the cure.

    Accepts aliases such as filePath, numbers and booleans as strings, objects written as JSON strings, and one object
    for a list. Unknown parameters are passed over.
    """
    prepared = _flat_edit(tool, dict(given))
    try:
        return _object(cast(Mapping[str, Any], tool.parameters), prepared, "")
    except _Bad as bad:
        return f"Bad arguments for {tool.name}: {bad}. {usage(tool)}"


def usage(tool: Tool) -> str:
    """The parameters in one line."""
    schema = cast(Mapping[str, Any], tool.parameters)
    required = schema.get("required", [])
    parts = [
        f"{name}{'' if name in required else '?'}: {_type_name(spec)}"
        for name, spec in schema.get("properties", {}).items()
    ]
    return f"Call it as {tool.name}({', '.join(parts)})."


class _Bad(Exception):
    pass


def _flat_edit(tool: Tool, given: dict[str, Any]) -> dict[str, Any]:
    """`edit` called with one old/new pair beside the path, or with one object instead of a list."""
    if tool.name != "edit":
        return given
    edits = given.get("edits")
    if isinstance(edits, str):
        edits = _maybe_json(edits)
    if isinstance(edits, dict):
        edits = [edits]
    if edits is not None:
        return {**given, "edits": edits}
    names = {key: _plain(key) for key in given}
    part = {"old": None, "new": None, "replace_all": None}
    for key, plain in names.items():
        for target in part:
            if plain == _plain(target) or plain in map(_plain, ALIASES[target]):
                part[target] = given[key]
    if part["new"] is None and part["old"] is None:
        return given
    rest = {
        key: value
        for key, value in given.items()
        if not any(value is each for each in part.values() if each is not None)
    }
    return {**rest, "edits": [{key: value for key, value in part.items() if value is not None}]}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _object(schema: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    named = _named(properties, given)
    missing = [name for name in schema.get("required", []) if name not in named]
    if missing:
        raise _Bad(f"{where}{missing[0]} is missing")
    return {name: _value(properties[name], value, where + name) for name, value in named.items()}


def _named(properties: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Given values under the schema's names: exact names first, then other spellings, then aliases."""
    named = {name: given[name] for name in properties if given.get(name) is not None}
    left = {_plain(key): value for key, value in given.items() if key not in properties and value is not None}
    for name in properties:
        for other in (name, *ALIASES.get(name, ())):
            if name not in named and _plain(other) in left:
                named[name] = left.pop(_plain(other))
    return {name: named[name] for name in properties if name in named}


def _value(spec: Mapping[str, Any], value: Any, where: str) -> Any:
    if spec.get("type") == "object" and not spec.get("properties"):
        return _maybe_json(value) if isinstance(value, str) else value  # any members
    match spec.get("type"):
        case "string":
            return _string(value, where, spec)
        case "integer":
            return _integer(value, where)
        case "boolean":
            return _boolean(value, where)
        case "array":
            items = _maybe_json(value) if isinstance(value, str) else value
            if isinstance(items, Mapping):
                items = [items]
            if not isinstance(items, list):
                raise _Bad(f"{where} must be a list, not {kind_of(value)}")
            return [
                _value(spec.get("items", {}), item, f"{where}[{at}]") for at, item in enumerate(cast(list[Any], items))
            ]
        case "object":
            item = _maybe_json(value) if isinstance(value, str) else value
            if not isinstance(item, Mapping):
                raise _Bad(f"{where} must be an object, not {kind_of(value)}")
            return _object(spec, cast(Mapping[str, Any], item), where + ".")
        case _:
            return value


def _string(value: Any, where: str, spec: Mapping[str, Any]) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _Bad(f"{where} must be a string, not {kind_of(value)}")
    text = str(value)
    choices = spec.get("enum")
    if choices and text not in choices:
        close = (
            [CHOICE_ALIASES[text.lower()]]
            if CHOICE_ALIASES.get(text.lower()) in choices
            else difflib.get_close_matches(text.lower().replace("-", "_").replace(" ", "_"), choices, 1, 0.6)
        )
        if not close:
            raise _Bad(f"{where} must be one of {', '.join(choices)}")
        return close[0]
    return text


def _integer(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}(\.0+)?\s*", value):
        return int(float(value)) if "." in value else int(value)
    raise _Bad(f"{where} must be a whole number, not {value!r}")


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).strip().lower() in TRUE:
        return True
    if str(value).strip().lower() in FALSE:
        return False
    raise _Bad(f"{where} must be true or false, not {value!r}")


def _maybe_json(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text


def kind_of(value: Any) -> str:
    """What a JSON value is, for messages."""
    names = {
        dict: "an object",
        list: "a list",
        bool: "a truth value",
        str: "a string",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "null")


def _type_name(spec: Mapping[str, Any]) -> str:
    if spec.get("type") == "array":
        items = cast(Mapping[str, Any], spec.get("items", {}))
        return f"[{_type_name(items)}]"
    if spec.get("type") == "object":
        return "{" + ", ".join(spec.get("properties", {})) + "}"
    return str(spec.get("type", "any"))

"""Schemas of tools that a grammar can hold: what it cannot express is left free, unless the tool is strict."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urldefrag, urljoin

from .errors import RequestError
from .types import ToolSpec

_REMEMBERED = 256  # schemas; more where one request has more
_TOGETHER = 64  # schemas that are tried as one: most of a trial's time is not the schema's
_ANYTHING = {"type": "object", "additionalProperties": True}
# Beside one of these a schema does not list all the members that it wants.
_MORE_MEMBERS = ("$ref", "allOf", "anyOf", "oneOf", "minProperties")


class ToolSchemas:
    """Remembers which schemas can be held. `problem_of` says why one cannot, "" when it can; it may take a while."""

    def __init__(self, problem_of: Callable[[Mapping[str, object]], str]) -> None:
        self._problem_of = problem_of
        self._lock = threading.Lock()  # for moments only: who asks for what is known must not wait for a trial
        self._trying = threading.Lock()
        self._held: OrderedDict[str, Mapping[str, object]] = OrderedDict()

    def know(self, tools: Sequence[ToolSpec]) -> bool:
        """Whether `held` answers at once."""
        return all(_key(tool) in self._held for tool in tools)

    def held(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """The tools with schemas that can be held. Raises RequestError for a strict one that cannot; any thread."""
        wanted = {_key(tool): tool for tool in tools}
        found = self._known(wanted)
        if len(found) < len(wanted):
            with self._trying:
                found = self._known(wanted)  # another thread may have tried the same meanwhile
                found |= self._checked_together({key: tool for key, tool in wanted.items() if key not in found})
                self._remember(found)
        return tuple(replace(tool, parameters=found[_key(tool)]) for tool in tools)

    def _known(self, keys: Iterable[str]) -> dict[str, Mapping[str, object]]:
        with self._lock:
            found = {key: self._held[key] for key in keys if key in self._held}
            for key in found:
                self._held.move_to_end(key)
            return found

    def _remember(self, found: Mapping[str, Mapping[str, object]]) -> None:
        with self._lock:
            self._held |= found
            while len(self._held) > max(_REMEMBERED, len(found)):
                self._held.popitem(last=False)

    def _checked_together(self, tools: Mapping[str, ToolSpec]) -> dict[str, Mapping[str, object]]:
        """The schemas to hold the tools to, by the keys of `tools`."""
        found: dict[str, Mapping[str, object]] = {}
        plain = [key for key, tool in tools.items() if not tool.strict and '"$ref"' not in key]
        for at in range(0, len(plain), _TOGETHER):
            group = {key: tools[key].parameters for key in plain[at : at + _TOGETHER]}
            whole = {key: _closed(schema) for key, schema in group.items()}
            if len(group) > 1 and not self._problem({"type": "object", "properties": whole, "required": [*whole]}):
                found |= group
        return found | {key: self._checked(tool) for key, tool in tools.items() if key not in found}

    def _checked(self, tool: ToolSpec) -> Mapping[str, object]:
        problem = self._problem(tool.parameters, is_lenient=not tool.strict)
        if not problem:
            return tool.parameters
        if tool.strict:
            raise RequestError(f"the schema of the strict tool {tool.name!r} cannot be held: {problem}")
        return self._loosened(tool.parameters)

    def _problem(self, schema: Mapping[str, object], *, is_lenient: bool = True) -> str:
        """Why a call cannot be held to these arguments, where they stand in its grammar."""
        here, definitions = placed(schema, "tool")
        return self._problem_of({**here, "$defs": definitions, "x-guidance": {"lenient": is_lenient}})

    def _loosened(self, schema: Mapping[str, object]) -> Mapping[str, object]:
        """The schema with the members that cannot be held open to any value, or an open object."""
        stated: Any = schema.get("properties")
        if not isinstance(stated, dict):
            return _ANYTHING
        properties = cast("dict[str, object]", stated)
        loose = {name: part if self._fits(schema, name, part) else {} for name, part in properties.items()}
        loosened = {**schema, "properties": loose}
        return _ANYTHING if self._problem(loosened) else loosened

    def _fits(self, schema: Mapping[str, object], name: str, part: object) -> bool:
        rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
        return not self._problem({**rest, "properties": {name: part}})


# ------------------------------------------------------------------------------------------------ in a call's schema
def placed(parameters: Mapping[str, object], name: str) -> tuple[dict[str, object], dict[str, object]]:
    """A tool's arguments as a part of another schema, and what is to stand in the definitions of that one.

    A tool's own references (`#/$defs/…`) point into its schema, which stands in the definitions then.
    """
    closed = _closed(parameters)
    if not _has_references(closed):
        return closed, {}
    stated = closed.pop("$id", "")
    root, base = f"#/$defs/{name}", urldefrag(stated).url if isinstance(stated, str) else ""
    return {"$ref": root}, {name: {key: _moved(value, root, base, key) for key, value in closed.items()}}


def _closed(schema: Mapping[str, object]) -> dict[str, object]:
    """Arguments are an object, without members that the schema does not list, unless it allows or asks for them."""
    closed: dict[str, Any] = {**schema, "type": "object"}
    listed, needed = closed.get("properties", {}), closed.get("required", [])
    asks = isinstance(listed, Mapping) and isinstance(needed, list) and not set(map(str, needed)) <= {*listed}
    if not asks and not any(key in closed for key in _MORE_MEMBERS):
        closed.setdefault("properties", {})
        closed.setdefault("additionalProperties", False)
    return closed


def _has_references(schema: Any) -> bool:
    children: Iterable[Any] = schema.values() if isinstance(schema, Mapping) else schema
    if isinstance(schema, Mapping) and isinstance(cast("Mapping[str, Any]", schema).get("$ref"), str):
        return True
    return any(_has_references(child) for child in children if isinstance(child, Mapping | list))


def _moved(value: Any, root: str, base: str, key: str = "") -> Any:
    """A part of a schema whose own address was `base`, with references from its root on pointing to where it now
    stands. A part with an address of its own keeps its references, and anchors are found by their names."""
    if isinstance(value, list):
        return [_moved(item, root, base) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        if isinstance(inner.get("$id"), str):
            return inner
        return {name: _moved(item, root, base, name) for name, item in inner.items()}
    if key != "$ref" or not isinstance(value, str):
        return value
    # urljoin leaves a fragment alone where the base is a name (urn:…) and no place.
    address, fragment = urldefrag(base + value if value[:1] == "#" else urljoin(base, value))
    if address != base:
        return value
    return root + fragment if fragment[:1] in ("", "/") else f"#{fragment}"


def _key(tool: ToolSpec) -> str:
    return f"{tool.strict}{json.dumps(tool.parameters, default=dict)}"

"""Foreign JSON schemas, brought to what the tools of this program and the call grammars know.

References are put in place, annotations and string formats dropped; what cannot be understood stands as "anything".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

MAX_DEPTH = 8
MAX_DESCRIPTION = 400  # characters
MAX_NODES = 500  # parts of one schema
_KEPT = ("type", "enum", "const", "default", "minimum", "maximum", "minItems", "maxItems", "additionalProperties")
_CHOICES = ("anyOf", "oneOf")


def simplified(schema: object) -> dict[str, object]:
    """The schema of a tool's arguments, which is an object in any case."""
    root = cast(Mapping[str, Any], schema) if isinstance(schema, Mapping) else {}
    found = _Reader(root).read(root, 0)
    found.setdefault("properties", {})
    return {**found, "type": "object"}


def short(text: object, max_chars: int = MAX_DESCRIPTION) -> str:
    """A description on one line, without controls, cut."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text or "")).split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._n_nodes = 0

    def read(self, part: object, depth: int) -> dict[str, object]:
        """One schema; {} (anything) for what is none, too deep, or one part too many."""
        self._n_nodes += 1
        if not isinstance(part, Mapping) or depth > MAX_DEPTH or self._n_nodes > MAX_NODES:
            return {}
        node = cast(Mapping[str, Any], part)
        if isinstance(node.get("$ref"), str):
            return self.read(self._target(node["$ref"]), depth + 1)
        out: dict[str, object] = {key: node[key] for key in _KEPT if key in node}
        if isinstance(node.get("additionalProperties"), Mapping):
            out["additionalProperties"] = True
        if isinstance(node.get("description"), str):
            out["description"] = short(node["description"])
        if isinstance(node.get("properties"), Mapping):
            members = cast(Mapping[str, Any], node["properties"])
            out["properties"] = {str(name): self.read(value, depth + 1) for name, value in members.items()}
            out["required"] = [name for name in _texts(node.get("required")) if name in members]
        if "items" in node:
            out["items"] = self.read(node["items"], depth + 1)
        for key in _CHOICES:
            if isinstance(node.get(key), list):
                out["anyOf"] = [self.read(choice, depth + 1) for choice in cast(list[Any], node[key])]
        return out

    def _target(self, reference: str) -> object:
        target: Any = self._root
        if not reference.startswith("#/"):
            return {}
        for step in reference[2:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                return {}
            target = cast(Mapping[str, Any], target)[key]
        return target


def _texts(value: object) -> list[str]:
    return [item for item in cast(list[Any], value) if isinstance(item, str)] if isinstance(value, list) else []

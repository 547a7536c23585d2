"""What of the settings executes: hooks and MCP servers. A project's count only when its file is trusted."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pointcode_local.tools.mcp_server import McpServer

HookEvent = Literal["pre_tool", "post_tool"]
EVENTS: tuple[HookEvent, ...] = ("pre_tool", "post_tool")
DEFAULT_HOOK_S = 30.0
DEFAULT_CALL_S = 120.0
MAX_S = 3600.0
_WORD_BREAK = re.compile(r"""[\s;|&<>()`"'=]+""")  # also inside one argument: `sh -c "./check.sh"`
_SERVER_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Hook:
    """A command line that sees the calls of `tools` (names with `*`) before or after they run."""

    event: HookEvent
    command: str
    tools: tuple[str, ...] = ("*",)
    timeout_s: float = DEFAULT_HOOK_S


def parse_hooks(table: Mapping[str, Any]) -> tuple[Hook, ...]:
    """The `[[hooks.pre_tool]]` and `[[hooks.post_tool]]` entries; raises ValueError saying what is wrong."""
    found: list[Hook] = []
    for event, entries in table.items():
        if event not in EVENTS:
            raise ValueError(f"hooks has no {event!r}; there are {' and '.join(EVENTS)}")
        if not isinstance(entries, list):
            raise ValueError(f"hooks.{event} must be a list of tables: [[hooks.{event}]]")
        for entry in cast(list[Any], entries):
            fields = _Fields(f"hooks.{event}", entry, ("command", "tools", "timeout_s"))
            tools = fields.texts("tools") or ("*",)
            found.append(Hook(event, fields.text("command"), tools, fields.seconds("timeout_s", DEFAULT_HOOK_S)))
    return tuple(found)


def parse_servers(table: Mapping[str, Any]) -> tuple[McpServer, ...]:
    """The `[mcp_servers.NAME]` tables; raises ValueError saying what is wrong."""
    return tuple(_server(name, entry) for name, entry in table.items())


def _server(name: str, entry: Any) -> McpServer:
    where = f"mcp_servers.{name}"
    if not _SERVER_NAME.fullmatch(name):
        raise ValueError(f"{where}: a name has letters, digits, _ and -, at most 32")
    known = ("command", "args", "env", "network", "writable", "url", "headers", "timeout_s")
    fields = _Fields(where, entry, known)
    given = [key for key in ("command", "url") if fields.has(key)]
    if len(given) != 1:
        raise ValueError(f"{where} needs either command (a program that speaks on stdio) or url")
    url = fields.text("url") if given == ["url"] else ""
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(f"{where}.url must begin with http:// or https://, got {url!r}")
    return McpServer(
        name,
        command=fields.text("command") if not url else "",
        args=fields.texts("args"),
        env=fields.pairs("env"),
        network=fields.flag("network"),
        writable=fields.texts("writable"),
        url=url,
        headers=fields.pairs("headers"),
        timeout_s=fields.seconds("timeout_s", DEFAULT_CALL_S),
    )


def scripts_of(data: bytes, root: Path) -> list[Path]:
    """The project's own files that commands of its settings name: what they hold runs, so it is trusted with them."""
    try:
        table = tomllib.loads(data.decode())
    except ValueError:
        return []
    texts = _strings([table.get("hooks"), table.get("mcp_servers")])
    words = {word for text in texts for word in _WORD_BREAK.split(text) if word}
    found = {Path(os.path.realpath(root / word)) for word in words}
    return sorted(path for path in found if path.is_relative_to(os.path.realpath(root)) and path.is_file())


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in cast(dict[str, object], value).values():
                yield from _strings(item)
        case list():
            for item in cast(list[object], value):
                yield from _strings(item)
        case _:
            pass


class _Fields:
    """One table's values by type; a wrong one raises ValueError that names it."""

    def __init__(self, where: str, entry: Any, known: tuple[str, ...]) -> None:
        if not isinstance(entry, dict):
            raise ValueError(f"{where} must be a table, got {entry!r}")
        self._where = where
        self._entry = cast(dict[str, Any], entry)
        for key in self._entry:
            if key not in known:
                raise ValueError(f"{where} has no {key!r}; it may have {', '.join(known)}")

    def has(self, key: str) -> bool:
        return key in self._entry

    def text(self, key: str) -> str:
        value = self._entry.get(key)
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError(f"{self._where}.{key} must be a string that is not empty")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._entry.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in cast(list[Any], value)):
            raise ValueError(f"{self._where}.{key} must be a list of strings")
        return tuple(cast(list[str], value))

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        value = self._entry.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in cast(dict[str, Any], value).values()):
            raise ValueError(f"{self._where}.{key} must be a table of strings")
        return tuple(cast(dict[str, str], value).items())

    def flag(self, key: str) -> bool:
        value = self._entry.get(key, False)
        if not isinstance(value, bool):
            raise ValueError(f"{self._where}.{key} must be true or false")
        return value

    def seconds(self, key: str, default: float) -> float:
        value = self._entry.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_S:
            raise ValueError(f"{self._where}.{key} must be a number of seconds up to {MAX_S:.0f}")
        return float(value)

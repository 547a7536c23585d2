"""MCP servers that an editor passes along, in the form of the settings' `mcp_servers`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from acp.schema import HttpMcpServer, McpServerStdio

MAX_NAME_CHARS = 32


def as_settings(servers: Sequence[Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The servers by name, and the names of those whose transport is not supported.

    The person chose them in the editor, which has no switch for the network: theirs is open, but a program among them
    still writes only in the workspace and temporary folders.
    """
    found: dict[str, dict[str, Any]] = {}
    unsupported: list[str] = []
    for server in servers:
        match server:
            case McpServerStdio():
                env = {variable.name: variable.value for variable in server.env}
                table: dict[str, Any] = {"command": server.command, "args": list(server.args), "env": env}
                found[_name(server.name, found)] = {**table, "network": True}
            case HttpMcpServer():
                headers = {header.name: header.value for header in server.headers}
                found[_name(server.name, found)] = {"url": server.url, "headers": headers}
            case _:
                unsupported.append(str(getattr(server, "name", "?")))
    return found, unsupported


def _name(name: str, taken: dict[str, dict[str, Any]]) -> str:
    """A name as the settings take it, which no other server has."""
    plain = re.sub(r"[^a-zA-Z0-9_-]+", "-", name).strip("-") or "server"
    plain = plain if plain[0].isalpha() else f"s-{plain}"
    plain = plain[:MAX_NAME_CHARS]
    number = 2
    while plain in taken:
        plain = f"{plain[: MAX_NAME_CHARS - 3]}-{number}"
        number += 1
    return plain

"""How an MCP server is reached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server of the settings: a program that speaks on stdio (`command`), or an address (`url`).

    A program runs in the sandbox, with the network only when `network` is set; it also writes below `writable`.
    `env` is added to its environment, `headers` to each request; `timeout_s` bounds a call.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    network: bool = False
    writable: tuple[str, ...] = ()
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 120.0

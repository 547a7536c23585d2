"""Messages of MCP programs: long ones cost no more than their length, endless ones end the connection."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pointcode_local.tools import mcp_stdio
from pointcode_local.tools.mcp_stdio import StdioServer
from tests.processes import ends
from tests.tools.test_mcp import Servers, stub

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="the extra mcp is not installed")
# Says its process id, and ignores every polite request to end.
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("pid", "w").write(str(os.getpid()))
print(flush=True)
while True:
    signal.pause()
"""


async def test_a_long_message_is_read_whole(tmp_path: Path) -> None:
    text = "long " * 500_000
    async with Servers(tmp_path) as servers:
        await servers.open(stub())
        result = await servers.call("mcp__stub__echo", text=text)
        assert not result.is_error and "[cut after 200,000 of 2,500,012 characters]" in result.text


async def test_a_message_that_is_too_long_ends_the_connection_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_stdio, "MAX_MESSAGE_BYTES", 1 << 20)
    async with Servers(tmp_path) as servers:
        await servers.open(stub())
        result = await servers.call("mcp__stub__echo", text="x" * (2 << 20))
        assert result.is_error and "sent a message of more than 1 MB" in result.text
        again = await servers.call("mcp__stub__echo", text="back")
        assert not again.is_error and "back" in again.text


async def test_a_server_whose_first_message_never_ends_says_why_it_has_no_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_stdio, "MAX_MESSAGE_BYTES", 1 << 20)
    async with Servers(tmp_path) as servers:
        await servers.open(stub("endless"))
        assert not servers.tools
        assert "sent a message of more than 1 MB" in servers.connections[0].state


async def test_a_program_that_does_not_want_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_stdio, "TERM_GRACE_S", 0.05)
    server = StdioServer([sys.executable, "-I", "-c", STUBBORN], tmp_path, {})
    async with server.streams() as (received, _):
        assert isinstance(await received.receive(), ValueError), "an empty line is no message"
    assert ends(int((tmp_path / "pid").read_text()))
    assert not server.fault

"""The editor front end: `pointcode acp` speaks the Agent Client Protocol, version 1, on standard input and output."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any, cast

from pointcode_local.exits import EXIT_CANCELLED, EXIT_DONE, EXIT_ERROR, UsageError
from pointcode_local.frontend import Hosts
from pointcode_local.signals import on_signals

LAST_ANSWERS_S = 5.0  # how long requests that came before the end may take to be answered
HINT = "pointcode acp talks to an editor, not to people: the README shows how to set one up"


def run_acp(hosts: Hosts) -> int:
    """Serve the editor until it closes standard input, goes away, or a signal comes; returns the exit code."""
    if os.devnull in (sys.stdin.name, sys.stdout.name):  # what __main__ opens in place of a closed one
        raise UsageError("standard input and output must be open: pointcode acp talks to an editor through them")
    if sys.stdin.isatty():
        print(HINT, file=sys.stderr)
    fd_in, fd_out = _take_standard_streams()
    logging.basicConfig(level=logging.WARNING, format="pointcode: %(message)s", stream=sys.stderr)
    return asyncio.run(_serve(hosts, fd_in, fd_out))


def _take_standard_streams() -> tuple[int, int]:
    """Our own descriptors; from now on whatever prints goes to stderr, and commands read nothing."""
    fd_in, fd_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return fd_in, fd_out


async def _serve(hosts: Hosts, fd_in: int, fd_out: int) -> int:
    from acp.agent.connection import AgentSideConnection

    from pointcode_local.acp.server import EditorAgent
    from pointcode_local.acp.wire import Wire

    wire = Wire(fd_in, fd_out)
    agent = EditorAgent(hosts, wire)
    # The SDK counts session/close and resume among the unstable methods; the protocol does not. Its `Agent` has a
    # `fork_session` that the protocol does not know yet: hence the cast.
    connection = AgentSideConnection(cast("Any", agent), wire, listening=False, use_unstable_protocol=True)
    try:
        with on_signals(wire.stop):
            await connection.listen()
            await agent.close()
            if wire.end != "output":
                await wire.settle(LAST_ANSWERS_S)
            await agent.close()  # what requests opened that came just before the end
    finally:
        await connection.close()
        is_free = await hosts.close()
    code = {"stopped": EXIT_CANCELLED, "output": EXIT_ERROR}.get(wire.end, EXIT_DONE)
    if not is_free:  # a download or a model that loads: its thread cannot be stopped, and nobody waits for it
        logging.shutdown()
        os._exit(code)
    return code

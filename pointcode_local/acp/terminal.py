"""The `shell` tool in a terminal of the editor, where the person watches it and can end it.

Whether a command may run was decided before, on our side. Commands in the background, and those that have to be
confined (nobody was asked about them), stay with our own shell: an editor's terminal does not confine anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from typing import Any

from acp.schema import EnvVariable, TerminalExitStatus

from pointcode_local.acp.editor import ASK_FAILED, Editor
from pointcode_local.acp.stand_in import StandIn
from pointcode_local.tools.base import NO_OUTPUT, Tool, ToolContext, ToolResult
from pointcode_local.tools.environment import QUIET
from pointcode_local.tools.output import KeptOutput
from pointcode_local.tools.redact import AsItIs, Redactor
from pointcode_local.tools.shell import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S
from pointcode_local.tools.terminal_text import TerminalText
from pointcode_local.tools.workspace import Workspace

log = logging.getLogger(__name__)
MAX_OUTPUT_BYTES = 1 << 20
STOP_S = 1.5  # how long ending a command may take
ENVIRONMENT = {name: value for name, value in QUIET.items() if name != "TERM"}


class TerminalShell(StandIn):
    """The shell tool; `on_terminal(call_id, terminal_id)` is told where a command shows."""

    def __init__(
        self, own: Tool, editor: Editor, session_id: Callable[[], str], on_terminal: Callable[[str, str], Any]
    ) -> None:
        super().__init__(own)
        self._editor = editor
        self._session_id = session_id
        self._on_terminal = on_terminal
        self._redactor = Redactor()
        self._n_logs = 0

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Run the command line in a terminal, or in our own shell where that must be or the editor has none to give."""
        command: str = arguments["command"]
        if arguments.get("background") or context.sandbox is not None or not command.strip() or "\x00" in command:
            return await self._own.run(context, arguments)
        workspace: Workspace = context.workspace
        await asyncio.to_thread(self._redactor.refresh, workspace)
        try:
            terminal = await self._editor.client.create_terminal(
                self._session_id(),
                shutil.which("bash") or "/bin/sh",
                args=["-c", "--", command],
                env=[EnvVariable(name=name, value=value) for name, value in ENVIRONMENT.items()],
                cwd=os.fspath(workspace.root),
                output_byte_limit=MAX_OUTPUT_BYTES,
            )
        except ASK_FAILED as error:
            log.info("the editor opened no terminal: %s", error)
            return await self._own.run(context, arguments)
        return await self._watch(terminal.terminal_id, context, _timeout_s(arguments))

    async def _watch(self, terminal_id: str, context: ToolContext, timeout_s: int) -> ToolResult:
        client, session = self._editor.client, self._session_id()
        self._on_terminal(context.call_id, terminal_id)
        timed_out = False
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await client.wait_for_terminal_exit(session, terminal_id)
            except TimeoutError:
                timed_out = True
                await client.kill_terminal(session, terminal_id)
            output = await client.terminal_output(session, terminal_id)
        except asyncio.CancelledError:
            said = await asyncio.shield(asyncio.create_task(self._stop(terminal_id)))
            context.on_output(self._shown(said, context))
            raise
        except ASK_FAILED as error:
            return ToolResult(f"the editor's terminal failed: {error}; the command may still run there", is_error=True)
        finally:
            await self._release(terminal_id)
        shown = self._shown(output.output, context)
        if output.truncated:
            shown = f"[the editor kept the last {MAX_OUTPUT_BYTES:,} bytes only]\n{shown}"
        if timed_out:
            return ToolResult(f"{_line_end(shown)}[timed out after {timeout_s} s and was ended]", is_error=True)
        return _result(shown, output.exit_status)

    async def _stop(self, terminal_id: str) -> str:
        """End a command and take what it said; gives up after STOP_S."""
        client, session = self._editor.client, self._session_id()
        try:
            async with asyncio.timeout(STOP_S):
                await client.kill_terminal(session, terminal_id)
                return (await client.terminal_output(session, terminal_id)).output
        except (*ASK_FAILED, TimeoutError) as error:
            log.warning("a terminal of the editor could not be ended: %s", error)
            return ""

    async def _release(self, terminal_id: str) -> None:
        release = self._editor.client.release_terminal(self._session_id(), terminal_id)
        try:
            async with asyncio.timeout(STOP_S):
                await release
        except (*ASK_FAILED, TimeoutError) as error:
            log.info("a terminal of the editor was not released: %s", error)

    def _shown(self, raw: str, context: ToolContext) -> str:
        """Clean, without secrets, and no longer than a result may be."""
        self._n_logs += 1
        workspace: Workspace = context.workspace
        kept = KeptOutput(workspace.log_folder / f"terminal-{self._n_logs}.log")
        blank = AsItIs() if context.reveal else self._redactor.output(workspace)
        text = TerminalText(lambda piece: kept.add(blank(piece)), lambda _: None)
        text.feed(raw.encode("utf-8", "replace"))
        text.finish()
        shown = kept.text()
        kept.close()
        return shown


def _timeout_s(arguments: Mapping[str, Any]) -> int:
    return min(max(1, int(arguments.get("timeout_s", DEFAULT_TIMEOUT_S))), MAX_TIMEOUT_S)


def _line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _result(shown: str, status: TerminalExitStatus | None) -> ToolResult:
    if status is not None and status.signal:
        number = _signal_number(status.signal)
        return ToolResult(f"{_line_end(shown)}[ended by signal {number}]", is_error=True)
    code = status.exit_code if status is not None else None
    if code == 0:
        return ToolResult(shown or NO_OUTPUT)
    ending = "[it ended, the editor does not say how]" if code is None else f"[exit code {code}]"
    return ToolResult(f"{_line_end(shown)}{ending}", is_error=code is not None)


def _signal_number(name: str) -> str:
    try:
        return f"{signal.Signals[name].value}: {name}"
    except KeyError:
        return name

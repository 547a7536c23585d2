"""The line mode: the same agent and commands without a full screen, for screen readers, dumb terminals and pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pointcode_local.complete import (
    MODE_MEANING,
    PromptHistory,
    commands_help,
    parse_slash,
)
from pointcode_local.engine_text import Rates, engine_lines, rates
from pointcode_local.events import (
    MODES,
    AgentEvent,
    Answer,
    ErrorRaised,
    ModeChanged,
    PermissionAsked,
    QuestionAsked,
    SetMode,
    ToolFinished,
)
from pointcode_local.frontend import AgentLike, Host, HostError, Progress
from pointcode_local.jobs import jobs_command
from pointcode_local.lineprint import LinePrinter
from pointcode_local.lines import PLAIN_COMMANDS, LineSource, PipedLines, TerminalLines
from pointcode_local.render import one_line, plain, short_bytes
from pointcode_local.signals import on_signals
from pointcode_local.status import status_text
from pointcode_local.usershell import note_for_model, run_user_shell

_KEYS = """Keys
  enter sends, alt+enter or a final \\ starts a new line
  up and down walk through earlier messages, ctrl+r searches them
  tab completes /commands and @paths, !command runs a command yourself
  ctrl+c stops the turn, ctrl+d quits, ctrl+z goes back to the shell (fg returns)
"""


class PlainFrontEnd:
    """Reads lines, plays turns, prints events."""

    def __init__(self, host: Host, lines: LineSource, printer: LinePrinter) -> None:
        self._host = host
        self._lines = lines
        self._print = printer
        self._agent: AgentLike | None = None
        self._user_shell: asyncio.Task[None] | None = None
        self._mode = ""

    async def run(self, first_prompt: str) -> int:
        """Until the end of input. Returns the exit code: 1 when no model could be opened."""
        try:
            await self._look_around()
            self._use(await self._host.open(self._progress))
        except HostError as error:
            self._print.line(f"error: {plain(str(error))}", "red")
            return 1
        except asyncio.CancelledError:  # ctrl+c, perhaps in the line of a fetch
            self._print.line("")
            raise
        self._banner()
        for event in self._host.history():
            self._print.show(event)
        if first_prompt.strip():
            await self._take(first_prompt)
        while True:
            try:
                text = await self._lines.prompt(f"{self._mode or self._host.info.mode}> ")
            except KeyboardInterrupt:
                self._print.line("(ctrl+d or /quit leaves)", "dim")
                continue
            if text is None or not await self._take(text):
                return 0

    def _use(self, agent: AgentLike) -> None:
        self._agent = agent

    def _progress(self, progress: Progress) -> None:
        if progress.total == 0:
            self._print.line(f"({one_line(progress.text)})", "dim")
        elif self._print.look.redraw:
            size = f"{short_bytes(progress.done)} of {short_bytes(progress.total)}"
            sys.stdout.write(f"\r\x1b[K({one_line(progress.text)}: {size})")
            sys.stdout.flush()
        if progress.total and progress.done >= progress.total:
            self._print.line(f"({one_line(progress.text)}: done)", "dim")

    def _banner(self) -> None:
        info = self._host.info
        sandbox = "no sandbox: commands run with your rights" if info.sandbox == "none" else info.sandbox
        self._print.line(f"pointcode {info.version}: {one_line(info.model)} on {one_line(info.backend)}", "bold")
        self._print.line(
            f"{one_line(str(info.cwd))}, mode {info.mode}, {one_line(sandbox)}. /help lists commands.", "dim"
        )

    async def _take(self, text: str) -> bool:
        """One message or command; False to leave."""
        if not text.strip():
            return True
        if (command := parse_slash(text, self._host.commands())) is not None:
            return await self._command(*command)
        if text.startswith("!") and text[1:].strip():
            stream = run_user_shell(text[1:].strip(), self._host.info.cwd, "user-shell")
            self._user_shell = asyncio.create_task(self._play(stream))
            await asyncio.wait({self._user_shell})
            self._user_shell = None
        elif self._agent is not None:
            await self._play(self._agent.run(text))
        return True

    async def _play(self, stream: AsyncIterator[AgentEvent]) -> None:
        """Print a stream to its end. Ctrl-C stops the turn, whose stream then ends by itself."""
        with on_signals(self._stop, (signal.SIGINT,)):
            try:
                async for event in stream:
                    try:
                        await self._show(event)
                    except KeyboardInterrupt:  # at a question: the turn ends, and with it the question
                        self._stop()
                    if self._user_shell is not None and self._agent is not None and isinstance(event, ToolFinished):
                        self._agent.note(note_for_model(event))
            except asyncio.CancelledError:
                self._print.line("(stopped)", "yellow")
            except Exception as error:  # noqa: BLE001  (front-end loop: the session goes on)
                self._print.show(ErrorRaised(f"{type(error).__name__}: {error}"))
        self._print.end_line()

    def _stop(self) -> None:
        if self._user_shell is not None:
            self._user_shell.cancel()
        elif self._agent is not None:
            self._agent.cancel()

    async def _show(self, event: AgentEvent) -> None:
        match event:
            case PermissionAsked():
                offers_edits = bool(event.diffs) and (self._mode or self._host.info.mode) == "ask"
                self._print.permission(event, offers_edits=offers_edits)
                text = await self._lines.answer("allow? ", _is_permission_answer(event, offers_edits=offers_edits))
                key = (text or "n")[:1].lower()
                if key == "e":
                    self._set_mode("accept-edits")
                meaning = {"y": "once", "e": "once", "s": "session", "a": "always"}.get(key, "deny")
                self._answer(event.call_id, meaning)
            case QuestionAsked():
                self._print.question(event)
                text = await self._lines.answer("answer: ", bool) or ""
                chosen = int(text) - 1 if text.isdecimal() else -1
                in_range = 0 <= chosen < len(event.options)
                self._answer(event.call_id, event.options[chosen] if in_range else text)
            case ModeChanged(mode=mode):
                self._mode = mode
            case _:
                self._print.show(event)

    def _answer(self, call_id: str, text: str) -> None:
        if self._agent is not None:
            self._agent.send(Answer(call_id, text))

    # ---------------------------------------------------------------- commands
    async def _command(self, name: str, argument: str) -> bool:
        try:
            match name:
                case "quit":
                    return False
                case "help":
                    self._print.line(_KEYS + commands_help((*PLAIN_COMMANDS, *self._host.commands())))
                case "clear":
                    self._use(await self._host.new_session())
                    self._print.line("(a new session)", "dim")
                case "compact" if self._agent is not None:
                    await self._play(self._agent.compact())
                case "resume":
                    await self._resume(argument)
                case "undo":
                    self._print.line(f"({plain(await self._host.undo())})", "dim")
                case "name":
                    self._print.line(f"({plain(self._host.name_session(argument))})", "dim")
                case "redo":
                    self._print.line(f"({plain(await self._host.redo())})", "dim")
                case "diff":
                    for change in (changes := self._host.changes()):
                        self._print.diff(change)
                    if not changes:
                        self._print.line("(no changes in this session)", "dim")
                case "mcp":
                    self._print.line(plain(self._host.servers()) or "(no MCP servers in the settings)")
                case "jobs":
                    self._print.line(plain(await jobs_command(self._host, argument)))
                case "status":
                    self._print.line(await status_text(self._host))
                case "map":
                    self._print.line(plain(await self._host.repo_map()))
                case "mode":
                    self._set_mode(argument)
                case "model":
                    await self._model(argument)
                case "engine":
                    await self._engine()
                case "theme" | "copy":
                    self._print.line(f"(/{name} is a command of the full screen)", "dim")
                case _ if self._agent is not None:
                    await self._play(self._agent.run(self._host.expand(name, argument)))
                case _:
                    pass
        except HostError as error:
            self._print.line(f"error: {plain(str(error))}", "red")
        return True

    async def _resume(self, session_id: str) -> None:
        sessions = self._host.sessions()[:20]
        if session_id:
            numbered = session_id.isdecimal() and 0 < int(session_id) <= len(sessions)
            chosen = sessions[int(session_id) - 1].id if numbered else session_id
            self._use(await self._host.resume(chosen))
            for event in self._host.history():
                self._print.show(event)
            return
        for number, session in enumerate(sessions, 1):
            self._print.line(f"  {number:2}  {session.id}  {one_line(session.title, 60)}")
        told = "/resume NUMBER goes back to one of them" if sessions else "there are no earlier sessions in this folder"
        self._print.line(f"({told})", "dim")

    async def _engine(self) -> None:
        await self._host.measure_memory()
        view = self._host.engine()
        if view is None:
            self._print.line("(the model does not run in this process: its server has the figures)", "dim")
            return
        for line in engine_lines(view, Rates(), rates(None, view, 0.0), []):
            meaning = f"  ({line.meaning})" if line.meaning else ""
            self._print.line(f"  {line.name}: {line.text}{meaning}")

    async def _look_around(self) -> None:
        """What was found on this machine, the first time; the fetch itself begins by itself and Ctrl-C ends it."""
        look = await self._host.first_look()
        if look is None:
            return
        self._host.note_first_look_seen()
        self._print.line("Welcome to pointcode. What was found on this machine:", "bold")
        for finding in look.findings:
            self._print.line(f"  {finding.topic}: {one_line(finding.text)}", *(() if finding.good else ("yellow",)))
        if look.download:
            self._print.line(f"To be fetched, once: {one_line(look.download)}. ctrl+c leaves.", "bold")

    def _set_mode(self, mode: str) -> None:
        for known in MODES:
            if mode == known and self._agent is not None:
                self._agent.send(SetMode(known))
                self._mode = known
                return
        if mode:
            self._print.line(f"there is no mode {one_line(mode)}; there are:", "yellow")
        for known in MODES:
            self._print.line(f"  {known}: {MODE_MEANING[known]}")

    async def _model(self, name: str) -> None:
        if name:
            self._use(await self._host.use_model(name, self._progress))
            self._print.line(f"(the model is now {one_line(self._host.info.model)})", "dim")
            return
        for model in self._host.models():
            self._print.line(f"  {one_line(model)}{'  (in use)' if model == self._host.info.model else ''}")


def _is_permission_answer(ask: PermissionAsked, *, offers_edits: bool) -> Callable[[str], bool]:
    words = {"y", "yes", "n", "no"} | ({"a", "always"} if ask.rule else set[str]()) | ({"e"} if offers_edits else set())
    words |= {"s", "session"} if ask.offers_session else set()
    return lambda text: text.lower() in words


def run_plain(host: Host, *, prompt: str = "", history_path: Path | None = None, vi_keys: bool = False) -> int:
    """Run the line mode until the end of input; `prompt` is sent first. Returns the process's exit code."""
    try:
        return asyncio.run(_run(host, prompt, history_path, vi_keys))
    except OSError as error:  # nobody can read it any more: a closed pipe, a full disk
        with contextlib.suppress(OSError):
            print(f"pointcode: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return 1


async def _run(host: Host, prompt: str, history_path: Path | None, vi_keys: bool) -> int:
    history = PromptHistory(history_path)
    lines: LineSource = TerminalLines(host, history, vi_keys=vi_keys) if sys.stdin.isatty() else PipedLines()
    try:
        return await PlainFrontEnd(host, lines, LinePrinter()).run(prompt)
    finally:
        await host.close()

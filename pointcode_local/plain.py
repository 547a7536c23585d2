"""The line mode: the same agent and commands without a full screen, for screen readers, dumb terminals and pipes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from pointcode_local.complete import (
    COMMANDS,
    MODE_MEANING,
    MODES,
    PromptHistory,
    commands_help,
    fuzzy_paths,
    list_files,
    mention_at,
    parse_slash,
)
from pointcode_local.events import (
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
from pointcode_local.lineprint import LinePrinter
from pointcode_local.render import one_line, plain, short_bytes
from pointcode_local.usershell import note_for_model, run_user_shell

PLAIN_COMMANDS = tuple(command for command in COMMANDS if command.name not in ("theme", "copy"))
_KEYS = """Keys
  enter sends, alt+enter or a final \\ starts a new line
  up and down walk through earlier messages, ctrl+r searches them, tab completes /commands and @paths
  ctrl+c stops the turn, ctrl+d quits, !command runs a command yourself
"""


class LineSource(Protocol):
    """Where the person's lines come from."""

    async def prompt(self, message: str) -> str | None:
        """The next message; None at the end of input. Raises KeyboardInterrupt on Ctrl-C."""
        ...

    async def answer(self, message: str, accepts: Callable[[str], bool]) -> str | None:
        """An answer to a question; None when there is none to be had. Raises KeyboardInterrupt on Ctrl-C."""
        ...


class PipedLines:
    """Standard input that is no terminal: one message per line."""

    def __init__(self) -> None:
        self._held: list[str] = []

    async def prompt(self, message: str) -> str | None:
        """The next line that is not empty."""
        while True:
            line = self._held.pop() if self._held else await asyncio.to_thread(sys.stdin.readline)
            if not line:
                return None
            if line.strip():
                return line.rstrip("\r\n")

    async def answer(self, message: str, accepts: Callable[[str], bool]) -> str | None:
        """The next line if it is an answer; any other line stays the next message."""
        line = await self.prompt(message)
        if line is not None and accepts(line.strip()):
            return line.strip()
        if line is not None:
            self._held.append(line + "\n")
        return None


class TerminalLines:
    """A terminal, with editing, history and completion by prompt-toolkit."""

    def __init__(self, host: Host, history: PromptHistory) -> None:
        self._history = history
        memory = InMemoryHistory(history.entries)
        self._session: PromptSession[str] = PromptSession(
            history=memory, completer=_PlainCompleter(host), complete_while_typing=False, key_bindings=_bindings()
        )
        self._answers: PromptSession[str] = PromptSession()

    async def prompt(self, message: str) -> str | None:
        """One message, which may have several lines."""
        try:
            text = await self._session.prompt_async(message)
        except EOFError:
            return None
        self._history.add(text)
        return text

    async def answer(self, message: str, accepts: Callable[[str], bool]) -> str | None:
        """Ask until the answer is one; what was typed before the question is dropped."""
        _drop_typed_ahead()
        while True:
            try:
                text = (await self._answers.prompt_async(message)).strip()
            except EOFError:
                return None
            if accepts(text):
                return text


def _drop_typed_ahead() -> None:
    try:
        import termios
    except ImportError:
        return
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return bindings


class _PlainCompleter(Completer):
    """`/` commands at the start, `@` paths anywhere."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._files: list[str] = []
        self._read_at = float("-inf")

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """For prompt-toolkit."""
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            yield from self._commands(text)
        elif (query := mention_at(document.current_line_before_cursor)) is not None:
            if time.monotonic() - self._read_at > 10:
                self._files, self._read_at = list_files(self._host.info.cwd), time.monotonic()
            for path in fuzzy_paths(query, self._files):
                yield Completion(path, start_position=-len(query), display=plain(path))

    def _commands(self, text: str) -> Iterator[Completion]:
        for command in (*PLAIN_COMMANDS, *self._host.commands()):
            if command.name.startswith(text[1:]):
                yield Completion(f"/{command.name}", start_position=-len(text), display_meta=command.summary)


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
            self._use(await self._host.open(self._progress))
        except HostError as error:
            self._print.line(f"error: {plain(str(error))}", "red")
            return 1
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
        with _on_interrupt(self._stop):
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
                self._print.permission(event)
                text = await self._lines.answer("allow? ", _is_permission_answer(event))
                meaning = {"y": "once", "a": "always"}.get((text or "n")[:1].lower(), "deny")
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
                case "resume":
                    await self._resume(argument)
                case "undo":
                    self._print.line(f"({plain(await self._host.undo())})", "dim")
                case "redo":
                    self._print.line(f"({plain(await self._host.redo())})", "dim")
                case "diff":
                    self._print.line(plain(self._host.diff()) or "(no changes in this session)")
                case "mcp":
                    self._print.line(plain(self._host.servers()) or "(no MCP servers in the settings)")
                case "map":
                    self._print.line(plain(await self._host.repo_map()))
                case "mode":
                    self._set_mode(argument)
                case "model":
                    await self._model(argument)
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
        if session_id:
            self._use(await self._host.resume(session_id))
            for event in self._host.history():
                self._print.show(event)
            return
        for session in self._host.sessions()[:20]:
            self._print.line(f"  {session.id}  {one_line(session.title, 60)}")
        self._print.line("(/resume ID goes back to one of them)", "dim")

    def _set_mode(self, mode: str) -> None:
        for known in MODES:
            if mode == known and self._agent is not None:
                self._agent.send(SetMode(known))
                self._mode = known
                return
        for known in MODES:
            self._print.line(f"  {known}: {MODE_MEANING[known]}")

    async def _model(self, name: str) -> None:
        if name:
            self._use(await self._host.use_model(name, self._progress))
            self._print.line(f"(the model is now {one_line(self._host.info.model)})", "dim")
            return
        for model in self._host.models():
            self._print.line(f"  {one_line(model)}{'  (in use)' if model == self._host.info.model else ''}")


def _is_permission_answer(ask: PermissionAsked) -> Callable[[str], bool]:
    words = {"y", "yes", "n", "no"} | ({"a", "always"} if ask.rule else set[str]())
    return lambda text: text.lower() in words


@contextlib.contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Generator[None]:
    """SIGINT calls `stop` instead of ending the program."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, ValueError, RuntimeError):  # not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def run_plain(host: Host, *, prompt: str = "", history_path: Path | None = None) -> int:
    """Run the line mode until the end of input; `prompt` is sent first. Returns the process's exit code."""
    return asyncio.run(_run(host, prompt, history_path))


async def _run(host: Host, prompt: str, history_path: Path | None) -> int:
    lines: LineSource = TerminalLines(host, PromptHistory(history_path)) if sys.stdin.isatty() else PipedLines()
    try:
        return await PlainFrontEnd(host, lines, LinePrinter()).run(prompt)
    finally:
        await host.close()

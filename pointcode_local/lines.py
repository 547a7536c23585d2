"""Where the line mode's input comes from: a terminal with editing and completion, or a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from pointcode_local.complete import (
    COMMANDS,
    PromptHistory,
    fuzzy_paths,
    list_files,
    mention,
    mention_at,
    mention_length,
)
from pointcode_local.frontend import Host
from pointcode_local.jobcontrol import can_be_continued
from pointcode_local.render import plain

PLAIN_COMMANDS = tuple(command for command in COMMANDS if command.name not in ("theme", "copy"))


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

    def __init__(self, host: Host, history: PromptHistory, *, vi_keys: bool = False) -> None:
        self._history = history
        memory = InMemoryHistory(history.entries)
        self._session: PromptSession[str] = PromptSession(
            history=memory,
            completer=_PlainCompleter(host),
            complete_while_typing=False,
            key_bindings=_bindings(),
            vi_mode=vi_keys,
            enable_suspend=can_be_continued(),
        )
        self._answers: PromptSession[str] = PromptSession(enable_suspend=can_be_continued())

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
                start = -mention_length(document.current_line_before_cursor)
                yield Completion(f"{mention(path)} ", start_position=start, display=plain(path))

    def _commands(self, text: str) -> Iterator[Completion]:
        for command in (*PLAIN_COMMANDS, *self._host.commands()):
            if command.name.startswith(text[1:]):
                yield Completion(f"/{command.name}", start_position=-len(text), display_meta=command.summary)

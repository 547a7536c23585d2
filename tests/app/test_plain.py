"""The line mode: what it prints, what it asks, what it does with piped input."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.events import (
    AgentEvent,
    Answer,
    ErrorRaised,
    PermissionAsked,
    PrefillChanged,
    QuestionAsked,
    SessionInfo,
    SetMode,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnStarted,
)
from pointcode_local.frontend import Progress
from pointcode_local.lineprint import LinePrinter, Look
from pointcode_local.plain import PlainFrontEnd, run_plain
from pointcode_local.render import error_tail
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_scripts import DIFF, PERMISSION, answer, full_turn

PLAIN = Look(color=False, redraw=False)
COLOR = Look(color=True, redraw=True)


class TypedLines:
    """A person at a terminal: lines typed in advance, then the end of input."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.prompts: list[str] = []

    async def prompt(self, message: str) -> str | None:
        self.prompts.append(message)
        return self.lines.pop(0) if self.lines else None

    async def answer(self, message: str, accepts: Callable[[str], bool]) -> str | None:
        while (text := await self.prompt(message)) is not None:
            if accepts(text):
                return text
        return None


async def talk(host: ScriptedHost, lines: list[str], look: Look = PLAIN, prompt: str = "") -> tuple[str, TypedLines]:
    """Run the front end over typed lines; returns what it printed."""
    out = io.StringIO()
    typed = TypedLines(lines)
    assert await PlainFrontEnd(host, typed, LinePrinter(out, look)).run(prompt) == 0
    return out.getvalue(), typed


def printed(look: Look, *events: Any) -> str:
    out = io.StringIO()
    printer = LinePrinter(out, look)
    for event in events:
        printer.show(event)
    return out.getvalue()


async def test_a_whole_turn_prints_as_readable_lines_without_escape_codes() -> None:
    text, _ = await talk(ScriptedHost(ScriptedAgent([full_turn()])), ["add a flag"])
    assert "\x1b" not in text and "\r" not in text
    expected = [
        "(thinking)",
        "I'll add the flag in `src/cli.py`. Two places read the arguments:",
        "* read src/cli.py",
        "  ok: 40 lines",
        "* edit src/cli.py",
        "  ok: +3 −3",
        "      5 -     city = argv[1]",
        "      5 +     args = parser().parse_args(argv[1:])",
        "  [>] Add the flag",
        "* shell pytest -q",
        "  | ....F",
        "  failed: exit code 1",
        "(9.2k of 32.8k tokens in context, 128 tok/s, first token 0.31 s, 43% of the prompt from cache)",
    ]
    lines = text.splitlines()
    positions = [lines.index(line) for line in expected]
    assert positions == sorted(positions)


def test_colours_only_wrap_the_same_text() -> None:
    events = [event for event in full_turn() if not isinstance(event, PrefillChanged)]
    colored = printed(COLOR, *events)
    assert "\x1b[32m" in colored and "\x1b[31;7m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == printed(PLAIN, *events)


@pytest.mark.parametrize(
    ("term", "no_color", "expected"), [("dumb", "", (False, False)), ("xterm", "1", (False, True))]
)
def test_dumb_terminals_and_no_color_are_respected(
    term: str, no_color: str, expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    look = Look.of(Terminal())
    assert (look.color, look.redraw) == expected


def test_text_of_others_cannot_write_escape_sequences() -> None:
    nasty = "\x1b]52;c;AAAA\x07\x1b[2J\u202e[/dim]\r"
    text = printed(
        COLOR,
        TextDelta(nasty),
        ToolStarted("1", "shell", {"command": nasty}, nasty),
        ToolProgress("1", nasty),
        ToolFinished("1", "shell", {}, nasty * 3 + "\n" + nasty, True),
        ErrorRaised(nasty),
    )
    rest = re.sub(r"\x1b\[[0-9;]*m|\r\x1b\[K", "", text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", rest)
    assert "[/dim]" in rest


def test_streamed_text_is_printed_once_and_as_it_comes() -> None:
    out = io.StringIO()
    printer = LinePrinter(out, PLAIN)
    seen: list[str] = []
    for event in answer("Hello, world.", cut=5):
        printer.show(event)  # type: ignore[arg-type]
        seen.append(out.getvalue())
    assert seen == ["Hello", "Hello, wor", "Hello, world.", "Hello, world.\n"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("y", "once"), ("s", "session"), ("session", "session"), ("always", "always"), ("no", "deny")],
)
async def test_a_permission_is_asked_with_its_rule_and_answered_by_a_letter(typed: str, expected: str) -> None:
    agent = ScriptedAgent([[PERMISSION]])
    text, lines = await talk(ScriptedHost(agent), ["go", "what?", typed])
    assert agent.sent == [Answer("ask1", expected)]
    assert "s = allow for this session, a = always allow shell(git push *)" in text
    assert "command: python -m pytest -q tests && git push --force" in text
    assert lines.prompts == ["ask> ", "allow? ", "allow? ", "ask> "]


async def test_an_edit_shows_its_diff_before_it_is_allowed() -> None:
    agent = ScriptedAgent([[PermissionAsked("e", "edit", {}, "edit src/cli.py", "", "", (DIFF,))]])
    text, _ = await talk(ScriptedHost(agent), ["go", "a", "n"])
    assert agent.sent == [Answer("e", "deny")]
    assert "     10 + def forecast(city, verbose=False):" in text


async def test_a_yes_to_all_edits_is_a_yes_and_the_mode_accept_edits() -> None:
    agent = ScriptedAgent([[PermissionAsked("e", "edit", {}, "edit src/cli.py", "", "", (DIFF,))], [PERMISSION]])
    text, lines = await talk(ScriptedHost(agent), ["go", "e", "again", "e", "n"])
    assert agent.sent == [
        SetMode("accept-edits"),
        Answer("e", "once"),
        Answer("ask1", "deny"),
    ]  # not for commands
    assert text.count("e = yes, and all later edits") == 1 and lines.prompts[2] == "accept-edits> "


async def test_a_question_takes_a_number_or_words() -> None:
    agent = ScriptedAgent([[QuestionAsked("q", "Unit?", ("Celsius", "Fahrenheit")), QuestionAsked("r", "Name?", ())]])
    await talk(ScriptedHost(agent), ["go", "2", "wttr"])
    assert agent.sent == [Answer("q", "Fahrenheit"), Answer("r", "wttr")]


async def test_ctrl_c_at_a_permission_stops_the_turn() -> None:
    class Interrupted(TypedLines):
        async def answer(self, message: str, accepts: Callable[[str], bool]) -> str | None:
            raise KeyboardInterrupt

    agent = ScriptedAgent([[PERMISSION]])
    out = io.StringIO()
    assert await PlainFrontEnd(ScriptedHost(agent), Interrupted(["go"]), LinePrinter(out, PLAIN)).run("") == 0
    assert agent.sent == [] and "(stopped)" in out.getvalue()


async def test_the_end_of_input_at_a_permission_denies() -> None:
    agent = ScriptedAgent([[PERMISSION]])
    await talk(ScriptedHost(agent), ["go"])
    assert agent.sent == [Answer("ask1", "deny")]


async def test_commands_do_what_they_say() -> None:
    agent = ScriptedAgent()
    text, lines = await talk(
        ScriptedHost(agent),
        ["/help", "/mode plan", "/undo", "/model", "/resume nope", "/mode x", "/undoo", "/compact", "/quit", "x"],
    )
    assert agent.sent == [SetMode("plan")] and len(agent.played) == 2  # a mistyped command is not a message
    for part in (
        "There is no command undoo.",
        "/resume [id]",
        "Restored src/app.py.",
        "smollm2-135m",
        "There is no session nope.",
        "auto: never asks",
        "(the conversation now holds 200 tokens)",
    ):
        assert part in text
    assert lines.prompts[2] == "plan> "
    assert lines.lines == ["x"]


async def test_a_session_is_resumed_by_its_number_in_the_list() -> None:
    stored = [SessionInfo("s9", "Newest", "/", 9.0), SessionInfo("s8", "Older", "/", 8.0)]
    host = ScriptedHost(ScriptedAgent(), stored=stored)
    text, _ = await talk(host, ["/resume", "/resume 2", "/resume 3"])
    assert " 1  s9  Newest" in text and " 2  s8  Older" in text
    assert host.opened_sessions == ["s8"] and "There is no session 3." in text


async def test_ctrl_c_while_a_model_is_fetched_leaves_the_shell_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    host = ScriptedHost(ScriptedAgent(), open_progress=[Progress("Downloading", 10, 100)], hold_open=True)
    front_end = PlainFrontEnd(host, TypedLines([]), LinePrinter(sys.stdout, COLOR))
    running = asyncio.create_task(front_end.run(""))
    while "Downloading" not in (said := capsys.readouterr().out):  # noqa: ASYNC110 - the other task prints it
        await asyncio.sleep(0)
    assert not said.endswith("\n")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert capsys.readouterr().out.endswith("\n")


async def test_own_commands_are_prompts_and_the_other_commands_tell_what_there_is() -> None:
    agent = ScriptedAgent([full_turn()])
    host = ScriptedHost(agent, own_commands={"check": "!Check $ARGUMENTS"})
    text, _ = await talk(host, ["/help", "/name my work", "/redo", "/diff", "/map", "/mcp", "/check a b"])
    for part in (
        "/check [text]",
        "now called my work",
        "Changed src/app.py again.",
        "src/app.py",
        "def main()",
        "docs: running",
    ):
        assert part in text
    assert isinstance(agent.played[0], TurnStarted) and agent.played[0].prompt == "!Check a b"


async def test_a_command_of_the_person_is_told_to_the_model(tmp_path: Path) -> None:
    agent = ScriptedAgent()
    text, _ = await talk(ScriptedHost(agent, cwd=tmp_path), ["!echo one; exit 4"])
    assert "  | one\n  failed: exit code 4\n" in text
    assert len(agent.notes) == 1 and "echo one" in agent.notes[0]


async def test_ctrl_c_stops_the_turn_and_the_session_goes_on() -> None:
    class Interrupting(ScriptedAgent):
        async def _woken(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await super()._woken()

    agent = Interrupting([[*answer("Half"), WAIT], answer("Second answer")])
    text, _ = await talk(ScriptedHost(agent), ["one", "two"])
    assert "Half\n(stopped)\n" in text and "Second answer" in text


async def test_a_turn_that_fails_inside_is_said_and_the_session_goes_on() -> None:
    class Broken(ScriptedAgent):
        async def _turn(self, prompt: str) -> AsyncIterator[AgentEvent]:
            if prompt == "one":
                raise RuntimeError("boom")
            async for event in super()._turn(prompt):
                yield event

    text, _ = await talk(ScriptedHost(Broken([answer("fine")])), ["one", "two"])
    assert "error: RuntimeError: boom" in text and "fine" in text


def test_piped_lines_are_messages_and_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = ScriptedAgent([[PERMISSION], [PERMISSION], answer("third")])
    host = ScriptedHost(agent)
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\ny\n\nsecond\nthird message\n"))
    assert run_plain(host) == 0
    assert agent.sent == [Answer("ask1", "once"), Answer("ask1", "deny")]
    assert "third" in capsys.readouterr().out
    assert host.closed == 1


def test_a_model_that_cannot_be_opened_ends_with_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    host = ScriptedHost(ScriptedAgent(), open_error="No model is on this machine.")
    assert run_plain(host) == 1
    assert "error: No model is on this machine." in capsys.readouterr().out
    assert host.closed == 1


def test_an_error_whose_first_line_is_the_summary_is_not_told_twice() -> None:
    text = "`old` was not found in the file: 'one'\nThe nearest lines are:\n1\ttwo"
    assert error_tail(text, 6) == ["The nearest lines are:", "1\ttwo"]
    assert error_tail("FAILED test_a\nexit code 1", 6) == ["FAILED test_a", "exit code 1"]
    assert error_tail("a\nb\nc\nd", 2) == ["c", "d"]

"""What the terminal sends: keys are keys, and a paste is text whatever it holds."""

from __future__ import annotations

import os
import pty
import termios
import tty
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key, Paste
from textual.message import Message

from pointcode_local.tui.keyboard import LOST_TICKS, PASTE_BEGINS, PASTE_ENDS, PasteParser, read_keys
from tests.app.openai_server import Reply, ScriptedServer
from tests.app.program import Program
from tests.app.pty_program import PtyProgram, session_of

HOSTILE = "a\x1b[31mred\x1b[0m\x07\x1a\x03b\r\ny\x1b\x1b[A\x1b]0;title\x07 \x1b[20日本\x1b"


def shown(events: Iterable[Message]) -> list[str]:
    """Keys by name, pastes in brackets."""
    return [f"[{e.text}]" if isinstance(e, Paste) else e.key for e in events if isinstance(e, Key | Paste)]


def parsed(pieces: Iterable[str]) -> list[str]:
    parser = PasteParser()
    return [name for piece in pieces for name in shown(parser.feed(piece))]


def test_a_paste_is_one_text_whatever_it_holds() -> None:
    stream = f"x{PASTE_BEGINS}{HOSTILE}{PASTE_ENDS}y\x1b[A{PASTE_BEGINS}{PASTE_ENDS}\r"
    assert parsed([stream]) == ["x", f"[{HOSTILE}]", "y", "up", "[]", "enter"]


@given(st.text(alphabet="a\x1b[02~1\r\x07", max_size=40), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_the_cuts_of_the_terminal_do_not_matter(text: str, sizes: list[int]) -> None:
    text = text.replace(PASTE_ENDS, "")
    tail = f"{text}{PASTE_ENDS}z"
    cuts, at = [], 0
    for size in sizes:
        cuts.append(tail[at : at + size])
        at += size
    want = tail.partition(PASTE_ENDS)
    assert parsed(["k", PASTE_BEGINS, *filter(None, [*cuts, tail[at:]])])[:2] == ["k", f"[{want[0]}]"]


@pytest.mark.parametrize("cut", range(3, len(PASTE_BEGINS)))
def test_a_mark_that_comes_in_two_pieces_is_one(cut: int) -> None:
    stream = f"x{PASTE_BEGINS}{HOSTILE}{PASTE_ENDS}"
    assert parsed([stream[: 1 + cut], stream[1 + cut :]]) == ["x", f"[{HOSTILE}]"]


def test_half_a_mark_that_goes_on_otherwise_is_a_key() -> None:
    assert parsed(["\x1b[20", "~"]) == ["f9"]


def test_a_paste_whose_end_got_lost_does_not_keep_the_keys_for_ever() -> None:
    parser = PasteParser()
    assert shown(parser.feed(f"{PASTE_BEGINS}half")) == []
    assert [name for _ in range(LOST_TICKS + 1) for name in shown(parser.tick())] == ["[half]"]
    assert shown(parser.feed("q")) == ["q"]


@pytest.mark.parametrize(
    ("before", "keys"),
    [
        ("hi\r", "h i enter"),  # one line: Enter sends it
        ("hi", "h i"),
        ("a\rb\r", "a ctrl+j b ctrl+j"),  # perhaps a paste, a line of which could be a command
        ("a\rb", "a ctrl+j b"),
        ("\r", "enter"),
        ("", ""),
    ],
)
def test_enter_typed_before_the_program_has_the_terminal_is_enter_and_ctrl_j_is_a_key_later(
    before: str, keys: str
) -> None:
    terminal, ours = pty.openpty()
    os.write(terminal, before.encode())
    echo = before.replace("\r", "\r\n")  # the terminal has taken in what it has echoed
    while echo:
        echo = echo.removeprefix(os.read(terminal, len(echo)).decode())
    tty.setraw(ours, termios.TCSANOW)
    came: list[Message] = []

    def take(event: Message) -> None:
        came.append(event)
        if len(came) == max(1, len(keys.split())):
            os.write(terminal, b"\nz")

    if not keys:
        take(Key("begin", None))
    read_keys(ours, lambda: "z" in shown(came), take)
    os.close(terminal)
    os.close(ours)
    assert shown(came) == [*(keys.split() or ["begin"]), "ctrl+j", "z"]


def test_a_line_typed_while_the_program_starts_is_sent(tmp_path: Path) -> None:
    program = Program(tmp_path)
    with ScriptedServer([Reply("THE-ANSWER")]) as server:
        with PtyProgram(program, "--endpoint", server.url) as terminal:
            terminal.send("typed ahead\r")  # the kernel makes a line of it: nobody has the terminal yet
            terminal.wait_for("THE-ANSWER")
            terminal.send("\x04")
            assert terminal.wait() == 0
        (asked,) = [m["content"] for m in server.requests[0]["messages"] if m["role"] == "user"]
        assert asked.endswith("typed ahead")


def test_lines_pasted_while_the_program_starts_stand_whole_in_the_field_and_run_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path)
    with ScriptedServer([Reply("THE-ANSWER")]) as server:
        with PtyProgram(program, "--endpoint", server.url) as terminal:
            terminal.send("see\r!touch ran\r")
            terminal.wait_for("context 0%")
            terminal.send("end\r")
            terminal.wait_for("THE-ANSWER")
            terminal.send("\x04")
            assert terminal.wait() == 0
        (asked,) = [m["content"] for m in server.requests[0]["messages"] if m["role"] == "user"]
        assert asked.endswith("see\n!touch ran\nend") and not (program.ws / "ran").exists()


def test_pasted_control_characters_press_no_keys_and_odd_bytes_end_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path)
    with (
        ScriptedServer([Reply("THE-ANSWER")]) as server,
        PtyProgram(program, "--endpoint", server.url) as terminal,
    ):
        terminal.wait_for("context 0%")
        os.write(terminal.master, b"\xff\xe9")
        terminal.send(f"{PASTE_BEGINS}one\x1b[31m two\x07\x1a\x03\r\nthree{PASTE_ENDS}")
        terminal.wait_for("three")
        assert server.requests == []
        terminal.send("\r")
        terminal.wait_for("THE-ANSWER")
        (asked,) = [m["content"] for m in server.requests[0]["messages"] if m["role"] == "user"]
        assert "two" in asked and asked.endswith("\nthree")
        terminal.send("\x04")
        assert terminal.wait() == 0
        terminal.check_restored()
    assert "THE-ANSWER" in session_of(program)

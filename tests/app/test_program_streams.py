"""The standard streams of the program: a terminal, a pipe, a full disk, or closed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.app.openai_server import Reply, ScriptedServer, tool
from tests.app.program import Program


def test_a_prompt_from_stdin_arrives_whole(program: Program):
    text = "Straße 漢字 \u2028 " + "word " * 9_000 + "\nLAST"
    _, done, server = program.ask(Reply("ok"), prompt="-", data=text.encode() + b"\xff")
    assert done.returncode == 0
    assert server.requests[0]["messages"][-1]["content"].endswith(text + "\ufffd")


def test_text_mode_prints_the_answer_alone(program: Program):
    answer = "ü [/dim] [bold]x[/] \x1b[31m :smile: **md**"
    (program.ws / "f").write_text("x")
    with ScriptedServer([tool("read", path="f"), Reply(answer, reasoning="hm")]) as server:
        done = program.run("-p", "x", "--endpoint", server.url)
    assert done.stdout.decode() == answer + "\n"
    assert b"read f" in done.stderr and b"\x1b" not in done.stderr


def test_stream_json_prints_one_event_a_line_and_the_result_last(program: Program):
    answer = "Line\u2028one\x85ü\nline two"
    (program.ws / "f").write_text("x")
    with ScriptedServer([tool("read", path="f"), Reply(answer, reasoning="hm")]) as server:
        done = program.run("-p", "x", "--endpoint", server.url, "--output-format", "stream-json")
    lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
    types = [line["type"] for line in lines]
    assert types[0] == "turn_started" and types[-2:] == ["turn_finished", "result"]
    assert {"tool_started", "tool_finished", "text_delta", "reasoning_delta", "usage_changed"} <= set(types)
    assert lines[-1]["result"] == answer
    assert "".join(line["text"] for line in lines if line["type"] == "text_delta") == answer


def test_a_reader_that_goes_away_ends_the_run(program: Program):
    hold = threading.Event()
    with ScriptedServer([Reply("words " * 50, hold=hold)]) as server:
        process = program.start("-p", "x", "--output-format", "stream-json", "--endpoint", server.url)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) != 0
        hold.set()


def on_a_terminal(program: Program, *arguments: str) -> str:
    """What a command shows on a terminal, its standard error too."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*program.command, *arguments], cwd=program.ws, env=program.env, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the terminal's other end is closed
        while data := os.read(ours, 1 << 16):
            shown += data
    process.wait()
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_nothing_that_was_said_acts_on_the_terminal_of_a_command(program: Program):
    nasty = "a\x1b]52;c;QQ==\x07\x9b31m\u202eb"
    result, _, _ = program.ask(tool("read", path=nasty), Reply(nasty), prompt=nasty)
    sid = result["session_id"]
    project = program.ws / nasty / ".pointcode"
    project.mkdir(parents=True)
    (project / "config.toml").write_text("")
    commands: list[tuple[str, ...]] = [("sessions", "list"), ("sessions", "show", sid), (f"--{nasty}",)]
    commands += [
        ("sessions", "show", sid, "--json"),
        ("config", "trust", "--cwd", nasty),
        ("-p", "x", "--cwd", f"/{nasty}"),
    ]
    for command in commands:
        shown = on_a_terminal(program, *command)
        assert "52;c;QQ==" in shown, command
        assert not set("\x1b\x07\x9b\u202e") & set(shown), command


def test_a_standard_output_without_unicode_shows_what_it_can(program: Program):
    result, _, _ = program.ask(Reply("漢字 ANSWER"), prompt="ü GOAL")
    for command in (("sessions", "list"), ("sessions", "show", result["session_id"]), ("--help",)):
        done = program.run(*command, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert b"GOAL" in done.stdout or b"pointcode COMMAND ?" in done.stdout


@pytest.mark.parametrize(
    ("closed", "out"), [("<&-", b"the answer\n"), (">&-", b""), ("2>&-", b"the answer\n"), ("<&- >&- 2>&-", b"")]
)
def test_closed_standard_files_are_no_others_place(program: Program, closed: str, out: bytes) -> None:
    """The number of a closed one must not go to a log or a session that is opened next."""
    with ScriptedServer([Reply("the answer")]) as server:
        line = f'exec "$0" "$@" {closed}'
        command = ["bash", "-c", line, *program.command, "-p", "Go.", "--endpoint", server.url]
        done = subprocess.run(command, cwd=program.ws, env=program.env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout == out
    assert done.stderr == b"" or done.stderr.startswith(b"first token")
    (log,) = (program.state / "sessions").glob("*.jsonl")
    assert [json.loads(line)["type"] for line in log.read_text().splitlines()][-1] == "turn_finished"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_disk_behind_standard_output_is_told(program: Program, form: str) -> None:
    with ScriptedServer([Reply("the answer")]) as server, Path("/dev/full").open("wb") as full:
        command = [*program.command, "-p", "Go.", "--endpoint", server.url, "--output-format", form]
        done = subprocess.run(
            command,
            cwd=program.ws,
            env=program.env,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1 and b"No space left on device" in done.stderr

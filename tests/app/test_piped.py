"""What is piped into a scripted run goes with its prompt."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pointcode_local import piped
from pointcode_local.exits import UsageError
from pointcode_local.piped import GIVEN, PipedInput, as_context, is_piped
from tests.app.blockturn_kit import play
from tests.app.openai_server import Reply, ScriptedServer
from tests.app.program import Program
from tests.fakes import say


def test_what_is_piped_in_stands_before_the_prompt(program: Program):
    _, done, server = program.ask(Reply("Fine."), prompt="Review this.", data=b"-old\n+new \xff\n")
    content = server.requests[0]["messages"][-1]["content"]
    assert done.returncode == 0, done.stderr
    assert content.index("-old\n+new \N{REPLACEMENT CHARACTER}") < content.index("Review this.")


def test_a_file_on_standard_input_is_read_too(program: Program, tmp_path: Path):
    (tmp_path / "log").write_text("line one\n")
    with ScriptedServer([Reply("Fine.")]) as server, (tmp_path / "log").open("rb") as file:
        process = program.start("-p", "Explain.", "--endpoint", server.url, stdin=file)
        process.communicate(timeout=60)
    assert process.returncode == 0 and "line one" in server.requests[0]["messages"][-1]["content"]


def test_of_a_prompt_that_is_read_from_standard_input_nothing_is_left_to_attach(program: Program):
    _, _, server = program.ask(Reply("Fine."), prompt="-", data=b"Say hi.")
    assert server.requests[0]["messages"][-1]["content"].count("Say hi.") == 1
    assert GIVEN not in str(server.requests)


def test_a_dash_behind_the_prompt_waits_for_a_slow_writer_and_other_words_are_a_second_prompt(program: Program):
    with ScriptedServer([Reply("Fine.")]) as server:
        process = program.start("-p", "Explain.", "-", "--endpoint", server.url, stdin=subprocess.PIPE)
        process.communicate(b"at last\n", timeout=60)
    assert "at last" in server.requests[0]["messages"][-1]["content"]
    assert program.run("-p", "Explain.", "more").returncode == 2


async def test_a_pipe_that_says_nothing_is_not_waited_for_and_that_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(piped, "WAIT_S", 0.0)
    ours, theirs = os.pipe()
    said: list[str] = []
    try:
        assert await PipedInput(ours, must_come=False).text(said.append) == ""
    finally:
        os.close(theirs)
    assert len(said) == 1 and "nothing came on standard input" in said[0]


async def test_a_pipe_is_read_to_its_end_and_a_flood_only_in_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(piped, "MAX_BYTES", 1 << 17)
    ours, theirs = os.pipe()
    reading = PipedInput(ours, must_come=True)
    os.set_blocking(theirs, True)
    for _ in range(64):
        os.write(theirs, b"x" * 4096)
    os.close(theirs)
    said: list[str] = []
    assert 0 < len(await reading.text(said.append)) <= 1 << 17
    assert len(said) == 1 and "only the first" in said[0] and "262 kB" in said[0]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("\ufeffgrüße\n".encode("utf-16-le"), "grüße\n"),
        ("\ufeffgrüße\n".encode(), "grüße\n"),
        (b"\x1b[31mred\x1b[0m\n" * 50, "\x1b[31mred\x1b[0m\n" * 50),
        (b"a.py\0b.py\0", "a.py\0b.py\0"),
        (bytes(range(256)) * 9, None),
        (b"\x7fELF\2\1\1" + bytes(100), None),
    ],
)
async def test_what_is_no_text_is_refused(data: bytes, text: str | None):
    ours, theirs = os.pipe()
    reading = PipedInput(ours, must_come=True)
    os.write(theirs, data)
    os.close(theirs)
    if text is None:
        with pytest.raises(UsageError, match="is no text in UTF-8"):
            await reading.text(print)
    else:
        assert await reading.text(print) == text


def test_that_the_middle_of_a_long_input_is_left_out_is_said(program: Program):
    _, done, server = program.ask(Reply("Fine."), prompt="Review this.", data=b"some words on a line\n" * 20_000)
    assert done.returncode == 0 and b"its middle is left out" in done.stderr
    assert "left out here to fit the context" in server.requests[0]["messages"][-1]["content"]


def test_a_terminal_and_dev_null_give_nothing():
    primary, secondary = os.openpty()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        assert not is_piped(secondary) and not is_piped(null)
    finally:
        for fd in (primary, secondary, null):
            os.close(fd)
    assert not is_piped(-1)


def test_text_with_fences_is_held_by_a_longer_one():
    assert as_context("```\ncode\n```\n").endswith("\n````\n```\ncode\n```\n````")


def test_a_small_model_is_asked_about_what_was_piped_in_and_not_about_the_folder(tmp_path: Path):
    model, _, _ = play(tmp_path, "What is wrong?", say("A typo."), attached=as_context("retrun 1"), a_py="x = 1\n")
    content = model.requests[0].messages[-1].content
    assert "retrun 1" in content and "x = 1" not in content

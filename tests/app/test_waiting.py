"""What the scripted mode tells on stderr while it works."""

from __future__ import annotations

import io

import pytest

from pointcode_local.events import PrefillChanged, TextDelta, ToolFinished
from pointcode_local.frontend import Progress
from pointcode_local.headless import describe
from pointcode_local.waiting import StderrLines


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def ticking(step_s: float):
    now = [0.0]

    def clock() -> float:
        now[0] += step_s
        return now[0]

    return clock


def test_a_terminal_shows_what_is_waited_for_and_nothing_of_it_stays(terminal: Terminal) -> None:
    told = StderrLines(terminal, ticking(1))
    told.opening(Progress("downloading m", 120_000_000, 480_000_000))
    told.playing(PrefillChanged(128, 512, 0))
    told.playing(TextDelta("Hello"))
    told.line("> read a.py")
    told.wait("")
    assert terminal.getvalue() == (
        "\r\x1b[Kdownloading m: 25 % of 480 MB …"
        "\r\x1b[Kreading the prompt: 25 % of 512 tokens …"
        "\r\x1b[Kwriting: 5 characters …"
        "\r\x1b[K> read a.py\n"
    )


def test_a_terminal_is_written_to_a_few_times_a_second_however_fast_the_model_is(terminal: Terminal) -> None:
    told = StderrLines(terminal, ticking(0.001))
    for _ in range(500):
        told.playing(TextDelta("word "))
    assert 2 <= terminal.getvalue().count("writing") <= 20


def test_where_no_line_can_be_rewritten_only_a_long_download_tells_each_tenth() -> None:
    stream = io.StringIO()
    told = StderrLines(stream, ticking(1))
    for done in range(0, 491, 7):
        told.opening(Progress("downloading m", done * 1_000_000, 490_000_000))
    told.opening(Progress("loading m"))
    told.playing(PrefillChanged(128, 512, 0))
    told.playing(TextDelta("Hello"))
    told.wait("")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "pointcode: downloading m: 0 % of 490 MB" and lines[-1].endswith("100 % of 490 MB")
    assert len(lines) == 11


def test_a_dumb_terminal_gets_no_control_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    told = StderrLines(stream, ticking(1))
    told.playing(TextDelta("Hello"))
    told.line("a\x1b[2Jb")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("EE\n====\nFAILED\n[exit code 1]", "exit code 1"),
        ("[exit code 127]\n(no network here)", "exit code 127"),
        ("half\n[timed out after 5 s and was ended; for servers use background=true]", "timed out after 5 s"),
        ("a.py was not written: it exists", "a.py was not written: it exists"),
        ("", "failed"),
    ],
)
def test_a_failed_call_is_told_by_the_line_that_says_why(text: str, why: str) -> None:
    finished = ToolFinished("c1", "shell", {}, text, is_error=True)
    assert describe(finished).startswith(f"! shell: {why}")

"""Command output as it stands when all is printed; compared with a terminal emulator where that is possible."""

from __future__ import annotations

import re

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools.terminal_text import LIVE_ROWS, TerminalText


def clean(data: bytes) -> str:
    """The whole of an output at once."""
    out: list[str] = []
    text = TerminalText(out.append)
    text.feed(data)
    text.finish()
    return "".join(out)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain\n", "plain\n"),
        (b"no newline", "no newline"),
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"10%\r20%\r100%\nDone\n", "100%\nDone\n"),
        (b"downloading\rdone\x1b[K\n", "done\n"),
        (b"abc\x08\x08X\n", "aXc\n"),
        (b"\x1b[1;31mred\x1b[0m \x1b[38;5;196mmore\x1b[m\n", "red more\n"),
        (b"\x1b]0;title\x07after\n", "after\n"),
        (b"\x1b]52;c;QUJD\x1b\\after\n", "after\n"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
        (b"\x1bP1$q\x1b\\x\x1b_apc\x1b\\y\x1b^pm\x1b\\z\n", "xyz\n"),
        (b"\x1b[?25l\x1b[?1049hx\x1b[?25h\n", "x\n"),
        (b"step 1\n\x1b[1A\x1b[2Kstep 2\n", "step 2\n"),
        (b"a\nb\n\x1b[2AX\x1b[1B\x1b[1GY\n", "X\nY\n"),
        (b"\x1b[5Cx\n", "     x\n"),
        (b"abc\x1b[1K\x1b[1Gz\n", "z  \n"),
        (b"a\nb\nc\x1b[1A\x1b[J\n", "a\nb\n"),
        (b"\x1b(B\x1b)0\x1b=x\x1b>\x1bM\n", "x\n"),
        (b"bell\x07 nul\x00 del\x7f\n", "bell nul del\n"),
        (b"\x9b1;31mred\x9b0m\n", "red\n"),
        (b"\x9d0;title\x9cx\n", "x\n"),
        (b"caf\xe9 \x9b \xff\xfe\n", "caf\ufffd \ufffd \ufffd\ufffd\n"),
        ("\u009b31mred \u0085next\n".encode(), "red \nnext\n"),
        (b"\x1b]0;never closed\nnext line\n", "\nnext line\n"),
        (b"cut \x1b[38;5", "cut "),
        (b"cut \xc3", "cut \ufffd"),
        (b"tab\there\n", "tab\there\n"),
        ("日本語 é 👩‍👩‍👧\n".encode(), "日本語 é 👩‍👩‍👧\n"),
    ],
)
def test_the_final_state_is_shown_without_controls(raw: bytes, shown: str) -> None:
    assert clean(raw) == shown


FRAGMENTS = st.sampled_from(
    [
        b"text",
        b"\n",
        b"\r\n",
        b"\r",
        b"\x08",
        b"\x1b[31m",
        b"\x1b[0m",
        b"\x1b[K",
        b"\x1b[2K",
        b"\x1b[A",
        b"\x1b[2D",
        b"\x1b[3C",
        b"\x1b]0;t\x07",
        b"\x1b]0;t\x1b\\",
        b"\xc3\xa9",
        "\u009b1m".encode(),
        b"\xff",
        b"\x9b",
        b"\x9b31m",
        b"\x1b",
        b"\x1b(B",
        b"[31m",
        b";5",
        b"\x1b[2G",
        b"ab c",
    ]
)


@settings(max_examples=120, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25), st.data())
def test_the_result_never_depends_on_how_the_output_was_cut(fragments: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    out: list[str] = []
    text = TerminalText(out.append)
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        text.feed(raw[start:end])
    text.finish()
    assert "".join(out) == clean(raw)


@settings(max_examples=120, deadline=None)
@given(st.lists(FRAGMENTS, max_size=30) | st.lists(st.binary(max_size=6), max_size=12))
def test_no_control_character_ever_gets_through(fragments: list[bytes]) -> None:
    shown = clean(b"".join(fragments))
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", shown) is None
    shown.encode()


SCREEN = st.sampled_from(
    [
        "abc",
        "de",
        "x",
        "\r\n",
        "\r",
        "\x08",
        "\x1b[A",
        "\x1b[A\x1b[B",
        "\x1b[2C",
        "\x1b[D",
        "\x1b[4G",
        "\x1b[K",
        "\x1b[1K",
        "\x1b[2K",
        "\x1b[J",
        "\x1b[P",
        "\x1b[1m",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SCREEN, max_size=25))
def test_what_is_shown_is_what_a_terminal_would_show(pieces: list[str]) -> None:
    raw = "\r\n" * 8 + "".join(pieces)  # room above, so that the screen's edge plays no part
    screen = pyte.Screen(100, 40)
    pyte.Stream(screen).feed(raw)
    wanted = [line.rstrip() for line in screen.display]
    got = [line.rstrip() for line in clean(raw.encode()).split("\n")]
    assert got + [""] * (40 - len(got)) == wanted


def test_rows_out_of_reach_are_emitted_and_memory_stays_bounded() -> None:
    emitted: list[str] = []
    text = TerminalText(emitted.append)
    for n in range(50):
        text.feed(b"".join(b"row %d\n" % (n * 1000 + i) for i in range(1000)))
    assert "".join(emitted).count("\n") == 50_000 - LIVE_ROWS + 1
    text.feed(b"\x1b]0;" + b"x" * 100_000)
    text.finish()
    assert "".join(emitted) == "".join(f"row {n}\n" for n in range(50_000))


def test_one_endless_line_is_given_out_in_pieces() -> None:
    emitted: list[str] = []
    text = TerminalText(emitted.append)
    for _ in range(1000):
        text.feed(b"x" * 1000)
    assert sum(map(len, emitted)) > 900_000
    text.finish()
    assert "".join(emitted) == "x" * 1_000_000


def test_live_rows_come_with_their_newline_and_the_last_on_finish() -> None:
    live: list[str] = []
    text = TerminalText(lambda piece: None, live.append)
    text.feed(b"one\ntw")
    assert live == ["one\n"]
    text.feed(b"o\nthree")
    text.finish()
    assert live == ["one\n", "two\n", "three"]

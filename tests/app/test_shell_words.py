"""The small reader of plain command lines gives the words that bash gives."""

from __future__ import annotations

import subprocess
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.shell_words import Unsure, read_plain

WORDS = (
    "a", "-x", "a.b/c", "'a b'", "'a\"$b\\'", '"a b"', '"a\\"b"', '"a\\\\b"', '"a\\$b"', '"a\\`b"', '"a\\bc"',
    '"it\'s"', '""', "''", "a\\ b", "\\'", '\\"', "\\\\", "a\\b", "a'b c'd", "'a'\"b\"\\ c", "a=b", "a#b", "%", "+:@",
)  # fmt: skip


def test_quoted_words_are_those_of_bash() -> None:
    line = "printf '%s\\0' " + " ".join(WORDS)
    plain = read_plain(line)
    assert not isinstance(plain, Unsure)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [word.text for word in plain[0].words[2:]]


@pytest.mark.parametrize(
    "line", ["'ls' a", "l\\s a", '"ls" a', "l? a", "a=b c", "if a", "a 'b", 'a "b', "a b\\", "(a)", "a &&", "a |"]
)
def test_a_line_that_needs_more_than_words_is_left_to_the_grammar(line: str) -> None:
    assert isinstance(read_plain(line), Unsure)


def test_a_semicolon_may_end_a_line() -> None:
    plain = read_plain("ls a; pwd ; ")
    assert not isinstance(plain, Unsure) and [command.name for command in plain] == ["ls", "pwd"]


@settings(max_examples=300, deadline=None)
@given(st.text("ab '\"\\|&;<>$`(){}[]*?~#!=\n\t-/.0", max_size=16))
def test_what_the_small_reader_accepts_expands_nothing_outside_of_quotes(line: str) -> None:
    plain = read_plain(line)
    if isinstance(plain, Unsure):
        return
    assert not set("\n`$()") & set(_unquoted(line))


def _unquoted(line: str) -> str:
    out, at = [], 0
    while at < len(line):
        if line[at] == "'":
            at = line.index("'", at + 1)
        elif line[at] == '"':
            at += 1
            while line[at] != '"':
                at += 2 if line[at] == "\\" else 1
        elif line[at] == "\\":
            at += 1
        else:
            out.append(line[at])
        at += 1
    return "".join(out)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab*?'\" \\-./~{}=#!@^%+:", max_size=6), min_size=1, max_size=4))
def test_bash_gives_the_words_that_the_small_reader_gives(parts: list[str]) -> None:
    plain = read_plain("printf '%s\\0' x " + " ".join(parts))
    if (
        isinstance(plain, Unsure)
        or len(plain) != 1
        or any(word.has_glob or word.raw.startswith("~") for word in plain[0].words)
    ):
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", plain[0].source], capture_output=True, cwd=folder, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [word.text for word in plain[0].words[2:]]

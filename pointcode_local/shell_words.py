"""A deliberately small reader of command lines. It understands plain commands joined by `&&`, `||`, `;` and `|`, with
quotes, globs, input redirection and output to /dev/null; everything else is refused with a reason, so that what it does
accept means in bash exactly what it says here.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

RESERVED = frozenset(
    [
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "in",
        "function",
        "select",
        "time",
        "coproc",
        "[[",
        "]]",
        "{",
        "}",
        "!",
        "[",
    ]
)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
OPERATORS = ("&&", "||", ";", "|")


@dataclass(frozen=True, slots=True)
class Word:
    """One word. `text` is its value, `raw` how it is written; `has_glob` when an unquoted `*`, `?` or `[` is in it."""

    text: str
    raw: str
    has_glob: bool = False


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command: its words (the first is the name), the files it reads by `<`, and its source."""

    words: tuple[Word, ...]
    inputs: tuple[Word, ...]
    source: str

    @property
    def name(self) -> str:
        """The command's name."""
        return self.words[0].text

    @property
    def canonical(self) -> str:
        """The words with single spaces; quoted only where a word holds white space or is empty."""
        return " ".join(quoted(word.text) for word in self.words)


@dataclass(frozen=True, slots=True)
class Unsure:
    """Why the line is not one of the plain ones."""

    reason: str


def quoted(text: str) -> str:
    """A word as it stands in a rule."""
    return shlex.quote(text) if not text or re.search(r"\s", text) else text


def read_plain(line: str) -> tuple[Simple, ...] | Unsure:
    """The simple commands of a plain line, or why it is not plain."""
    return _Reader(line).read()


class _Refused(Exception):
    pass


class _Reader:
    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0
        self.commands: list[Simple] = []

    def read(self) -> tuple[Simple, ...] | Unsure:
        odd = re.search(r"[\x00-\x08\x0a-\x1f\x7f]", self.line)
        if odd is not None:
            return Unsure("it has more than one line" if odd.group() in "\n\r" else "it holds a control character")
        try:
            self._lines()
        except _Refused as refused:
            return Unsure(str(refused))
        return tuple(self.commands)

    def _lines(self) -> None:
        while True:
            self.commands.append(self._simple())
            self._blanks()
            if self.at >= len(self.line):
                return
            operator = next((op for op in OPERATORS if self.line.startswith(op, self.at)), None)
            if operator is None:
                raise _Refused(
                    "it runs something in the background" if self._char() == "&" else f"it uses {self._char()!r}"
                )
            self.at += len(operator)
            if self._char() in "&|;" and self._char():
                raise _Refused(f"it uses {operator + self._char()!r}")
            self._blanks()
            if operator == ";" and self.at >= len(self.line):
                return

    def _char(self) -> str:
        return self.line[self.at : self.at + 1]

    def _blanks(self) -> None:
        while self._char() in (" ", "\t"):
            self.at += 1

    def _simple(self) -> Simple:
        words: list[Word] = []
        inputs: list[Word] = []
        self._blanks()
        start = end = self.at
        while True:
            self._blanks()
            if not self._char() or self._char() in "&|;":
                break
            if (redirected := re.compile(r"\d*[<>]").match(self.line, self.at)) is not None:
                self._redirection(inputs, redirected)
            else:
                words.append(self._word(first=not words))
            end = self.at
        if not words:
            raise _Refused("a command is missing")
        return Simple(tuple(words), tuple(inputs), self.line[start:end])

    def _redirection(self, inputs: list[Word], found: re.Match[str]) -> None:
        if (duplicate := re.compile(r"(2>&1|1>&2|>&2)(?=[\s|;&]|$)").match(self.line, self.at)) is not None:
            self.at = duplicate.end()
            return
        self.at = found.end()
        if self._char() in ("<", ">", "&", "(", "|"):
            raise _Refused("it redirects")
        self._blanks()
        if not self._char() or self._char() in "&|;<>":
            raise _Refused("it redirects to nothing")
        target = self._word(first=False)
        if found.group().endswith("<"):
            inputs.append(target)
        elif target.raw != "/dev/null":
            raise _Refused(f"it writes to {target.text}")

    def _word(self, *, first: bool) -> Word:
        start = self.at
        if self._char() == "#":
            raise _Refused("it holds a comment")
        parts: list[str] = []
        glob = False
        while self._char() and self._char() not in " \t&|;<>":
            piece, is_glob = self._piece()
            parts.append(piece)
            glob = glob or is_glob
        raw, text = self.line[start : self.at], "".join(parts)
        self._check(raw, text, first)
        return Word(text, raw, glob)

    def _piece(self) -> tuple[str, bool]:
        char = self._char()
        if char == "'":
            end = self.line.find("'", self.at + 1)
            if end < 0:
                raise _Refused("a quote is not closed")
            piece, self.at = self.line[self.at + 1 : end], end + 1
            return piece, False
        if char == '"':
            return self._double(), False
        if char == "\\":
            if self.at + 1 >= len(self.line):
                raise _Refused("it ends in a backslash")
            piece, self.at = self.line[self.at + 1], self.at + 2
            return piece, False
        if char in "$`":
            raise _Refused("it uses an expansion or substitution")
        if char in "()":
            raise _Refused("it uses parentheses")
        self.at += 1
        return char, char in "*?["

    def _double(self) -> str:
        out: list[str] = []
        self.at += 1
        while self._char() != '"':
            char = self._char()
            if not char:
                raise _Refused("a quote is not closed")
            if char in "$`":
                raise _Refused("it uses an expansion or substitution")
            if char == "\\" and self.line[self.at + 1 : self.at + 2] in tuple('"\\$`'):
                self.at += 1
                char = self._char()
            out.append(char)
            self.at += 1
        self.at += 1
        return "".join(out)

    def _check(self, raw: str, text: str, first: bool) -> None:
        if re.search(r"\{.*(,|\.\.)", raw):
            raise _Refused("it uses brace expansion")
        if re.match(r"~[^/]", raw):
            raise _Refused("it uses ~ for another folder")
        if not first:
            return
        if ASSIGNMENT.match(text):
            raise _Refused("it sets a variable for the command")
        if raw in RESERVED:
            raise _Refused(f"it uses {raw!r}")
        if raw != text or re.search(r"[*?\[\]{}!~^]", raw):
            raise _Refused("the command's name is quoted or expanded")


def split_options(words: list[str]) -> tuple[list[str], list[str]]:
    """Option words before `--`, and the others."""
    options: list[str] = []
    operands: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            return options, operands + words[at + 1 :]
        (options if word.startswith("-") and word != "-" else operands).append(word)
    return options, operands

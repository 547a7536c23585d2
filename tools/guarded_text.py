"""What no file of the workspace tells any more, but a command's output may: keys in their known forms, and what guarded
files held, as diffs of the history show it (`git log -p`, `git stash show -p`, `diff -u`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy

BLANK = "[secret]"

# Prefixes as their issuers publish them; a digit is demanded where words could look the same.
TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|gh[oprsu]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}"
    r"|sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|AIza[A-Za-z0-9_-]{35}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}"
    r")"
)
_KEY = re.compile(r"(-----BEGIN [A-Z0-9 ]{0,20}PRIVATE KEY[A-Z ]{0,10}-----)(.*?)(-----END |$)")
_KEY_LINE = re.compile(r"[ +|-]*(?:[A-Za-z0-9+/=]*|[A-Za-z-]+: .*)\s*")  # base64, or a header such as DEK-Info
_GRAPH = r"(?P<graph>[|*\\/_ ]*)"  # what `git log --graph` puts before each line
_GIT = re.compile(_GRAPH + r"diff --(?:git|cc|combined) (?P<paths>.+)")
_PLAIN = re.compile(_GRAPH + r"(?P<mark>---|\+\+\+) (?P<paths>[^\t\n]+)")
_HUNK = re.compile(r"(@@+) (?P<ranges>[-+,\d ]+) @@")
_SETTING = re.compile(r"([ +-]++\s*+(?:export\s++)?+[\w.\"'-]++\s*+[=:]\s*+)\S.*")
_COMMIT = re.compile(r"commit [0-9a-f]{7,}")
_WORTH_A_LOOK = re.compile(r"diff --|^.{0,40}(?:---|\+\+\+) |PRIVATE KEY", re.M)


class GuardedText:
    """Follows one output line by line: key blocks and the hunks of guarded files are blanked, all else passes.

    `guarded(path)` tells whether a file's content is not to be shown. Pieces are whole lines; the last may be without
    its newline.
    """

    def __init__(self, guarded: Callable[[str], bool]) -> None:
        self._guarded = guarded
        self._in_key = False
        self._in_diff = False  # of a guarded file
        self._in_header = False  # before the first hunk
        self._graph = 0  # columns before the diff's own
        self._left = 0  # lines of the hunk to come, those of the old and of the new file counted apart
        self._is_combined = False

    def __call__(self, text: str) -> str:
        """The next piece, blanked."""
        if self._in_key or self._in_diff or _WORTH_A_LOOK.search(text):
            *lines, last = text.split("\n")
            text = "".join(self._line(line) + "\n" for line in lines) + (self._line(last) if last else "")
        return TOKENS.sub(BLANK, text)

    def unfinished(self, row: str) -> str:
        """What there is of the next line, blanked; the line itself comes later, whole."""
        return copy(self)(row)

    def _line(self, line: str) -> str:
        if (key := _KEY.search(line)) is not None:
            self._in_key = not key[3]
            return line[: key.end(1)] + (BLANK if len(key[2]) > 20 else key[2]) + line[key.start(3) :]
        self._in_key = self._in_key and _KEY_LINE.fullmatch(line) is not None
        if self._in_key:
            return BLANK
        header = _GIT.match(line) or (None if self._left else _PLAIN.match(line))
        if header is None:
            return self._below_header(line) if self._in_diff else line
        starts = header.re is _GIT or (not self._in_header and header["mark"] == "---")
        self._in_diff = any(map(self._guarded, _paths(header["paths"]))) or (self._in_diff and not starts)
        self._in_header = True
        self._left, self._graph = 0, len(header["graph"])
        return line

    def _below_header(self, line: str) -> str:
        before, line = line[: self._graph], line[self._graph :]
        if (hunk := _HUNK.match(line)) is not None:
            self._in_header = False
            self._is_combined = len(hunk[1]) > 2
            self._left = sum(int(part.partition(",")[2] or 1) for part in hunk["ranges"].split())
            return before + hunk[0]  # git repeats a line of the file behind it
        if self._left <= 0 or _COMMIT.match(line):
            self._left = 0
            return before + line
        self._left -= 2 if line[:1] == " " and not self._is_combined else line[:1] != "\\"  # too few: --word-diff
        if not line.strip(" +-") or line[0] == "\\":
            return before + line
        setting = _SETTING.fullmatch(line)
        mark = line[0] if line[0] in " +-" else ""
        return before + (setting[1] if setting else mark) + BLANK


def _paths(text: str) -> list[str]:
    """The files that a diff's header may mean: `a/x b/x` (also with spaces), one path, or quoted ones."""
    words = text.replace('"', "").split(" ")
    middle = len(words) // 2
    found = [" ".join(words), " ".join(words[:middle]), " ".join(words[middle:])]
    return [re.sub(r"^[abciow]/", "", path) for path in found if path]

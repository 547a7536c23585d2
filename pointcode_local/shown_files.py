"""The files of the workspace that a small model is shown with an order, because it would not look for them itself."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pointcode_local.context_files import IMAGE_SUFFIXES
from pointcode_local.orders import is_test, named_files
from pointcode_local.pyimports import unbound_modules
from pointcode_local.tools.base import ToolError
from pointcode_local.tools.filetext import decode
from pointcode_local.tools.languages import language_of
from pointcode_local.tools.regular import read_regular
from pointcode_local.tools.syntax import MAX_PARSED_BYTES, faults
from pointcode_local.tools.tags import definitions
from pointcode_local.tools.walk import files

MAX_FILES = 20_000
MAX_WALKED = 200_000  # further ones, looked at only for a name that an order gives; 2 s each 100,000
MAX_FILE_BYTES = 256 * 1024
MAX_SHOWN_CHARS = 8000  # of one file; more is shown in part
MAX_SMALL_FOLDER = 12  # files; a folder of no more is shown whole when an order names none of them
MAX_HITS = 30
PART_LINES = 80
MAX_LISTED = 60
LISTING = "Files in this folder:"
_WIDE = (b"\xff\xfe", b"\xfe\xff")  # UTF-16: a word's bytes are others
_STOP_WORDS = frozenset(
    {"the", "and", "for", "from", "with", "that", "this", "into", "file", "function", "add", "change"}
)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines `first` (0-based) to `last` (exclusive) of a file, and their text with `\\n` endings; `head` begins the new
    text too."""

    first: int
    last: int
    text: str
    is_whole: bool
    head: str = ""


class Files:
    """The text files below a folder, as far as the policy lets them be read without asking: the first MAX_FILES, and
    behind them those that `order` names."""

    def __init__(self, root: Path, may_read: Callable[[Path], bool], order: str = "") -> None:
        self._root = root
        self._may_read = may_read
        found = files(root, root)
        self.names = [entry.name for entry in islice(found, MAX_FILES)]
        if self.is_cut and (named := {_base(name) for name in named_files(order, self.names)[1]}):
            self.names += [entry.name for entry in islice(found, MAX_WALKED) if _base(entry.name) in named]

    def text(self, name: str) -> str | None:
        """The file's text with `\\n` line endings; None when it is no text, too large, or not to be read."""
        path = self._root / name
        try:
            if not self._may_read(path):
                return None
            data = read_regular(path, MAX_FILE_BYTES + 1)
            return decode(data).text.replace("\r\n", "\n") if len(data) <= MAX_FILE_BYTES else None
        except (OSError, ToolError):
            return None

    def is_there(self, name: str) -> bool:
        """Whether there is such a file, though it may be one that git ignores or that lies elsewhere."""
        try:
            return os.path.lexists(self._root / Path(name).expanduser())
        except (RuntimeError, ValueError):  # no such user's folder, a NUL
            return False

    def no_text(self, names: Sequence[str]) -> str:
        """Of files none of which can be shown: a sentence on each, for the person; "" when one can."""
        told: list[str] = []
        for name in names:
            path = self._root / name
            if not self._may_read(path) or self.text(name) is not None:
                return ""
            try:
                n_bytes = path.stat().st_size
                read_regular(path, 1)
            except FileNotFoundError:
                return ""
            except OSError as error:
                told.append(f"{name} cannot be read: {error.strerror}.")
            else:
                told.append(_no_text(name, n_bytes))
        return "\n".join(told)

    def not_to_be_written(self, name: str) -> str:
        """Why a file cannot be changed or made, whatever the model writes; "" when it can."""
        path = self._root / name
        try:
            if not stat.S_IMODE(path.stat().st_mode) & 0o222 or not os.access(path, os.W_OK):
                return f"{name} is read-only"
        except OSError:
            folder = next((one for one in path.parents if one.is_dir()), path.parent)
            if not os.access(folder, os.W_OK | os.X_OK):
                return f"{name} cannot be made: {folder} is read-only"
        return ""

    def shown(self, name: str) -> str:
        """The file's text as it can be shown: bytes that are no characters as U+FFFD; "" where there is none."""
        return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", self.text(name) or "")

    @property
    def is_cut(self) -> bool:
        """Whether the folder holds more files than are known here."""
        return len(self.names) >= MAX_FILES

    def holding(self, words: Sequence[str]) -> list[str]:
        """The files that hold one of the words whole."""
        return [name for name, _ in self._holding(words)]

    def _holding(self, words: Sequence[str]) -> Iterator[tuple[str, re.Pattern[str]]]:
        """One by one, with what finds a word in them. Bytes are looked at before a file is read as text."""
        if not words:
            return
        wanted = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in words))
        sought = [word.encode("utf-8", "replace") for word in words]
        for name in self.names:
            try:
                data = read_regular(self._root / name, MAX_FILE_BYTES + 1)
            except OSError:
                continue
            may_hold = data[:2] in _WIDE or any(word in data for word in sought)
            if may_hold and wanted.search(self.text(name) or ""):
                yield name, wanted

    def hits(self, words: Sequence[str]) -> list[tuple[str, int, str]]:
        """Lines (file, number, text) that hold one of the words whole; at most MAX_HITS."""
        return list(islice(self._hits(words), MAX_HITS))

    def _hits(self, words: Sequence[str]) -> Iterator[tuple[str, int, str]]:
        for name, wanted in self._holding(words):
            for number, line in enumerate(self.shown(name).split("\n"), 1):
                if wanted.search(line):
                    yield name, number, line.strip()[:160]

    def home(self, words: Sequence[str]) -> str:
        """The file that defines one of the words, else the first that holds one, tests last; "" for none."""
        holders = islice(self._holding(words), MAX_HITS)
        ranked = [((is_test(name), not self._defines(name, words)), name) for name, _ in holders]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else ""

    def _defines(self, name: str, words: Sequence[str]) -> bool:
        language, text = language_of(Path(name)), self.text(name) or ""
        if language is None or len(text) > MAX_PARSED_BYTES:
            return False
        return any(tag.name in words for tag in definitions(text.encode(), language))

    def listing(self) -> str:
        """The names in one paragraph; of many only what lies at the top, with how much is in each folder."""
        if len(self.names) <= MAX_LISTED:
            return f"{LISTING} {', '.join(self.names) or 'none'}"
        counts = Counter(name.partition("/")[0] for name in self.names)
        plain = frozenset(name for name in self.names if "/" not in name)
        tops = [top if top in plain else f"{top}/ ({n} files)" for top, n in counts.items()]
        more = f" and {len(tops) - MAX_LISTED} more" if len(tops) > MAX_LISTED else ""
        return f"{LISTING} {', '.join(tops[:MAX_LISTED])}{more}"

    @property
    def readme(self) -> str:
        """The file that tells what the folder is; "" when there is none."""
        return next((name for name in self.names if name.lower().partition(".")[0] == "readme"), "")


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _no_text(name: str, n_bytes: int) -> str:
    if Path(name).suffix.lower() in IMAGE_SUFFIXES:
        return f"{name} is an image ({n_bytes:,} bytes); this model reads text only."
    if n_bytes > MAX_FILE_BYTES:
        return f"{name} is too large to be read here ({n_bytes:,} bytes; at most {MAX_FILE_BYTES:,})."
    return f"{name} is a binary file ({n_bytes:,} bytes); this model reads text only."


def part_of(text: str, order: str) -> Part:
    """The whole text when it is short enough, else the lines that share most words with the order."""
    lines = text.splitlines(keepends=True)
    if len(text) <= MAX_SHOWN_CHARS:
        return Part(0, len(lines), text, is_whole=True)
    words = {word for word in re.findall(r"\w{3,}", order.lower()) if word not in _STOP_WORDS}
    scores = [len(words & set(re.findall(r"\w{3,}", line.lower()))) for line in lines]
    best = max(range(len(lines)), key=lambda n: (sum(scores[n : n + 8]), -n))
    first = max(0, best - PART_LINES // 3)
    while first > 0 and lines[first - 1].strip():
        first -= 1
    last = min(len(lines), first + PART_LINES)
    while last < len(lines) and lines[last].strip():
        last += 1
    return Part(first, last, "".join(lines[first:last]), is_whole=False)


def fault_note(name: str, text: str) -> str:
    """A sentence about the file's first syntax error or missing import; "" when there is none that we can see."""
    kind = language_of(Path(name))
    if kind is None or len(text) > MAX_PARSED_BYTES:
        return ""
    first = next(faults(text, kind), None)
    if first is not None:
        line = text.split("\n")[first.line - 1 : first.line]
        return f"{name} has a syntax error in line {first.line}: {line[0].strip() if line else first.what}"
    missing = unbound_modules(text) if kind == "python" else []
    return f"{name} uses {missing[0]} but does not import it" if missing else ""

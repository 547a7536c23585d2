"""Searching given files line by line, in a worker process that can be stopped (Python's regular expressions may run for
ever, and hold the interpreter while they do).

Expressions have ripgrep's meaning: POSIX classes, `\\p{L}`, `\\<`, `\\z` are translated. When `rg` is on PATH it sorts
out the files that lack the expression's longest fixed text; what matches is always decided by the worker, so the answer
is the same with and without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .base import ToolError
from .own_process import own_command

MAX_MATCHES_PER_FILE = 1000
MAX_ARGUMENT_BYTES = 100_000
MAX_KEPT_CHARS = 4000  # of a long line, around its first match
TIMEOUT_S = 20.0
MIN_LITERAL = 3


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for; `context` lines are given around each match."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False
    context: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching line, or one of context. Lines count from 1; `text` is cut around `column`, the first match, when very
    long, and `length` is what the line has."""

    line: int
    text: str
    is_match: bool
    column: int
    length: int


@dataclass(frozen=True, slots=True)
class FileHits:
    """The hits of one file in order of lines; `n_matches` counts matching lines."""

    path: Path
    hits: tuple[Hit, ...]
    n_matches: int


# ------------------------------------------------------------------------------------------------- expressions
_CLASSES = {
    "[:alpha:]": "a-zA-Z",
    "[:digit:]": "0-9",
    "[:alnum:]": "a-zA-Z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    "[:blank:]": r" \t",
    "[:punct:]": r"!-/:-@\[-`{-~",
    "[:word:]": r"\w",
    "[:xdigit:]": "0-9A-Fa-f",
}
_ESCAPES = {r"\z": r"\Z", r"\<": r"\b(?=\w)", r"\>": r"\b(?<=\w)"}
_PROPERTIES = {
    "L": r"[^\W\d_]",
    "Letter": r"[^\W\d_]",
    "Alphabetic": r"[^\W\d_]",
    "N": r"\d",
    "Nd": r"\d",
    "Lu": "[A-Z]",
    "Ll": "[a-z]",
}


def to_python(pattern: str) -> str:
    """Rewrite what ripgrep's dialect has and Python's lacks."""
    for name, members in _CLASSES.items():
        pattern = pattern.replace(name, members)

    def escape(found: re.Match[str]) -> str:
        text = found.group()
        if text.startswith(r"\p{"):
            return _PROPERTIES.get(text[3:-1], text)
        return _ESCAPES.get(text, text)

    return re.sub(r"\\p\{\w+\}|\\.", escape, pattern, flags=re.DOTALL)


def compile_query(query: Query) -> re.Pattern[str]:
    """The expression; raises ToolError with the reason when it is not one."""
    flags = re.IGNORECASE if query.ignore_case else 0
    if query.literal:
        return re.compile(re.escape(query.pattern), flags)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(to_python(query.pattern), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(
            f"invalid regular expression {query.pattern!r}: {error}; escape special characters, or set literal=true"
        ) from error


def fixed_text(query: Query) -> str | None:
    """An ASCII text that every match must hold; None when none is certain. Case matters only without ignore_case."""
    if query.literal:
        return query.pattern if query.pattern.isascii() and len(query.pattern) >= MIN_LITERAL else None
    if "|" in query.pattern or re.search(r"\(\?[^:]", query.pattern):
        return None
    return _longest_run(query.pattern)


def _longest_run(pattern: str) -> str | None:
    runs, run = list[str](), ""
    at = depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "[":
            at = _class_end(pattern, at)
            runs, run = [*runs, run], ""
            continue
        depth += (char == "(") - (char == ")")
        step = 2 if char == "\\" else 1
        plain = pattern[at : at + 1] if step == 1 and re.match(r"[A-Za-z0-9_ /:;,=<>@#%&'\"~`!-]", char) else ""
        if step == 2 and at + 1 < len(pattern) and not pattern[at + 1].isalnum() and pattern[at + 1] not in "<>":
            plain = pattern[at + 1]
        following = pattern[at + step : at + step + 1]
        if not plain or depth or following in tuple("*?{"):
            runs, run = [*runs, run], ""
        else:
            run += plain
            if following == "+":
                runs, run = [*runs, run], ""
        at += step
    best = max([*runs, run], key=len)
    return best if len(best) >= MIN_LITERAL and best.isascii() else None


def _class_end(pattern: str, at: int) -> int:
    end = at + 1
    if pattern[end : end + 1] == "^":
        end += 1
    if pattern[end : end + 1] == "]":
        end += 1
    while end < len(pattern) and pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
        if pattern[end - 1 : end + 1] == "[:":
            end = max(end, pattern.find(":]", end) + 2)
    return end + 1


# ------------------------------------------------------------------------------------------------- running
async def search_files(query: Query, paths: Sequence[Path]) -> tuple[list[FileHits], list[str]]:
    """Search; returns hits in the order of `paths`, and what could not be read. Raises ToolError for a bad pattern."""
    compile_query(query)
    if not paths:
        return [], []
    text = fixed_text(query)
    executable = shutil.which("rg")
    if text is not None and executable is not None and len(paths) > 1:
        unreadable = [path for path in paths if not os.access(path, os.R_OK)]
        holding = await _holding(executable, text, query.ignore_case, paths)
        paths = [path for path in paths if path in holding or path in set(unreadable)]
    if not paths:
        return [], []
    return await _in_worker(query, text, paths)


async def _holding(executable: str, text: str, ignore_case: bool, paths: Sequence[Path]) -> set[Path]:
    """The files that hold `text`, by ripgrep."""
    command = [
        executable,
        "--no-config",
        "--files-with-matches",
        "--null",
        "--text",
        "--no-messages",
        "--fixed-strings",
    ]
    command += ["--ignore-case" if ignore_case else "--case-sensitive", "-e", text, "--"]
    found: set[Path] = set()
    for batch in _batches(paths):
        output = await _run([*command, *map(str, batch)], b"")
        found |= {Path(os.fsdecode(name)) for name in output.split(b"\0") if name}
    return found


def _batches(paths: Sequence[Path]) -> list[list[Path]]:
    batches: list[list[Path]] = [[]]
    used = 0
    for path in paths:
        used += len(os.fsencode(path)) + 9
        if used > MAX_ARGUMENT_BYTES:
            batches.append([])
            used = 0
        batches[-1].append(path)
    return batches


async def _in_worker(query: Query, text: str | None, paths: Sequence[Path]) -> tuple[list[FileHits], list[str]]:
    request = {
        "pattern": query.pattern,
        "literal": query.literal,
        "ignore_case": query.ignore_case,
        "context": query.context,
        "fixed": text,
        "paths": [str(path) for path in paths],
    }
    output = await _run(own_command("search_worker"), json.dumps(request).encode())
    hits: list[FileHits] = []
    problems: list[str] = []
    for line in output.split(b"\n"):
        if not line:
            continue
        answer = json.loads(line)
        if "problem" in answer:
            problems.append(answer["problem"])
        else:
            found = tuple(Hit(*hit) for hit in answer["hits"])
            hits.append(FileHits(paths[answer["index"]], found, answer["n_matches"]))
    return hits, problems


async def _run(command: list[str], given: bytes) -> bytes:
    """Output of a helper process; it is killed on cancel and after TIMEOUT_S."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate(given)
    except TimeoutError as error:
        raise ToolError(f"the search took longer than {TIMEOUT_S:.0f} s; narrow the pattern or the path") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output

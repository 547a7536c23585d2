"""The process that searches files for `search.py`: a JSON request on stdin, a JSON answer per file on stdout."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .base import ToolError, describe_os_error
from .filetext import FileText, decode, visible
from .regular import read_regular
from .search import MAX_KEPT_CHARS, MAX_MATCHES_PER_FILE, Query, compile_query

MAX_BYTES = 256 << 20


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    query = Query(request["pattern"], request["literal"], request["ignore_case"], request["context"])
    regex = compile_query(query)
    fixed = None if query.ignore_case else request["fixed"]
    for index, path in enumerate(request["paths"]):
        for answer in _answers(Path(path), regex, fixed, query.context):
            sys.stdout.write(json.dumps({"index": index, **answer}) + "\n")


def _answers(path: Path, regex: re.Pattern[str], fixed: str | None, context: int) -> Iterator[dict[str, Any]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            yield {"problem": f"{path} is too large to search"}
            return
        file = decode(read_regular(path))
    except ToolError:
        return  # a binary file holds no lines
    except OSError as error:
        yield {"problem": f"not searched: {describe_os_error(error)}"}
        return
    matches = list(_matches(file, regex, fixed))
    if matches:
        yield {"hits": list(_hits(file, dict(matches[:MAX_MATCHES_PER_FILE]), context)), "n_matches": len(matches)}


def _matches(file: FileText, regex: re.Pattern[str], fixed: str | None) -> Iterator[tuple[int, int]]:
    """(line, column) of every matching line's first match."""
    for number in _candidate_lines(file, fixed):
        if (found := regex.search(visible(file.line(number)))) is not None:
            yield number, found.start()


def _candidate_lines(file: FileText, fixed: str | None) -> Iterator[int]:
    if fixed is None:
        yield from range(1, file.n_lines + 1)
        return
    at = file.text.find(fixed)
    while at >= 0:
        number = file.line_of(at)
        yield number
        at = file.text.find(fixed, file.line_span(number)[1])


def _hits(file: FileText, matches: dict[int, int], context: int) -> Iterator[tuple[int, str, bool, int, int]]:
    last = 0
    for number in matches:
        for line in range(max(last + 1, number - context), min(file.n_lines, number + context) + 1):
            yield _hit(file, line, matches.get(line))
            last = line


def _hit(file: FileText, number: int, column: int | None) -> tuple[int, str, bool, int, int]:
    text = visible(file.line(number))
    at = column or 0
    start = max(0, at - MAX_KEPT_CHARS // 2) if len(text) > MAX_KEPT_CHARS else 0
    return number, text[start : start + MAX_KEPT_CHARS], column is not None, at - start, len(text)

"""Tests that fail: what an order to mend them means, and which file is to blame."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

from pointcode_local.orders import is_test
from pointcode_local.tools.languages import is_source

_FIX = re.compile(r"\b(?:fix|repair|mend|correct|solve|debug)\b", re.IGNORECASE)
_MAKE, _PASS = re.compile(r"\bmake\b", re.IGNORECASE), re.compile(r"\bpass\b", re.IGNORECASE)
_TESTS, _FAIL = re.compile(r"\btests?\b", re.IGNORECASE), re.compile(r"\bfail", re.IGNORECASE)
_BAD = re.compile(r"\bfail|\b(?:broken|red|pass)\b", re.IGNORECASE)
_PYTHON = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]+)[ \t]+import|import[ \t]+([\w.]+))", re.MULTILINE)
_SCRIPT = re.compile(r"""(?:\bfrom|\bimport|\brequire\()\s*["'](\.[^"']+)["']""")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_ERROR = re.compile(r"(?:E\s+)?[\w.]*(?:Error|Exception)\b.*|E\s+assert\b.*")
_CHECK = re.compile(r"(?:>\s*)?(?:assert\b|self\.assert|expect\(|[\w.]+ ?= ?|[\w.]+\().*")
_SCRIPTS = (".ts", ".tsx", ".js", ".jsx", ".mjs")


def asks_to_fix(text: str) -> bool:
    """Whether an order is to mend something, as "run the tests and fix what fails"."""
    return _FIX.search(text) is not None or _in_order(_MAKE, _PASS, text)


def is_about_failing_tests(text: str) -> bool:
    """Whether an order is to mend what fails in tests."""
    return asks_to_fix(text) and (_in_order(_TESTS, _BAD, text) or _in_order(_FAIL, _TESTS, text))


def _in_order(first: re.Pattern[str], second: re.Pattern[str], text: str) -> bool:
    """Does the second occur somewhere behind the first? In one pass, however long the text that was pasted is."""
    found = first.search(text)
    return found is not None and second.search(text, found.end()) is not None


def subjects(test: str, body: str, names: Sequence[str]) -> list[str]:
    """The files of the project that a test imports or includes."""
    known = frozenset(names)
    found = [name for wanted in _imported(test, body) for name in wanted if name in known and name != test]
    return list(dict.fromkeys(name for name in found if not is_test(name)))


def _imported(test: str, body: str) -> Iterator[list[str]]:
    folder = posixpath.dirname(test)
    for a, b in _PYTHON.findall(body):
        path = (a or b).lstrip(".").replace(".", "/")
        yield [f"{base}{path}{end}" for base in ("", "src/", f"{folder}/") for end in (".py", "/__init__.py")]
    for written in _SCRIPT.findall(body):
        stem, suffix = posixpath.splitext(posixpath.normpath(posixpath.join(folder, written)))
        whole = stem if suffix in _SCRIPTS else stem + suffix
        yield [f"{whole}{end}" for end in (*_SCRIPTS, "/index.ts", "/index.js")]
    for written in _INCLUDE.findall(body):
        stem = posixpath.splitext(posixpath.normpath(posixpath.join(folder, written)))[0]
        yield [f"{base}{end}" for base in (stem, f"src/{posixpath.basename(stem)}") for end in (".c", ".cc", ".cpp")]


def failed_check(output: str) -> tuple[str, str]:
    """From what failing tests printed: the first line of code that failed, and its error; "" for what is not found."""
    lines = [line.strip() for line in output.splitlines()]
    at = next((n for n, line in enumerate(lines) if _ERROR.match(line)), None)
    if at is None:
        return "", ""
    code = next((line for line in reversed(lines[max(0, at - 4) : at]) if _CHECK.match(line)), "")
    return code.removeprefix(">").strip(), lines[at].removeprefix("E").strip()[:200]


def blamed(output: str, names: Sequence[str], read: Callable[[str], str | None]) -> tuple[list[str], list[str]]:
    """What failing tests printed: the tests it names, and the files that may be at fault, the likeliest first."""
    named = sorted((name for name in names if name in output), key=lambda name: -output.rindex(name))
    tests = [name for name in named if is_test(name)]
    code = [name for name in named if is_source(name) and not is_test(name)]
    sources = [name for name in code if re.search(rf"{re.escape(name)}\W+(?:line )?\d", output)]
    imported = [name for test in tests for name in subjects(test, read(test) or "", names)]
    return tests, list(dict.fromkeys([*sources, *imported]))

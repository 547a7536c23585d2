"""Command lines that need no model: those that an order spells out, and the one that runs a project's tests."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import PurePosixPath

from pointcode_local.orders import is_test

PROGRAMS = (
    *(
        "python3",
        "python",
        "pytest",
        "node",
        "npm",
        "npx",
        "pnpm",
        "yarn",
        "tsc",
        "make",
        "cmake",
        "ctest",
        "bash",
        "sh",
    ),
    *("ls", "cat", "head", "tail", "wc", "grep", "find", "sort", "uniq", "cut", "du", "df", "stat", "file", "touch"),
    *("mkdir", "rm", "rmdir", "cp", "mv", "ln", "chmod", "echo", "printf", "sed", "awk", "tr", "diff", "tar", "gzip"),
    *("gunzip", "zip", "unzip", "sha256sum", "sha1sum", "md5sum", "date", "pwd", "git", "cargo", "go", "gcc", "g++"),
    *("pip", "which", "env", "ruff", "mypy", "pyright", "tree", "seq", "jq"),
)
_POLITE = r"\W*(?:please\s+|(?:can|could|would|will) you\s+(?:please\s+)?)?(?:now\s+|also\s+|just\s+)?"
_RUN = re.compile(_POLITE + r"(?:run|execute)\s+(?:the\s+command\s+)?(.+)", re.IGNORECASE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\n]+)`")
_CLAUSE = re.compile(r"(?<=\S)[.!?](?=\s|$)|,\s|(?<!\s)\s+and\s+")
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")
_ENGLISH = frozenset(
    (
        *("a", "after", "again", "all", "an", "any", "as", "at", "before", "by", "each", "every", "files", "folder"),
        *("for", "from", "how", "if", "in", "into", "it", "its", "my", "of", "on", "so", "some", "script", "that"),
        *("the", "them", "then", "there", "these", "this", "those", "to", "twice", "until", "using", "what", "when"),
        *("where", "which", "with", "without"),
    )
)
_TESTS = re.compile(
    _POLITE
    + r"(?:(?:run|execute|try|start)\s+(?:all\s+|the\s+|my\s+|its\s+|your\s+|our\s+|unit\s*)*tests?(?:\s+suite)?"
    r"|(?:do|does|did)\s+(?:all\s+|the\s+|my\s+|our\s+)*tests?\s+(?:pass|run|work|succeed))(?=[\s.,;:!?]|$)",
    re.IGNORECASE,
)
_RUNNERS = {".py": "python3", ".sh": "bash", ".js": "node", ".mjs": "node", ".go": "go run"}
_COMPILERS = {".c": "gcc", ".cc": "g++", ".cpp": "g++", ".rs": "rustc"}
_THEN = r"(?=[.!?]?\s*$|,?\s+and\s+(?:explain|fix|give|mend|print|report|say|show|tell)\b)"
_RUN_FILE = re.compile(
    _POLITE + r"(?:run|execute|start)\s+(?:the\s+)?(?:file\s+|program\s+|script\s+)?(?P<name>\S+?)" + _THEN,
    re.IGNORECASE,
)
_COMPILE = re.compile(
    _POLITE + r"(?:compile|build)\s+(?:the\s+)?(?:file\s+|program\s+)?(?P<name>\S+?)"
    r"(?:\s+(?:with|using)\s+(?:gcc|g\+\+|rustc))?(?P<run>,?\s+(?:and\s+)?(?:then\s+)?(?:run|execute)\s+it)?" + _THEN,
    re.IGNORECASE,
)
_COMMIT = re.compile(
    _POLITE + r"(?:git\s+)?commit(?:\s+(?:all|changes|everything|files|it|my|of|the|these|this|work|your))*,?\s+"
    r"(?:(?:with|using)\s+(?:a\s+|the\s+)?(?:commit\s+)?message:?|as)\s+(?P<quote>[\"'`])(?P<message>[^\"'`\n]+)(?P=quote)\W*$",
    re.IGNORECASE,
)
_BUILD_FILES = frozenset(("Makefile", "makefile", "CMakeLists.txt", "package.json", "Cargo.toml", "go.mod", "justfile"))
_PROJECT = re.compile(
    r"\b(?:this|the|my|our)\s+(?:\w+\s+)?(?:app|application|code|codebase|directory|files|folder|package|program|project|"
    r"repo|repository)\b",
    re.IGNORECASE,
)
_MAKES = re.compile(
    r"\b(?:add|build|clone|create|download|generate|implement|init\w*|make|put|save|scaffold|set\s+up|start|write)\b",
    re.IGNORECASE,
)
_SCOPE = re.compile(r"\s+(?:of|in|for|from|with|that|which|named|called)\b", re.IGNORECASE)


def given_command(text: str, is_program: Callable[[str], bool]) -> str:
    """The command line that an order to run something spells out, in backticks or plainly; "" where it is in doubt.

    `is_program` says whether a word can be run.
    """
    asked = _RUN.match(text)
    if asked is None:
        return ""
    quoted = _QUOTED.findall(asked.group(1))
    if quoted:
        command = quoted[0].strip() if len(quoted) == 1 else ""
    else:
        command = _CLAUSE.split(asked.group(1), maxsplit=1)[0].strip()
        words = _STRING.sub(" ", command).lower().split()
        command = "" if _ENGLISH & set(words) or "\n" in command else command
    return command if command and is_program(command.split()[0]) else ""


def plain_command(text: str, names: Sequence[str]) -> str:
    """The command line of an order to run or compile one file of these, or to commit everything; "" for any other."""
    if committed := _COMMIT.match(text):
        return f"git add -A && git commit -m {shlex.quote(committed['message'])}"
    asked = _RUN_FILE.match(text) or _COMPILE.match(text)
    if asked is None:
        return ""
    named = asked["name"].strip("`\"'").removeprefix("@").removeprefix("./")
    found = [named] if named in names else [name for name in names if name.rpartition("/")[2] == named]
    if len(found) != 1 or is_test(found[0]):
        return ""
    compiled = asked.re is _COMPILE
    return _compiling(found[0], names, runs=not compiled or bool(asked["run"])) or (
        "" if compiled else _running(found[0])
    )


def _running(name: str) -> str:
    runner = _RUNNERS.get(PurePosixPath(name).suffix, "")
    return f"{runner} {shlex.quote(name)}" if runner else ""


def _compiling(name: str, names: Sequence[str], *, runs: bool) -> str:
    """Only of a program that is one file; "" for all that needs more."""
    path = PurePosixPath(name)
    compiler = _COMPILERS.get(path.suffix, "")
    others = [
        other for other in map(PurePosixPath, names) if (other.parent, other.suffix) == (path.parent, path.suffix)
    ]
    if not compiler or len(others) > 1 or _BUILD_FILES & set(names):
        return ""
    program = str(path.with_suffix(""))
    run = f" && {shlex.quote(program if '/' in program else f'./{program}')}" if runs else ""
    return f"{compiler} {shlex.quote(name)} -o {shlex.quote(program)}{run}"


def asks_for_tests(text: str) -> bool:
    """Whether an order is to run the tests, all of them."""
    asked = _TESTS.match(text)
    return asked is not None and _SCOPE.match(text, asked.end()) is None


def what_is_missing(text: str, names: Sequence[str]) -> str:
    """Why an order or a question finds nothing to be about in a folder of these files, as a sentence; "" otherwise."""
    if asks_for_tests(text) and not any("test" in name.lower() or name in _BUILD_FILES for name in names):
        return "I found no tests in this folder."
    is_about_files = _PROJECT.search(text) is not None and _MAKES.search(text) is None
    return "There are no files in this folder yet." if not names and is_about_files else ""


def test_command(names: Sequence[str], read: Callable[[str], str | None]) -> str:
    """What runs the tests of a project of these files; "" when they do not tell."""
    makefile = next((name for name in ("Makefile", "makefile") if name in names), "")
    if makefile and re.search(r"^test\s*:", read(makefile) or "", re.MULTILINE):
        return "make test"
    if "package.json" in names and _has_test_script(read("package.json") or ""):
        return "npm test"
    for name, command in (("Cargo.toml", "cargo test"), ("go.mod", "go test ./...")):
        if name in names:
            return command
    return _python_tests(names, read)


def _has_test_script(package: str) -> bool:
    try:
        return "no test specified" not in str(json.loads(package)["scripts"]["test"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _python_tests(names: Sequence[str], read: Callable[[str], str | None]) -> str:
    tests = [name for name in names if re.search(r"(?:^|/)(?:test_[^/]*|[^/]*_test)\.py$", name)]
    if not tests:
        return ""
    uses_unittest = any(re.search(r"^\s*(?:import|from) unittest\b", read(name) or "", re.M) for name in tests)
    plain = any(
        re.search(r"^(?:import pytest|from pytest|(?:async )?def test_)", read(name) or "", re.M) for name in tests
    )
    if uses_unittest and not plain:
        folder = "" if any("/" not in name for name in tests) else f" -s {tests[0].split('/')[0]}"
        return f"python3 -m unittest discover{folder}"
    return "python3 -m pytest -q"


@cache
def known_programs() -> list[str]:
    """Those of PROGRAMS that this machine has."""
    return [name for name in PROGRAMS if shutil.which(name)]

"""What a task of the evaluation is, and the checks that judge it.

A task is data: files as bytes, a prompt as a person would type it, checks, and a reference solution that shows that
the checks can pass. The checks of a task must fail on the untouched folder (a test holds every task to both).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from pointcode_local.tools.sandbox import default_policy, wrapped

RUN_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is judged: the folder after the turn, its files before it, and the final answer."""

    folder: Path
    before: Mapping[str, bytes]
    answer: str

    def read(self, path: str) -> bytes | None:
        """The file's bytes now; None when it is not there."""
        file = self.folder / path
        return file.read_bytes() if file.is_file() else None


Check = Callable[[Evidence], str]  # "" when it holds, else what is wrong


@dataclass(frozen=True, slots=True)
class Solution:
    """How the task is solved: new bytes by path (None: deleted), modes by path, and the answer."""

    files: Mapping[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    answer: str = "Done."
    modes: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Task:
    """One task; `name` is unique in its family."""

    name: str
    prompt: str
    checks: tuple[Check, ...]
    solution: Solution
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    def prepare(self, folder: Path) -> None:
        """Write the task's files."""
        for path, data in self.files.items():
            _write(folder / path, data)

    def solve(self, folder: Path) -> None:
        """Do to the folder what the reference solution does."""
        for path, data in self.solution.files.items():
            if data is None:
                (folder / path).unlink()
            else:
                _write(folder / path, data)
        for path, mode in self.solution.modes.items():
            (folder / path).chmod(mode)

    def judge(self, folder: Path, answer: str) -> str:
        """What is wrong with the outcome; "" when every check holds."""
        evidence = Evidence(folder, self.files, answer)
        return next((problem for check in self.checks if (problem := check(evidence))), "")


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def text(block: str) -> bytes:
    """A file from an indented block."""
    return dedent(block).lstrip("\n").encode()


# ------------------------------------------------------------------------------------------------- files
def same_bytes(path: str, wanted: bytes) -> Check:
    """The file is exactly this."""

    def check(evidence: Evidence) -> str:
        found = evidence.read(path)
        if found is None:
            return f"{path} does not exist"
        return "" if found == wanted else f"{path} is {_shown(found)}, not {_shown(wanted)}"

    return check


def same_text(path: str, wanted: str) -> Check:
    """The file is this text; white space at its ends does not count."""

    def check(evidence: Evidence) -> str:
        found = evidence.read(path)
        if found is None:
            return f"{path} does not exist"
        return "" if found.strip() == wanted.strip().encode() else f"{path} is {_shown(found)}"

    return check


def matches(path: str, *patterns: str) -> Check:
    """The file's text matches every pattern (multi-line)."""

    def check(evidence: Evidence) -> str:
        found = evidence.read(path)
        if found is None:
            return f"{path} does not exist"
        whole = found.decode("utf-8", "replace")
        missing = [pattern for pattern in patterns if not re.search(pattern, whole, re.MULTILINE)]
        return f"{path} does not match {missing[0]!r}: {_shown(found)}" if missing else ""

    return check


def lacks(path: str, pattern: str) -> Check:
    """The file's text does not match the pattern."""

    def check(evidence: Evidence) -> str:
        found = re.search(pattern, (evidence.read(path) or b"").decode("utf-8", "replace"), re.MULTILINE)
        return f"{path} still holds {found.group()!r}" if found else ""

    return check


def json_is(path: str, wanted: Any) -> Check:
    """The file is this JSON value."""

    def check(evidence: Evidence) -> str:
        try:
            found = json.loads(evidence.read(path) or b"")
        except ValueError as error:
            return f"{path} is not JSON: {error}"
        return "" if found == wanted else f"{path} is {json.dumps(found)[:200]}"

    return check


def gone(path: str) -> Check:
    """Nothing is there any more."""
    return lambda evidence: f"{path} is still there" if (evidence.folder / path).exists() else ""


def executable(path: str) -> Check:
    """The owner may execute the file."""
    return lambda evidence: "" if (evidence.folder / path).stat().st_mode & 0o100 else f"{path} is not executable"


def untouched(*but: str) -> Check:
    """The files that were there before are as they were, except those named."""

    def check(evidence: Evidence) -> str:
        changed = [p for p, data in evidence.before.items() if p not in but and evidence.read(p) != data]
        return f"{changed[0]} was changed" if changed else ""

    return check


# ------------------------------------------------------------------------------------------------- running
def prints(script: str, wanted: str, *arguments: str) -> Check:
    """The script ends well and prints this; white space at the ends and letter case do not count."""

    def check(evidence: Evidence) -> str:
        if evidence.read(script) is None:
            return f"{script} does not exist"
        done = _python(evidence.folder, script, *arguments)
        if done.returncode:
            return f"{script} failed: {_last_line(done.stderr)}"
        found = done.stdout.strip().decode("utf-8", "replace")
        return "" if found.casefold() == wanted.casefold() else f"{script} prints {found[:200]!r}"

    return check


def holds(code: str) -> Check:
    """This Python code, run in the folder, ends without an error."""

    def check(evidence: Evidence) -> str:
        done = _python(evidence.folder, "-c", dedent(code))
        return f"the probe failed: {_last_line(done.stderr)}" if done.returncode else ""

    return check


def tests_pass(*tests: str) -> Check:
    """The task's own unittest files, as they were given, pass on what is in the folder now."""

    def check(evidence: Evidence) -> str:
        with tempfile.TemporaryDirectory(prefix="pointcode-check-") as name:
            copy = Path(name, "copy")
            shutil.copytree(evidence.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
            for test in tests:
                _write(copy / test, evidence.before[test])
            done = _python(copy, "-m", "unittest", *tests)
        return f"the test fails: {_last_line(done.stderr)}" if done.returncode else ""

    return check


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = wrapped([sys.executable, "-B", *arguments], default_policy(folder))
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=RUN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, b"", b"it did not end")


# ------------------------------------------------------------------------------------------------- answers
def says(*patterns: str) -> Check:
    """The answer matches every pattern, in any letter case."""

    def check(evidence: Evidence) -> str:
        missing = [pattern for pattern in patterns if not re.search(pattern, evidence.answer, re.IGNORECASE)]
        return f"the answer does not say {missing[0]!r}: {evidence.answer[:200]!r}" if missing else ""

    return check


def says_not(pattern: str) -> Check:
    """The answer does not match the pattern."""

    def check(evidence: Evidence) -> str:
        found = re.search(pattern, evidence.answer, re.IGNORECASE)
        return f"the answer says {found.group()!r}: {evidence.answer[:200]!r}" if found else ""

    return check


def _shown(data: bytes) -> str:
    return repr(data[:300])[1:] + ("…" if len(data) > 300 else "")


def _last_line(data: bytes) -> str:
    lines = data.decode("utf-8", "replace").strip().splitlines()
    return next(
        (line for line in reversed(lines) if re.match(r"\w*(Error|Exception)\b|it did", line)), (lines or [""])[-1]
    )

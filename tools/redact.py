"""A last net under the guard on secrets: values that stand in the workspace's secret files, and what `guarded_text`
knows by its form, are blanked in what commands say. The guard itself is the application's permission check; this
catches what no rule can foresee (`git log -p`)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .guarded_text import BLANK, GuardedText
from .regular import read_regular
from .workspace import Workspace

MIN_CHARS = 10
MAX_ENTRIES = 20_000
MAX_FILE_BYTES = 1 << 20
FRESH_S = 20.0
SKIPPED = frozenset({".git", "node_modules", ".venv", "venv", "__pycache__", "target"})
_SECRET_NAME = re.compile(r"(?i)(?:^|_)(?:key|token|secret|password|passwd|credentials?|apikey)(?:$|_)")
_PATHS = ("/", "~", "./")
_VALUE = re.compile(rf"[A-Za-z0-9+/_.~-]{{{MIN_CHARS},}}={{0,2}}")


class AsItIs:
    """Blanks nothing: the person has agreed to see what this command shows."""

    def __call__(self, text: str) -> str:
        return text

    def unfinished(self, row: str) -> str:
        """The row."""
        return row


class BlankedOutput:
    """One output, given in pieces of whole lines: each piece with everything secret blanked."""

    def __init__(self, follow: GuardedText, without_values: Callable[[str], str]) -> None:
        self._follow = follow
        self._without_values = without_values

    def __call__(self, text: str) -> str:
        return self._without_values(self._follow(text))

    def unfinished(self, row: str) -> str:
        """What there is of the next line, blanked. Looking changes nothing of what comes."""
        return self._without_values(self._follow.unfinished(row))


class Redactor:
    """Knows the secret values of one workspace and of the environment that commands get (by default our own); looks
    again when its knowledge is older than FRESH_S."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._values: re.Pattern[str] | None = None
        self._read_s: float | None = None

    def refresh(self, workspace: Workspace) -> None:
        """Collect the values (walks the workspace, bounded)."""
        if self._read_s is not None and time.monotonic() - self._read_s < FRESH_S:
            return
        self._read_s = time.monotonic()
        found = _values_below(workspace) | environment_values(self._environment)
        values = sorted(found, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, values))) if values else None

    def output(self, workspace: Workspace) -> BlankedOutput:
        """For the output of one command."""
        follow = GuardedText(lambda path: workspace.is_guarded(workspace.root / path))
        return BlankedOutput(follow, self._without_values)

    def _without_values(self, text: str) -> str:
        return text if self._values is None else self._values.sub(BLANK, text)


def environment_values(environment: Mapping[str, str]) -> set[str]:
    """The values of variables whose names say that they are secret; a path is none, it says where something is."""
    named = ((name, value) for name, value in environment.items() if _SECRET_NAME.search(name))
    return {
        found for name, value in named if not value.startswith(_PATHS) for found in secret_values(f"{name}={value}")
    }


def _values_below(workspace: Workspace) -> set[str]:
    values: set[str] = set()
    count = 0
    for folder, names, files in os.walk(workspace.root):
        names[:] = [name for name in names if name not in SKIPPED]
        for name in files:
            path = Path(folder, name)
            if workspace.is_guarded(path):
                values |= secret_values(_read(path))
        count += len(files) + len(names)
        if count > MAX_ENTRIES:
            break
    return values


def _read(path: Path) -> str:
    try:
        data = read_regular(path, MAX_FILE_BYTES + 1)
        return data.decode("utf-8", "replace") if len(data) <= MAX_FILE_BYTES else ""
    except OSError:
        return ""


def secret_values(text: str) -> set[str]:
    """What of a file looks like a secret: long runs with letters and digits, after `=`, `:` or alone."""
    found: set[str] = set()
    for line in text.split("\n"):
        value = (
            re.split(r"[=:]\s*", line, maxsplit=1)[-1] if re.match(r"\s*(export\s+)?[\w.\"'-]+\s*[=:]", line) else line
        )
        for part in re.split(r"[\s\"',;]+", value):
            for piece in re.split(r"[:@?&]|//", part):
                if _VALUE.fullmatch(piece) and re.search(r"\d", piece) and re.search(r"[A-Za-z]", piece):
                    found.add(piece)
    return found

"""Git's settings files while a confined command runs: it changes copies; what is harmless is taken over at the end.

`git branch -m`, `git checkout -b x origin/x`, `git remote add` and `git submodule update` write `.git/config`, by
putting a new file in its place. Most settings there name something that git runs (`core.fsmonitor`, aliases, filters,
…), so the command sees copies in a temporary folder, to which links lead that are mounted over the files themselves.
Taken over is what these everyday commands set, and only as a whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .regular import read_regular

MAX_BYTES = 1 << 20  # of a settings file
_GIT_TIMEOUT_S = 5.0
_BRANCH = re.compile(r"branch\.(.+)\.(remote|merge|rebase|description|vscode-merge-base)", re.DOTALL)
_NEW_ONLY = re.compile(r"(remote|submodule)\.(.+)\.(url|fetch|tagopt|active|branch)", re.DOTALL)
Settings = Mapping[str, Sequence[str]]  # key -> its values, in order


@dataclass(frozen=True, slots=True)
class _Copy:
    original: Path
    bytes_before: bytes
    copy: Path
    link: Path


class SettingsCopies:
    """The copies of one command. `close` may take over what it changed in them."""

    def __init__(self, settings: Sequence[Path]) -> None:
        """Raises OSError when they cannot be made."""
        self._copies: list[_Copy] = []
        self._folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="pointcode-git-"))) if settings else None
        for number, original in enumerate(settings):
            assert self._folder is not None
            place = self._folder / str(number)
            place.mkdir()
            one = _Copy(original, read_regular(original, MAX_BYTES), place / "config", self._folder / f"{number}.link")
            one.copy.write_bytes(one.bytes_before)
            one.link.symlink_to(one.copy)
            self._copies.append(one)

    @property
    def links(self) -> list[tuple[Path, Path]]:
        """(link to the copy, the file that it stands for) of each."""
        return [(one.link, one.original) for one in self._copies]

    def close(self) -> str:
        """Take over what is harmless, remove the copies; what was not taken over, for the model ("" nothing)."""
        copies, self._copies = self._copies, []
        refused = [key for one in copies for key in _take_over(one)]
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if not refused:
            return ""
        return (
            f"[git's settings were left as they were: a command in the sandbox may not set {', '.join(refused)}. "
            "If that is needed, the user has to do it.]"
        )


def _take_over(one: _Copy) -> list[str]:
    """The keys because of which nothing was taken over."""
    try:
        data = read_regular(one.copy, MAX_BYTES + 1)
        if data == one.bytes_before:
            return []
        before, after = _parsed(one.bytes_before), _parsed(data)
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        bad = [key for key in changed if not _is_harmless(key, before, after)]
        if not bad and read_regular(one.original, MAX_BYTES) == one.bytes_before:
            _replace(one.original, data)
        return bad
    except (OSError, ValueError, subprocess.SubprocessError):
        return [f"what it wrote into {one.original.name}"]


def _is_harmless(key: str, before: Settings, after: Settings) -> bool:
    """May a command set (or remove) this unasked? Nothing that is run, and no other address of what there is."""
    if branch := _BRANCH.fullmatch(key):
        names = (value == "." or f"remote.{value}.url" in after for value in after.get(key, ()))
        return branch[2] != "remote" or all(names)
    if named := _NEW_ONLY.fullmatch(key):
        section = f"{named[1]}.{named[2]}."
        return key not in after or not any(other.startswith(section) for other in before)
    return False


def _parsed(data: bytes) -> Settings:
    """The settings as git reads them. Raises SubprocessError or ValueError for what it cannot read."""
    if len(data) > MAX_BYTES or b"\0" in data:
        raise ValueError("no settings file")
    command = ["git", "config", "--no-includes", "--file", "-", "--list", "-z"]
    done = subprocess.run(command, input=data, capture_output=True, timeout=_GIT_TIMEOUT_S, check=True, cwd="/")
    found: defaultdict[str, list[str]] = defaultdict(list)
    for entry in done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, _, value = entry.partition("\n")
        found[key].append(value)
    return dict(found)


def _replace(path: Path, data: bytes) -> None:
    """As git does it: under the lock that it would take itself."""
    lock = path.with_name(f"{path.name}.lock")
    mode = stat.S_IMODE(path.stat().st_mode)
    descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        lock.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            lock.unlink()
        raise

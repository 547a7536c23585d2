"""The map of a repository: its most used definitions, as text within a token budget.

The map is made by a process of its own (`repo_map_worker.py`) beside the model's start, kept in a folder outside the
repository, and made anew only for files whose time or size changed. `MapStore` reads what that process wrote.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .languages import is_source
from .own_process import own_command

MIN_FILES = 8  # in a smaller project `list` and `outline` say as much
MAX_LOOKED_AT = 20_000  # folder entries, to find those
CHARS_PER_TOKEN = 3  # of signatures; on the safe side


@dataclass(frozen=True, slots=True)
class Shown:
    """A definition of the map: its file, its place there, its nesting, its signature, its rank (0 is the first)."""

    file: str
    line: int
    depth: int
    signature: str
    order: int


@dataclass(frozen=True, slots=True)
class RepoMap:
    """The ranked definitions of `n_tagged` of a repository's `n_files` source files."""

    definitions: tuple[Shown, ...]
    n_files: int
    n_tagged: int

    def text(self, max_tokens: int, hidden: Callable[[str], bool] = lambda name: False) -> str:
        """The highest ranked definitions that fit, grouped by file; "" when there are none. `hidden` names files that
        must not be shown."""
        room = max_tokens * CHARS_PER_TOKEN - 200
        chosen: list[Shown] = []
        seen: dict[str, bool] = {}
        for one in self.definitions:
            if seen.get(one.file) is None:
                seen[one.file] = hidden(one.file)
                room -= 0 if seen[one.file] else len(one.file) + 2
            if seen[one.file]:
                continue
            room -= 2 * one.depth + len(one.signature) + 3
            if room < 0:
                break
            chosen.append(one)
        return f"{self._heading()}\n" + "\n".join(_grouped(chosen)) if chosen else ""

    def _heading(self) -> str:
        read = "" if self.n_tagged >= self.n_files else f" ({self.n_tagged:,} of them read so far)"
        return (
            f"[repository map: the definitions that are used most, of {self.n_files:,} source files{read}; "
            "files change: read before you edit]"
        )


def _grouped(chosen: list[Shown]) -> Iterator[str]:
    """Files in the order of their best definition, definitions in order of place."""
    by_file: dict[str, list[Shown]] = {}
    for one in chosen:
        by_file.setdefault(one.file, []).append(one)
    for name, found in by_file.items():
        yield f"{name}:"
        for one in sorted(found, key=lambda one: one.line):
            yield f"{'  ' * (one.depth + 1)}{one.signature}"


class MapStore:
    """The map of one folder: starts the process that makes it, and reads the result."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self.folder = cache / "maps" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]

    async def refresh(self) -> RepoMap | None:
        """Bring the map up to date and read it; None when there is none. Cancelling ends the process."""
        process = await asyncio.create_subprocess_exec(
            *own_command("repo_map_worker", os.fspath(self.root), os.fspath(self.folder)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await asyncio.shield(process.wait())
        return await asyncio.to_thread(self.read)

    def read(self) -> RepoMap | None:
        """The map as it was last written; None when there is none, or it is damaged."""
        try:
            data: dict[str, Any] = json.loads((self.folder / "map.json").read_bytes())
            found = cast(list[list[Any]], data["definitions"])
            shown = tuple(Shown(f, n, d, s, order) for order, (f, n, d, s) in enumerate(found))
            return RepoMap(shown, int(data["n_files"]), int(data["n_tagged"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


def is_worth_a_map(root: Path) -> bool:
    """Has the folder MIN_FILES source files? Looks at few entries, and never at a whole home folder."""
    if root in (Path.home(), Path(root.anchor)):
        return False
    n_sources = n_seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "node_modules"]
        n_sources += sum(map(is_source, names))
        n_seen += len(names) + len(folders)
        if n_sources >= MIN_FILES or n_seen > MAX_LOOKED_AT:
            break
        if os.path.realpath(folder) != folder and folder != str(root):
            folders[:] = []
    return n_sources >= MIN_FILES

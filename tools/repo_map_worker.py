"""The process that makes a repository's map. argv: the repository, the folder for what is kept between runs.

`tags.json` holds the tags of every file with the file's time and size; `map.json` the ranked definitions and a digest
of the listing they were made from. When the listing is the same, nothing is done. Where reading takes longer than
FIRST_S, a map of what was read so far is written, and another one at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .languages import is_source, language_of
from .regular import read_regular

# What only a change needs (tree-sitter, NumPy, pathspec) is imported then: that nothing changed is known in 0.1 s.
VERSION = 1
FIRST_S = 3.0  # until a first map is made
LAST_S = 60.0
MAX_FILES = 50_000
MAX_FILE_BYTES = 256 << 10
MAX_KEPT = 3_000  # definitions in the map
CHUNK = 32
PARALLEL_FROM = 200  # files
MAX_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Listed:
    """A source file with what tells whether it changed."""

    name: str
    mtime_ns: int
    size: int


def main() -> None:
    """Bring the map up to date."""
    os.nice(5)
    update(Path(sys.argv[1]), Path(sys.argv[2]))


def update(root: Path, folder: Path, first_s: float = FIRST_S, last_s: float = LAST_S) -> int:
    """Bring the map in `folder` up to date; how many files were read for it."""
    start_s = time.monotonic()
    listed = list(_listed(root))
    digest = hashlib.sha256(repr((VERSION, listed)).encode("utf-8", "surrogateescape")).hexdigest()
    if _load(folder / "map.json").get("digest") == digest:
        return 0
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = _load(folder / "tags.json")
    old: dict[str, Any] = known.get("files", {}) if known.get("version") == VERSION else {}
    kept = {one.name: old[one.name] for one in listed if old.get(one.name, [])[:2] == [one.mtime_ns, one.size]}
    n_read, is_shown = 0, False
    wanted = sorted((one for one in listed if one.name not in kept), key=_turn)
    for one, record in _tagged(root, wanted):
        kept[one.name] = [one.mtime_ns, one.size, *record]
        n_read += 1
        passed_s = time.monotonic() - start_s
        if passed_s > first_s and not is_shown:
            _write_map(folder / "map.json", kept, len(listed), "")
            is_shown = True
        if passed_s > last_s:
            break
    _store(folder / "tags.json", {"version": VERSION, "files": kept})
    _write_map(folder / "map.json", kept, len(listed), digest if len(kept) == len(listed) else "")
    return n_read


def _turn(one: Listed) -> tuple[int, int]:
    """Files near the root first, and within a level spread over the repository: the first map may be of a part."""
    return one.name.count("/"), zlib.crc32(os.fsencode(one.name))


def _write_map(path: Path, kept: dict[str, Any], n_files: int, digest: str) -> None:
    from .map_rank import FileTags, rank
    from .tags import Tag

    tagged = [FileTags(name, tuple(Tag(*t) for t in kept[name][2]), kept[name][3]) for name in sorted(kept)]
    found = [[r.file, r.tag.line, r.tag.depth, r.tag.signature] for r in rank(tagged, MAX_KEPT)]
    _store(path, {"digest": digest, "n_files": n_files, "n_tagged": len(kept), "definitions": found})


# ------------------------------------------------------------------------------------------------- listing
def _listed(root: Path) -> Iterator[Listed]:
    for name in sorted(_names(root))[:MAX_FILES]:
        try:
            info = os.lstat(f"{root}/{name}")  # no Path: hot
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and info.st_size <= MAX_FILE_BYTES:
            yield Listed(name, info.st_mtime_ns, info.st_size)


def _names(root: Path) -> Iterable[str]:
    """Source files that git knows or would add; without git, those that a search sees."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=10, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        from .walk import files

        return [entry.name for entry in files(root, root) if is_source(entry.name)]
    return [name for name in os.fsdecode(done.stdout).split("\0") if is_source(name)]


# ------------------------------------------------------------------------------------------------- tags
_Record = tuple[list[tuple[str, str, int, int]], dict[str, int]]


def _tagged(root: Path, wanted: list[Listed]) -> Iterator[tuple[Listed, _Record]]:
    """Tags of files; on several processors where there is much to do."""
    chunks = [(root, wanted[i : i + CHUNK]) for i in range(0, len(wanted), CHUNK)]
    n_processes = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MAX_PROCESSES)
    if len(wanted) < PARALLEL_FROM or n_processes == 1:
        for chunk in chunks:
            yield from _tag_chunk(chunk)
        return
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(n_processes) as pool:
        for done in pool.imap_unordered(_tag_chunk, chunks):
            yield from done


def _tag_chunk(chunk: tuple[Path, list[Listed]]) -> list[tuple[Listed, _Record]]:
    root, wanted = chunk
    return [(one, _tag_file(root / one.name)) for one in wanted]


def _tag_file(path: Path) -> _Record:
    from .tags import TAGGED, definitions, words

    language = language_of(path)
    try:
        data = read_regular(path, MAX_FILE_BYTES)
    except OSError:
        return [], {}
    if language not in TAGGED or b"\0" in data[:4096]:
        return [], {}
    found = [(tag.name, tag.signature, tag.line, tag.depth) for tag in definitions(data, language)]
    return found, words(data)


# ------------------------------------------------------------------------------------------------- what is kept
def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _store(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(json.dumps(data, separators=(",", ":")).encode("utf-8", "surrogateescape"))
    partial.replace(path)

"""The process that makes a repository's map. argv: the repository, the folder for what is kept between runs.

`tags.json` holds the tags of every file with the file's time and size, `recent.json` those of a few files that changed
since it was written; `map.json` the ranked definitions and a digest of the listing they were made from. When the
listing is the same, nothing is done. Where reading takes longer than FIRST_S, a map of what was read so far is written,
and another one at the end.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .languages import MAX_SOURCE_BYTES, is_source

if TYPE_CHECKING:
    from .map_tagger import Record

# What only a change needs (tree-sitter, NumPy, pathspec) is imported then: that nothing changed is known in 0.1 s.
VERSION = 3
FIRST_S = 1.5  # until a first map is made
LAST_S = 60.0
MAX_FILES = 50_000
MAX_KEPT = 3_000  # definitions in the map
RECENT_SHARE = 50  # one file in so many


@dataclass(frozen=True, slots=True)
class Listed:
    """A source file with what tells whether it changed."""

    name: str
    mtime_ns: int
    size: int


def main() -> None:
    """Bring the map up to date."""
    os.nice(5)
    gc.disable()  # nothing here is a cycle; looking for some among 100,000 tags costs seconds
    update(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # everything is written: freeing it all one by one would take 0.2 s


def update(root: Path, folder: Path, first_s: float = FIRST_S, last_s: float = LAST_S) -> int:
    """Bring the map in `folder` up to date; how many files were read for it."""
    start_s = time.monotonic()
    listed = list(_listed(root))
    digest = hashlib.sha256(repr((VERSION, listed)).encode("utf-8", "surrogateescape")).hexdigest()
    if _load(folder / "map.json").get("digest") == digest:
        return 0
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    recent = _files(folder / "recent.json")
    old = _files(folder / "tags.json") | recent
    kept = {one.name: old[one.name] for one in listed if old.get(one.name, [])[:2] == [one.mtime_ns, one.size]}
    wanted = {one.name: one for one in sorted((one for one in listed if one.name not in kept), key=_turn)}
    n_known, is_shown = len(kept), False
    for name, record in _tagged(root, list(wanted), start_s + last_s):
        kept[name] = [wanted[name].mtime_ns, wanted[name].size, *record]
        if not is_shown and time.monotonic() - start_s > first_s:
            _write_map(folder / "map.json", kept, len(listed), "")
            is_shown = True
    _keep(folder, kept, recent.keys() | wanted.keys())
    _write_map(folder / "map.json", kept, len(listed), digest if len(kept) == len(listed) else "")
    return len(kept) - n_known


def _tagged(root: Path, names: list[str], until_s: float) -> Iterator[tuple[str, Record]]:
    """Records of files, at least one, until there are no more or a time is reached."""
    if not names:
        return
    from .map_pool import tagged

    with closing(tagged(root, names)) as found:
        for one in found:
            yield one
            if time.monotonic() > until_s:
                break


def _keep(folder: Path, kept: dict[str, Any], changed: Set[str]) -> None:
    """Write what the next run needs: a few changes to a small file, since the large one takes 0.2 s."""
    few = {name: kept[name] for name in changed if name in kept}
    if len(few) * RECENT_SHARE < len(kept):
        _store(folder / "recent.json", {"version": VERSION, "files": few})
        return
    _store(folder / "tags.json", {"version": VERSION, "files": kept})
    (folder / "recent.json").unlink(missing_ok=True)


def _turn(one: Listed) -> tuple[int, int]:
    """Files near the root first, and within a level spread over the repository: the first map may be of a part."""
    return one.name.count("/"), zlib.crc32(os.fsencode(one.name))


def _write_map(path: Path, kept: dict[str, Any], n_files: int, digest: str) -> None:
    from .map_rank import FileTags, rank

    tagged = [FileTags(name, kept[name][2], kept[name][3]) for name in sorted(kept)]
    found = [[r.file, r.tag.line, r.tag.depth, r.tag.signature] for r in rank(tagged, MAX_KEPT)]
    _store(path, {"digest": digest, "n_files": n_files, "n_tagged": len(kept), "definitions": found})


# ------------------------------------------------------------------------------------------------- listing
def _listed(root: Path) -> Iterator[Listed]:
    for name in sorted(_names(root))[:MAX_FILES]:
        try:
            info = os.lstat(f"{root}/{name}")  # no Path: hot
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and info.st_size <= MAX_SOURCE_BYTES:
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


# ------------------------------------------------------------------------------------------------- what is kept
def _load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _files(path: Path) -> dict[str, Any]:
    known = _load(path)
    return known.get("files", {}) if known.get("version") == VERSION else {}


def _store(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(json.dumps(data, separators=(",", ":")).encode("utf-8", "surrogateescape"))
    partial.replace(path)

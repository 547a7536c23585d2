"""The bytes of files before the assistant changed them, kept outside the repository, so that a turn can be undone.

A folder per session holds `index.jsonl` (one line a file and turn, written before the change) and the contents, named
by their sha256. Undo puts back exactly those files, and only where they still are as the assistant left them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MAX_FILE_BYTES = 64 * 1024 * 1024
_Kind = Literal["before", "after", "undone"]


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did: files put back, and files left alone because somebody changed them since."""

    restored: tuple[Path, ...]
    skipped: tuple[Path, ...]


@dataclass(slots=True)
class _Touched:
    before: str  # sha256, "" when there was no file
    mode: int
    after: str | None  # None: the process was killed before this was noted

    def is_changed(self, path: Path) -> bool:
        """Whether the turn left another file than it found."""
        after = _hash(_bytes(path)) if self.after is None else self.after
        return after != self.before


class Checkpoints:
    """Checkpoints of one session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, turn: int, paths: Iterable[Path]) -> None:
        """Keep the present bytes of `paths`, before a call changes them; the first state in a turn counts."""
        for path in paths:
            if path.is_dir() or (path.exists() and path.stat().st_size > MAX_FILE_BYTES):
                continue
            data = _bytes(path)
            mode = stat.S_IMODE(path.stat().st_mode) if data is not None else 0
            self._note(turn, "before", path, self._keep(data), mode)

    def after(self, turn: int, paths: Iterable[Path]) -> None:
        """Note how a call left `paths`."""
        for path in paths:
            if not path.is_dir():
                self._note(turn, "after", path, _hash(_bytes(path)), 0)

    def last_turn(self) -> int:
        """Number of the last turn that was noted, 0 when there is none."""
        return max((int(r["turn"]) for r in self._records()), default=0)

    def undo(self) -> Undone:
        """Put back the files of the last turn that changed any and is not undone yet."""
        by_turn: dict[int, dict[Path, _Touched]] = {}
        for record in self._records():
            if record["kind"] == "undone":
                by_turn.pop(record["turn"], None)
                continue
            files = by_turn.setdefault(record["turn"], {})
            path = Path(os.fsdecode(bytes.fromhex(record["path"])))
            if record["kind"] == "before":
                files.setdefault(path, _Touched(record["sha256"], record["mode"], None))
            elif path in files:
                files[path].after = record["sha256"]
        changed = [t for t, files in by_turn.items() if any(f.is_changed(p) for p, f in files.items())]
        if not changed:
            return Undone((), ())
        restored, skipped = [], []
        for path, file in by_turn[max(changed)].items():
            if file.is_changed(path):
                (restored if self._restore(path, file) else skipped).append(path)
        self._note(max(changed), "undone", self.folder, "", 0)
        return Undone(tuple(restored), tuple(skipped))

    def remove(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _restore(self, path: Path, file: _Touched) -> bool:
        if _hash(_bytes(path)) != file.after:
            return False
        if not file.before:
            path.unlink(missing_ok=True)
            return True
        data = (self.folder / file.before).read_bytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".pointcode-", delete=False) as temporary:
            temporary.write(data)
        Path(temporary.name).chmod(file.mode)
        Path(temporary.name).replace(path.resolve())
        return True

    def _keep(self, data: bytes | None) -> str:
        name = _hash(data)
        if data is not None and not (self.folder / name).exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = self.folder / f"{name}.partial"
            partial.write_bytes(data)
            partial.replace(self.folder / name)
        return name

    def _note(self, turn: int, kind: _Kind, path: Path, sha256: str, mode: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = {"turn": turn, "kind": kind, "path": os.fsencode(path).hex(), "sha256": sha256, "mode": mode}
        with (self.folder / "index.jsonl").open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def _records(self) -> list[dict[str, Any]]:
        index = self.folder / "index.jsonl"
        records: list[dict[str, Any]] = []
        for line in index.read_bytes().splitlines() if index.exists() else ():
            try:
                records.append(json.loads(line))
            except ValueError:  # half written when the process was killed
                continue
        return records


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _hash(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()

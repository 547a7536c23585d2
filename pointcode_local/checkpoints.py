"""The bytes of files before the assistant changed them, kept outside the repository, so that a turn can be undone.

A folder per session holds `index.jsonl` (one line a file and turn, written before the change) and the contents, named
by their sha256. Undo puts back exactly those files, and only where they still are as the assistant left them; redo
makes the change again, where they still are as undo left them and nothing was changed since.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pointcode_local.file_state import (
    FileState,
    digest,
    is_hollow,
    is_link_mode,
    make_link,
    remove_hollow,
    remove_link,
    set_mode,
    state_at,
)
from pointcode_local.own_files import replace_file
from pointcode_local.tools.atomic import apply_changes
from pointcode_local.tools.base import FileChange, ToolError
from pointcode_local.tools.regular import MAX_CHANGED_BYTES, read_regular
from pointcode_local.tree_watch import TreeChanges

MAX_NAMES = 20  # shown of each kind
_Kind = Literal["before", "after", "undone", "redone", "lost"]
LOST = (
    "a command ran too, and what it changed, if anything, was not kept (too many or too large files, or changed in the "
    "background)"
)


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo or redo did: files put back, and files left alone because somebody changed them since."""

    restored: tuple[Path, ...]
    skipped: tuple[Path, ...]
    has_lost: bool = False  # a command of that turn, or of a later one, may have changed what was not kept

    def told(self, what: str, shown: Callable[[Path], str]) -> str:
        """What was done, in one line, with files that are no longer there as removed; "" for nothing."""
        if not self.restored and not self.skipped:
            return LOST if self.has_lost else ""
        there = [path for path in self.restored if os.path.lexists(path)]
        gone = [path for path in self.restored if path not in there]
        parts = [f"{did} {_listed(paths, shown)}" for did, paths in ((what, there), ("removed", gone)) if paths]
        text = ", ".join(parts) or f"{what} nothing"
        if self.skipped:
            text += f"; left alone (changed since): {_listed(self.skipped, shown)}"
        return f"{text}; {LOST}" if self.has_lost else text


def _listed(paths: Sequence[Path], shown: Callable[[Path], str]) -> str:
    names = ", ".join(map(shown, paths[:MAX_NAMES]))
    return names if len(paths) <= MAX_NAMES else f"{names} and {len(paths) - MAX_NAMES} more"


@dataclass(slots=True)
class _Touched:
    before: str  # digest, "" when there was no file
    mode: int
    after: str | None = None  # None: the process was killed before this was noted
    after_mode: int = 0  # 0: not known
    n_folders: int = 0  # folders above it that were not there either
    n_gone: int = 0  # folders above it that went with it

    def is_changed(self, path: Path) -> bool:
        """Whether the turn left another file than it found."""
        after, mode = self.after, self.after_mode
        if after is None:
            state = _present(path)
            after, mode = digest(state), state.mode if state else 0
        return after != self.before or mode not in (0, self.mode)


@dataclass(frozen=True, slots=True)
class _Move:
    """Put the content `then` where `now` is (digests; "" for no file; None for unknown, which is never there)."""

    path: Path
    now: str | None
    then: str
    mode: int  # of `then`
    n_folders: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    """A move as it can be made."""

    path: Path
    present: FileState | None
    then: FileState | None
    n_folders: int = 0

    @property
    def change(self) -> FileChange | None:
        """What of it is a change of a regular file's bytes."""
        before, after = (None if s is None or s.is_link else s.data for s in (self.present, self.then))
        return None if before == after else FileChange(self.path, before, after)


class Checkpoints:
    """Checkpoints of one session."""

    def __init__(self, folder: Path, read: Callable[[Path], bytes | None] | None = None) -> None:
        """`read` gives the bytes that a call is about to change, where those are not on disk (an editor's)."""
        self.folder = folder
        self._read = read or _bytes

    def before(self, turn: int, paths: Iterable[Path]) -> None:
        """Keep the present bytes of `paths`, before a call changes them; the first state in a turn counts."""
        for path in paths:
            if path.is_symlink():
                self._note_before(turn, path, state_at(path))
            elif not path.exists():
                self._note_before(turn, path, None, _n_missing(path))
            elif _can_be_kept(path):
                data, mode = self._read(path), stat.S_IMODE(path.stat().st_mode)
                self._note_before(turn, path, None if data is None else FileState(data, mode))

    def after(self, turn: int, paths: Iterable[Path]) -> None:
        """Note how a call left `paths`."""
        for path in paths:
            with contextlib.suppress(OSError):
                self._note_after(turn, path, state_at(path))

    def commanded(self, turn: int, changes: TreeChanges) -> None:
        """Note what a command changed."""
        for change in changes.files:
            self._note_before(turn, change.path, change.before, change.n_folders)
            self._note_after(turn, change.path, change.after, _n_missing(change.path) if change.after is None else 0)
        if not changes.is_whole:
            self._note(turn, "lost", self.folder, "", 0)

    def last_turn(self) -> int:
        """Number of the last turn that was noted, 0 when there is none."""
        return max((int(r["turn"]) for r in self._records()), default=0)

    def undo(self) -> Undone:
        """Put back the files of the last turn that changed any and is not undone yet."""
        by_turn, _ = self._turns()
        changed = [t for t, files in by_turn.items() if any(f.is_changed(p) for p, f in files.items())]
        last = max(changed, default=0)
        has_lost = self._lost_since(last)
        if not changed:
            return Undone((), (), has_lost)
        moves = [
            _Move(path, file.after, file.before, file.mode, file.n_folders)
            for path, file in by_turn[last].items()
            if file.is_changed(path)
        ]
        return replace(self._move(last, "undone", moves), has_lost=has_lost)

    def redo(self) -> Undone:
        """Make the changes of the turn that was undone last again; nothing to do once a later turn changed files."""
        _, undone = self._turns()
        if not undone:
            return Undone((), ())
        turn, files = undone[-1]
        changed = {path: file for path, file in files.items() if file.after is not None and file.is_changed(path)}
        moves = [
            _Move(path, file.before, file.after or "", file.after_mode or file.mode, file.n_gone)
            for path, file in changed.items()
        ]
        return self._move(turn, "redone", moves)

    def originals(self) -> dict[Path, bytes | None]:
        """The files that turns changed (and that are not undone), with the bytes that they had before the first."""
        found: dict[Path, bytes | None] = {}
        by_turn, _ = self._turns()
        for turn in sorted(by_turn):
            for path, file in by_turn[turn].items():
                if path not in found and file.is_changed(path) and not is_link_mode(file.mode):
                    found[path] = (self.folder / file.before).read_bytes() if file.before else None
        return found

    def _turns(self) -> tuple[dict[int, dict[Path, _Touched]], list[tuple[int, dict[Path, _Touched]]]]:
        """What each turn that stands touched, and the turns that can be made again, the last undone at the end."""
        by_turn: dict[int, dict[Path, _Touched]] = {}
        undone: list[tuple[int, dict[Path, _Touched]]] = []
        for record in self._records():
            turn, kind = int(record["turn"]), record["kind"]
            if kind == "undone":
                undone.append((turn, by_turn.pop(turn, {})))
            elif kind == "redone":
                by_turn |= dict(one for one in undone if one[0] == turn)
                undone = [one for one in undone if one[0] != turn]
            elif kind != "lost":
                path = Path(os.fsdecode(bytes.fromhex(record["path"])))
                files = by_turn.setdefault(turn, {})
                if kind == "before":
                    undone.clear()
                    touched = _Touched(record["sha256"], record["mode"], n_folders=record.get("folders", 0))
                    files.setdefault(path, touched)
                elif path in files:
                    files[path].after, files[path].after_mode = record["sha256"], record["mode"]
                    files[path].n_gone = record.get("folders", 0)
        return by_turn, undone

    def _lost_since(self, turn: int) -> bool:
        """Whether what a command changed was lost in this turn, or a later one that left nothing else to undo."""
        records = self._records()
        undone = {int(r["turn"]) for r in records if r["kind"] == "undone"}
        lost = [int(r["turn"]) for r in records if r["kind"] == "lost"]
        return any(one >= turn and one not in undone for one in lost)

    def remove(self) -> None:
        """Forget everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _move(self, turn: int, kind: _Kind, moves: Sequence[_Move]) -> Undone:
        """Make the moves that can be made, all of them or, where one fails, none; raises ToolError or OSError."""
        done: list[_Step] = []
        for part in _in_order(moves):
            steps = [step for move in part if (step := self._step(move)) is not None]
            try:
                _make(steps)
            except (OSError, ToolError):
                _make([_Step(step.path, step.then, step.present) for step in done])
                raise
            done += steps
        self._note(turn, kind, self.folder, "", 0)
        made = {step.path for step in done}
        return Undone(
            tuple(m.path for m in moves if m.path in made), tuple(m.path for m in moves if m.path not in made)
        )

    def _step(self, move: _Move) -> _Step | None:
        """What a move does now; None when somebody changed the file since."""
        try:
            present = None if is_hollow(move.path) else state_at(move.path)
            then = FileState((self.folder / move.then).read_bytes(), move.mode) if move.then else None
        except OSError:
            return None
        if digest(present) != move.now:
            return None
        self._keep(present)  # for the way back
        return _Step(move.path, present, then, move.n_folders)

    def _keep(self, state: FileState | None) -> str:
        name = digest(state)
        if state is not None and not (self.folder / name).exists():
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self.folder / name, state.data)
        return name

    def _note_before(self, turn: int, path: Path, state: FileState | None, n_folders: int = 0) -> None:
        self._note(turn, "before", path, self._keep(state), state.mode if state else 0, n_folders)

    def _note_after(self, turn: int, path: Path, state: FileState | None, n_gone: int = 0) -> None:
        self._note(turn, "after", path, digest(state), state.mode if state else 0, n_gone)

    def _note(self, turn: int, kind: _Kind, path: Path, sha256: str, mode: int, n_folders: int = 0) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = {"turn": turn, "kind": kind, "path": os.fsencode(path).hex(), "sha256": sha256, "mode": mode}
        record |= {"folders": n_folders} if n_folders else {}
        with (self.folder / "index.jsonl").open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = file.read(1) not in (b"", b"\n")  # the process was killed, or the disk was full
            file.write(b"\n" * torn + json.dumps(record).encode() + b"\n")

    def _records(self) -> list[dict[str, Any]]:
        index = self.folder / "index.jsonl"
        records: list[dict[str, Any]] = []
        for line in index.read_bytes().splitlines() if index.exists() else ():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # half written when the process was killed
                continue
            if _is_record(record):
                records.append(record)
        return records


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    kinds = {"turn": int, "kind": str, "path": str, "sha256": str, "mode": int, "folders": int}
    found = cast(dict[str, Any], {"folders": 0, **record})
    if not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        return False
    is_path = re.fullmatch("(?:[0-9a-f]{2})+", found["path"]) is not None
    return is_path and found["kind"] in get_args(_Kind) and re.fullmatch("[0-9a-f]*", found["sha256"]) is not None


def _in_order(moves: Sequence[_Move]) -> tuple[Sequence[_Move], ...]:
    """The moves at once; what goes before what comes where a file stands for a folder now and did not then, or the
    other way round."""
    paths = {move.path for move in moves}
    if not any(paths.intersection(move.path.parents) for move in moves):
        return (moves,)
    return [move for move in moves if not move.then], [move for move in moves if move.then]


def _make(steps: Sequence[_Step]) -> None:
    """Make all steps or none; raises ToolError or OSError."""
    away: list[_Step] = []
    try:
        for step in steps:
            if step.then is not None and is_hollow(step.path):
                remove_hollow(step.path)
            if step.present is not None and step.present.is_link:
                remove_link(step.path)
                away.append(step)
        apply_changes([change for step in steps if (change := step.change) is not None], even_read_only=True)
    except BaseException:
        for step in away:
            _settle(_Step(step.path, None, step.present))
        raise
    for step in steps:
        _settle(step)


def _settle(step: _Step) -> None:
    """The link or the mode that was there, or the folders that came with a file gone."""
    with contextlib.suppress(OSError):  # something else is in it by now
        match step.then:
            case None:
                for above in list(step.path.parents)[: step.n_folders]:
                    above.rmdir()
            case FileState(target, _) if step.then.is_link:
                make_link(step.path, target)
            case FileState(_, mode) if mode:
                set_mode(step.path, mode)
            case _:
                pass


def _can_be_kept(path: Path) -> bool:
    """A regular file of a size that is no trouble: a pipe must not even be opened."""
    return path.is_file() and path.stat().st_size <= MAX_CHANGED_BYTES


def _n_missing(path: Path) -> int:
    """How many of the folders above it are not there."""
    there = (n for n, folder in enumerate(path.parents) if folder.is_dir() and not folder.is_symlink())
    return next(there, 0)


def _present(path: Path) -> FileState | None:
    with contextlib.suppress(OSError):
        return state_at(path)
    return None


def _bytes(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None

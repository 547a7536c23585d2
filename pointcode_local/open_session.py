"""The session that a host has open: its log, what was said before, and the files that its turns changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pointcode_local.checkpoints import Checkpoints
from pointcode_local.config import Places
from pointcode_local.events import AgentEvent, FileDiff, SessionInfo
from pointcode_local.frontend import HostError
from pointcode_local.session import SessionError, SessionLog, SessionStore
from pointcode_local.tools.base import ToolError
from pointcode_local.unified import file_change


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """Which session to open: a new one, this folder's last, one by its id, or a copy of one."""

    continue_last: bool = False
    resume: str = ""
    fork: str = ""


class OpenSession:
    """None is open before the first `open`. Raises HostError for what is expected to fail."""

    def __init__(self, places: Places, cwd: Path) -> None:
        self._store = SessionStore(places.state / "sessions")
        self._originals = places.state / "checkpoints"
        self._cwd = cwd
        self.log: SessionLog | None = None
        self.history: list[AgentEvent] = []  # before the agent took over

    def open(self, choice: SessionChoice) -> SessionLog:
        """Open a session; the one that is open stays when that fails."""
        try:
            if choice.fork:
                opened = self._store.fork(choice.fork, self._cwd)
            elif choice.resume or choice.continue_last:
                opened = self._store.open(choice.resume or self._store.latest(self._cwd))
            else:
                opened = (self._store.create(self._cwd), [])
        except SessionError as error:
            raise HostError(str(error)) from error
        self.close()
        self.log, self.history = opened
        return self.log

    def close(self) -> None:
        """Close the log, if one is open."""
        if self.log is not None:
            self.log.close()
        self.log = None

    def events(self) -> Sequence[AgentEvent]:
        """All events so far."""
        return self._store.read(self.log.id) if self.log is not None else ()

    def stored(self) -> Sequence[SessionInfo]:
        """Stored sessions of this folder in which something was said, newest first."""
        return [info for info in self._store.list(self._cwd) if info.title]

    def set_name(self, name: str) -> str:
        """Name the session for lists; says so in one line."""
        if self.log is None or not name.strip():
            raise HostError("usage: /name NAME")
        self.log.set_name(name)
        lost = f"; that is not being kept: {self.log.problem}" if self.log.problem else ""
        return f"this session is now called {' '.join(name.split())}{lost}"

    # ------------------------------------------------------------------------------------------- its files
    def checkpoints(self, read: Callable[[Path], bytes | None] | None = None) -> Checkpoints:
        """What its turns found in the files that they changed; `read` as Checkpoints takes it."""
        if self.log is None:
            raise HostError("no session is open")
        return Checkpoints(self._originals / self.log.id, read)

    def undo(self) -> str:
        """Put back the files that the last turn changed; what was done in one line, "" for nothing."""
        return self._move("undo", "restored")

    def redo(self) -> str:
        """Make the changes of the turn that was undone last again; likewise."""
        return self._move("redo", "changed again")

    def _move(self, way: Literal["undo", "redo"], done: str) -> str:
        checkpoints = self.checkpoints()
        try:
            moved = checkpoints.undo() if way == "undo" else checkpoints.redo()
        except (OSError, ToolError) as error:
            raise HostError(f"{way} failed, nothing was changed: {error}") from error
        return moved.told(done, self._shown)

    def changes(self) -> Sequence[FileDiff]:
        """What its turns changed and was not undone, against the files as they are."""
        originals = self.checkpoints().originals() if self.log is not None else {}
        found = [file_change(self._shown(path), before, path) for path, before in originals.items()]
        return [change for change in found if change is not None]

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._cwd)) if path.is_relative_to(self._cwd) else str(path)

"""Sessions: the event stream as JSON lines, one file each, flushed per event.

A file starts with a header line (`type` "session": id, cwd, created_s, parent) and only grows. Reading skips lines that
are damaged; a log that was cut short (kill -9) is closed with the events that it lacks when it is opened again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
    ReasoningDelta,
    SessionInfo,
    TextDelta,
    ToolCallDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.records import from_record, to_line, to_record

logger = logging.getLogger(__name__)

INTERRUPTED = "[interrupted: pointcode ended before this call did; it may have run, wholly or in part]"
MAX_NAME = 80  # characters
ELSEWHERE = "POINTCODE_HOME names another place"
_DELTAS = (
    b'{"type":"text_delta"',
    b'{"type":"reasoning_delta"',
    b'{"type":"tool_call_delta"',
    b'{"type":"tool_progress"',
)
_BRACKETS = (
    (PermissionAsked, PermissionAnswered),
    (QuestionAsked, QuestionAnswered),
)


class SessionError(Exception):
    """A session cannot be found or opened; the text is for people."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a log; `parent` is the session it was forked from."""

    id: str
    cwd: str
    created_s: float
    parent: str = ""


class SessionLog:
    """An open log. Holding it locks the file, so that two processes never write the same session."""

    def __init__(self, header: Header, path: Path, *, new: bool) -> None:
        self.header = header
        self.path = path
        self.problem = ""  # why what is written is not being kept; "" while it is
        self._is_torn = False  # the last line was not written, or not wholly
        try:
            self._file = path.open("x+b" if new else "r+b", buffering=0)
        except OSError as error:
            raise SessionError(f"{path} cannot be written: {error.strerror}; {ELSEWHERE}") from error
        if not _lock(self._file):
            self._file.close()
            raise SessionError(f"session {header.id} is open in another pointcode; use --fork {header.id}")
        if new:
            self._write(
                {
                    "type": "session",
                    "id": header.id,
                    "cwd": header.cwd,
                    "created_s": header.created_s,
                    "parent": header.parent,
                }
            )
        else:
            self._end_half_line()

    @property
    def id(self) -> str:
        """The session's id."""
        return self.header.id

    def _end_half_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            self._is_torn = self._file.read(1) != b"\n"

    def _write(self, record: dict[str, Any]) -> None:
        self._put(to_line(record))

    def _put(self, lines: bytes) -> None:
        """Write it all; a disk that is full costs the log its lines, never the turn its work."""
        rest = memoryview(b"\n" + lines if self._is_torn else lines)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._is_torn, self.problem = False, ""
        except OSError as error:
            self._is_torn, self.problem = True, error.strerror or str(error)

    def append(self, event: AgentEvent) -> None:
        """Write one event; it is in the kernel's hands when this returns, so that a kill loses nothing."""
        if not self._file.closed:
            self._write(to_record(event))

    def set_name(self, name: str) -> None:
        """Name the session for lists; the last name counts."""
        self._write({"type": "session_named", "name": " ".join(name.split())[:MAX_NAME]})

    def append_raw(self, lines: bytes) -> None:
        """Copy complete lines of another log (fork)."""
        self._put(lines)

    def close(self) -> None:
        """Let other processes have the log; what is appended later is not kept."""
        self._file.close()


class SessionStore:
    """The folder of all sessions."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, cwd: Path, parent: str = "") -> SessionLog:
        """A new, empty session."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SessionError(f"sessions cannot be kept in {self.root}: {error.strerror}; {ELSEWHERE}") from error
        created_s = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created_s))
        header = Header(f"{stamp}-{secrets.token_hex(3)}", str(cwd), created_s, parent)
        return SessionLog(header, self._path(header.id), new=True)

    def open(self, session_id: str) -> tuple[SessionLog, list[AgentEvent]]:
        """Open a stored session to go on with it; its events come back balanced."""
        path = self.find(session_id)
        log = SessionLog(_read_header(path) or Header(path.stem, "", 0.0), path, new=False)
        events = read_events(path)
        for event in closing_events(events):
            log.append(event)
            events.append(event)
        return log, merge_replies(events)

    def fork(self, session_id: str, cwd: Path) -> tuple[SessionLog, list[AgentEvent]]:
        """A new session that begins with all events of another one; raises SessionError when they find no room."""
        source = self.find(session_id)
        log = self.create(cwd, parent=source.stem)
        lines = [
            line for line in source.read_bytes().split(b"\n") if line and not line.startswith(b'{"type":"session"')
        ]
        log.append_raw(b"".join(line + b"\n" for line in lines))
        log.close()
        if log.problem:
            log.path.unlink(missing_ok=True)
            raise SessionError(f"session {source.stem} could not be copied: {log.problem}")
        return self.open(log.id)

    def read(self, session_id: str) -> list[AgentEvent]:
        """The events of a stored session, for showing them; nothing is changed."""
        events = read_events(self.find(session_id))
        return merge_replies([*events, *closing_events(events)])

    def latest(self, cwd: Path) -> str:
        """The id of the folder's session that was written last; one in which nothing was said only where all are so."""
        found = self.list(cwd)
        if not found:
            raise SessionError(f"no session to continue in {cwd}")
        return next((info.id for info in found if info.title), found[0].id)

    def list(self, cwd: Path | None = None) -> list[SessionInfo]:
        """Sessions of a folder (None: of all), the one written last first."""
        paths = self.root.glob("*.jsonl") if self.root.is_dir() else iter(())
        infos = [_info(path) for path in paths if path.is_file()]
        infos = [info for info in infos if info and (cwd is None or info.cwd == str(cwd))]
        return sorted(infos, key=lambda info: (info.updated_s, info.id), reverse=True)

    def remove(self, session_id: str) -> Path:
        """Delete a session's log; returns the path that it had. Raises SessionError when that cannot be done now."""
        path = self.find(session_id)
        try:
            with path.open("rb") as file:
                if not _lock(file):
                    raise SessionError(f"session {path.stem} is open in another pointcode; end that first")
                path.unlink()
        except OSError as error:
            raise SessionError(f"session {path.stem} cannot be deleted: {error.strerror}") from error
        return path

    def find(self, session_id: str) -> Path:
        """The log of the session with this id, or with an id that starts like this when only one does."""
        if re.fullmatch(r"[\w-]+", session_id):
            if self._path(session_id).is_file():
                return self._path(session_id)
            found = sorted(path for path in self.root.glob(f"{session_id}*.jsonl") if path.is_file())
            if len(found) == 1:
                return found[0]
            if found:
                raise SessionError(f"session id {session_id!r} is not unique: {', '.join(p.stem for p in found[:5])}")
        raise SessionError(f"no session {session_id!r}; `pointcode sessions list` shows those there are")

    def _path(self, session_id: str) -> Path:
        return self.root / f"{session_id}.jsonl"


def _lock(file: BinaryIO | FileIO) -> bool:
    """Take an open log for this process; False when another has it. Where there are no locks everybody may."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("sessions cannot be locked here: %s", error)
    return True


def _load_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # damaged: half written, or no UTF-8
        return None


def _read_header(path: Path) -> Header | None:
    try:
        with path.open("rb") as file:
            return _header(path, file.readline())
    except OSError:
        return None


def _header(path: Path, line: bytes) -> Header | None:
    record = _load_line(line)
    if not isinstance(record, dict) or record.get("type") != "session":
        return None
    created = record.get("created_s")
    return Header(
        path.stem,
        str(record.get("cwd", "")),
        float(created) if isinstance(created, int | float) else 0.0,
        str(record.get("parent", "")),
    )


def _info(path: Path) -> SessionInfo | None:
    """What a list shows of a log; None when it is no log, or was removed meanwhile."""
    try:
        with path.open("rb") as file:
            header = _header(path, file.readline())
            if header is None:
                return None
            title, n_prompts = _title(file)
            written_s = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    return SessionInfo(header.id, title, header.cwd, written_s, n_prompts)


def _title(lines: Iterable[bytes]) -> tuple[str, int]:
    """A session's last name, else its first prompt ("" without one), and how many prompts it has."""
    first, name, n_prompts = "", "", 0
    for line in lines:
        if line.startswith(b'{"type":"session_named"'):
            record = _load_line(line)
            name = str(record.get("name", "")) if isinstance(record, dict) else name
        elif line.startswith(b'{"type":"turn_started"'):
            n_prompts += 1
            event = None if first else from_record(_load_line(line))
            if isinstance(event, TurnStarted):
                first = " ".join(event.prompt.split())[:MAX_NAME]
    return name or first, n_prompts


def read_events(path: Path) -> list[AgentEvent]:
    """All readable events of a log in order. Deltas of replies and output that are complete are left out."""
    out: list[AgentEvent] = []
    deltas: list[bytes] = []
    for line in path.read_bytes().split(b"\n"):
        if line.startswith(_DELTAS):
            deltas.append(line)
            continue
        event = from_record(_load_line(line)) if line.strip() else None
        if event is None:
            continue
        if isinstance(event, AssistantMessage):
            deltas = [d for d in deltas if d.startswith(_DELTAS[3])]
        elif isinstance(event, TurnFinished):
            deltas = []
        out.append(event)
    return out + [event for line in deltas if (event := from_record(_load_line(line)))]


def _last_turn(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    for i in range(len(events) - 1, -1, -1):
        if isinstance(events[i], TurnFinished):
            return list(events[i + 1 :])
    return list(events)


def closing_events(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    """What a log that was cut short lacks to be balanced: open questions, calls, the reply and the turn."""
    turn = _last_turn(events)
    if not any(isinstance(event, TurnStarted) for event in turn):
        return []
    closing: list[AgentEvent] = []
    for opened, closed in _BRACKETS:
        ended = {event.call_id for event in turn if isinstance(event, closed)}
        left = [event.call_id for event in turn if isinstance(event, opened) and event.call_id not in ended]
        closing += [
            PermissionAnswered(i, "deny") if opened is PermissionAsked else QuestionAnswered(i, "") for i in left
        ]
    closing += _missing_reply(turn)
    finished = {event.call_id for event in turn if isinstance(event, ToolFinished)}
    for call_id, name, arguments in _calls(turn):
        if call_id not in finished:
            output = "".join(e.text for e in turn if isinstance(e, ToolProgress) and e.call_id == call_id)
            closing.append(ToolFinished(call_id, name, arguments, f"{INTERRUPTED}\n{output}".rstrip(), is_error=True))
    n_started = sum(isinstance(event, CompactionStarted) for event in turn)
    if n_started > sum(isinstance(event, CompactionFinished) for event in turn):
        closing.append(CompactionFinished(0, ""))
    return [*closing, TurnFinished("cancelled", "", sum(isinstance(e, AssistantMessage) for e in turn))]


def _missing_reply(turn: Sequence[AgentEvent]) -> list[AgentEvent]:
    """The reply that was still being written: its text from the deltas, its calls from those that had started."""
    known = {call[0] for event in turn if isinstance(event, AssistantMessage) for call in event.tool_calls}
    calls = {e.call_id: e for e in turn if isinstance(e, ToolStarted | ToolFinished) and e.call_id not in known}
    text = "".join(event.text for event in turn if isinstance(event, TextDelta))
    reasoning = "".join(event.text for event in turn if isinstance(event, ReasoningDelta))
    if not (calls or text):
        return []
    written = tuple((c.call_id, c.name, json.dumps(c.arguments, ensure_ascii=False)) for c in calls.values())
    return [AssistantMessage(text, reasoning, written)]


def _calls(turn: Sequence[AgentEvent]) -> Iterable[tuple[str, str, dict[str, Any]]]:
    seen: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for event in turn:
        if isinstance(event, AssistantMessage):
            for call_id, name, written in event.tool_calls:
                arguments = _load_line(written.encode("utf-8", "replace"))
                seen.setdefault(call_id, (call_id, name, arguments if isinstance(arguments, dict) else {}))
        elif isinstance(event, ToolStarted):
            seen[event.call_id] = (event.call_id, event.name, event.arguments)
    return seen.values()


def merge_replies(events: Sequence[AgentEvent]) -> list[AgentEvent]:
    """Without the deltas that a later `AssistantMessage` or `ToolFinished` tells whole."""
    deltas = (TextDelta, ReasoningDelta, ToolCallDelta, ToolProgress)
    return [event for event in events if not isinstance(event, deltas)]

"""Session logs: what is written, what a damaged or cut log still gives."""

from __future__ import annotations

import io
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointcode_local.acp.updates import Translator
from pointcode_local.acp.wire import encode
from pointcode_local.conversation import Conversation
from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    ContextAdded,
    ErrorRaised,
    FileDiff,
    PermissionAnswered,
    PermissionAsked,
    TextDelta,
    TodoChanged,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.lineprint import LinePrinter
from pointcode_local.records import from_record, to_line, to_record, type_name
from pointcode_local.session import SessionError, SessionStore
from pointcode_local.tui.story import Story
from tests.app.agents import assert_valid_history, full_disk

CALL = ("c1", "read", '{"path": "f"}')
TURN: list[AgentEvent] = [
    TurnStarted("Goal G-1 ü\u2028\u0085."),
    ContextAdded("AGENTS.md", "rules"),
    TextDelta("Look"),
    TextDelta("ing."),
    ToolStarted("c1", "read", {"path": "f"}, "read f"),
    AssistantMessage("Looking.", "hm", (CALL,)),
    ToolProgress("c1", "some"),
    ToolFinished("c1", "read", {"path": "f"}, "text \ud800", False, (FileDiff("f", None, "new"),)),
    TextDelta("Done."),
    AssistantMessage("Done.", "", ()),
    TurnFinished("done", "Done.", 2),
]


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions")


def write(store: SessionStore, cwd: Path, events: list[AgentEvent]) -> str:
    log = store.create(cwd)
    for event in events:
        log.append(event)
    log.close()
    return log.id


def messages_of(events: list[AgentEvent]) -> Any:
    return Conversation("s", events).messages


@pytest.mark.parametrize("event", TURN + [TodoChanged((("a", "done"),)), ErrorRaised("x", True)], ids=repr)
def test_an_event_survives_the_way_to_a_line_and_back(event: AgentEvent):
    line = to_line(to_record(event))
    assert line.count(b"\n") == 1 and len(line.decode().splitlines()) == 1
    assert from_record(json.loads(line)) == event


def test_types_are_named_in_snake_case():
    names = {type_name(kind) for kind in get_args(AgentEvent)}
    assert {"turn_started", "tool_finished", "permission_asked", "error", "text_delta"} <= names


@pytest.mark.parametrize("record", [None, 7, [], {}, {"type": 3}, {"type": "no_such"}, {"type": "turn_started"}])
def test_a_record_of_no_event_is_none(record: Any):
    assert from_record(record) is None


def test_a_stored_session_comes_back_without_deltas(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    log, events = store.open(session_id)
    log.close()
    assert events == [e for e in TURN if not isinstance(e, TextDelta | ToolProgress)]
    assert messages_of(events) == messages_of(TURN)


@pytest.mark.parametrize("n", range(1, len(TURN)))
def test_a_log_that_ends_anywhere_is_closed_to_a_valid_history(store: SessionStore, tmp_path: Path, n: int):
    session_id = write(store, tmp_path, TURN[:n])
    log, events = store.open(session_id)
    log.close()
    assert isinstance(events[-1], TurnFinished) and events[-1].outcome in ("cancelled", "done")
    assert_valid_history(messages_of(events))
    again, reopened = store.open(session_id)
    again.close()
    assert reopened == events


def test_what_was_shown_before_a_kill_is_kept(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN[:5])
    _, events = store.open(session_id)
    text = "\n".join(m.content for m in messages_of(events))
    assert "Looking." in text and "interrupted" in text


def test_output_of_a_killed_command_is_kept(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN[:7])
    _, events = store.open(session_id)
    (result,) = [e for e in events if isinstance(e, ToolFinished)]
    assert "some" in result.text and result.is_error


def test_an_open_question_is_answered_with_no(store: SessionStore, tmp_path: Path):
    asked = PermissionAsked("c1", "write", {}, "write", "why", "write(*)")
    _, events = store.open(write(store, tmp_path, [TURN[0], asked]))
    assert PermissionAnswered("c1", "deny") in events


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 5000), removed=st.integers(0, 200), junk=st.binary(max_size=40))
def test_any_damage_leaves_the_rest_readable(store: SessionStore, tmp_path: Path, at: int, removed: int, junk: bytes):
    session_id = write(store, tmp_path, TURN)
    path = store.find(session_id)
    raw = path.read_bytes()
    at %= len(raw)
    path.write_bytes(raw[:at] + junk + raw[at + removed :])
    log, events = store.open(session_id)
    log.append(TurnStarted("more"))
    log.append(TurnFinished("done", "", 0))
    log.close()
    assert_valid_history(messages_of(events))
    assert store.read(session_id)[-1] == TurnFinished("done", "", 0)


def test_a_half_line_at_the_end_does_not_swallow_the_next_event(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    path = store.find(session_id)
    path.write_bytes(path.read_bytes()[:-9])
    log, _ = store.open(session_id)
    log.append(TurnStarted("next"))
    log.close()
    assert any(e == TurnStarted("next") for e in store.read(session_id))


def test_a_line_nested_without_end_is_damage_like_any_other(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    whole = store.read(session_id)
    with store.find(session_id).open("ab") as file:
        file.write(b"[" * 200_000 + b"\n")
    assert list(store.read(session_id)) == list(whole)


def test_a_fork_has_the_same_events_under_a_new_id(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    log, events = store.fork(session_id, tmp_path)
    assert log.id != session_id and log.header.parent == session_id
    assert messages_of(events) == messages_of(TURN)
    log.append(TurnStarted("only here"))
    log.close()
    assert TurnStarted("only here") not in store.read(session_id)


def test_sessions_are_listed_by_folder_newest_first(store: SessionStore, tmp_path: Path):
    one, two = write(store, tmp_path, TURN), write(store, tmp_path, TURN)
    other = write(store, tmp_path / "other", TURN)
    os.utime(store.find(one), (2e9, 2e9))
    assert [info.id for info in store.list(tmp_path)] == [one, two]
    assert {info.id for info in store.list()} == {one, two, other}
    assert store.list(tmp_path)[0].title.startswith("Goal G-1")
    assert store.list(tmp_path)[0].n_prompts == sum(isinstance(event, TurnStarted) for event in TURN)
    assert store.latest(tmp_path) == one


def test_the_last_session_is_one_in_which_something_was_said(store: SessionStore, tmp_path: Path):
    empty = write(store, tmp_path, [])
    assert store.latest(tmp_path) == empty
    said = write(store, tmp_path, TURN)
    os.utime(store.find(empty), (2e9, 2e9))
    assert store.latest(tmp_path) == said


def test_sessions_can_be_listed_while_others_are_made_and_removed(store: SessionStore, tmp_path: Path):
    kept = store.create(tmp_path)
    kept.close()

    def come_and_go() -> None:
        for _ in range(200):
            session = store.create(tmp_path)
            session.close()
            store.remove(session.id)

    busy = threading.Thread(target=come_and_go)
    busy.start()
    while busy.is_alive():
        assert kept.id in [info.id for info in store.list(tmp_path)]
    busy.join()
    assert [info.id for info in store.list(tmp_path)] == [kept.id]


def test_a_session_is_listed_by_its_last_name_and_a_name_is_no_event(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    events = store.read(session_id)
    log, _ = store.open(session_id)
    log.set_name("first")
    log.set_name("  my\nwork ")
    log.close()
    assert [info.title for info in store.list(tmp_path)] == ["my work"]
    assert store.read(session_id) == events


def test_ids_may_be_shortened_and_wrong_ones_are_errors(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    assert store.find(session_id[:-2]).stem == session_id
    store.remove(session_id)
    for wrong in (session_id, "../x", "", "*"):
        with pytest.raises(SessionError):
            store.find(wrong)
    with pytest.raises(SessionError, match="no session to continue"):
        store.latest(tmp_path)


def test_a_session_is_open_only_once(store: SessionStore, tmp_path: Path):
    log = store.create(tmp_path)
    for attempt in (store.open, store.remove):
        with pytest.raises(SessionError, match="open in another"):
            attempt(log.id)
    log.close()
    store.open(log.id)[0].close()


def test_a_log_that_was_cut_at_any_byte_can_be_gone_on_with(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    path = store.find(session_id)
    raw = path.read_bytes()
    header = raw.index(b"\n") + 1
    for end in range(header, len(raw)):
        path.write_bytes(raw[:end])
        log, events = store.open(session_id)
        log.append(TurnStarted("more"))
        log.append(TurnFinished("done", "", 0))
        log.close()
        assert_valid_history(messages_of(events))
        assert store.read(session_id)[-2:] == [TurnStarted("more"), TurnFinished("done", "", 0)]


def test_a_full_disk_costs_the_log_its_lines_and_the_turn_nothing(store: SessionStore, tmp_path: Path):
    log = store.create(tmp_path)
    log.append(TurnStarted("kept"))
    with full_disk(log):
        log.append(TurnStarted("lost"))
        log.append(TurnFinished("done", "", 0))
        assert log.problem == "No space left on device"
    log.append(TurnStarted("kept too"))
    assert log.problem == ""
    log.close()
    prompts = [event.prompt for event in store.read(log.id) if isinstance(event, TurnStarted)]
    assert prompts == ["kept", "kept too"]


def test_a_folder_that_cannot_hold_sessions_is_an_error_for_people(tmp_path: Path):
    (tmp_path / "sessions").write_text("a file")
    with pytest.raises(SessionError, match="cannot be kept"):
        SessionStore(tmp_path / "sessions").create(tmp_path)
    with pytest.raises(SessionError, match="cannot be written.*POINTCODE_HOME"):
        SessionStore(Path("/proc/self")).create(tmp_path)


def test_a_log_that_can_only_be_read_is_shown_and_forked_but_not_gone_on_with(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    path = store.find(session_id)
    program = path.with_name("20200101-000000-program.jsonl")
    program.write_bytes(Path("/bin/cat").read_bytes())  # not even root writes to a program that runs
    program.chmod(0o700)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as running:
        with pytest.raises(SessionError, match="cannot be written: Text file busy"):
            store.open("20200101-000000-program")
        assert store.read("20200101-000000-program") == []
        running.communicate()


def test_what_is_no_file_is_no_session(store: SessionStore, tmp_path: Path):
    session_id = write(store, tmp_path, TURN)
    os.mkfifo(store.root / "20200101-000000-pipe.jsonl")
    (store.root / "20200101-000000-folder.jsonl").mkdir()
    assert [info.id for info in store.list()] == [session_id]
    for name in ("20200101-000000-pipe", "20200101-000000-folder", "20200101"):
        with pytest.raises(SessionError, match="no session"):
            store.open(name)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**40) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "before", "x"]), inner),
    max_leaves=4,
)
EVERY = [
    *TURN,
    PermissionAsked("c1", "write", {"a": 1}, "t", "why", "r", (FileDiff("f", None, "x"),)),
    PermissionAnswered("c1", "once"),
    TodoChanged((("a", "done"),)),
    ErrorRaised("x", True),
    CompactionStarted(1),
    CompactionFinished(1, "sum"),
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(range(len(EVERY))), ODD, st.data())
def test_a_member_of_another_type_costs_its_event_and_the_rest_can_be_shown(
    store: SessionStore, tmp_path: Path, at: int, odd: Any, data: st.DataObject
):
    """As a later version might write it. What is read is shown by every front end."""
    record = to_record(EVERY[at])
    record[data.draw(st.sampled_from(sorted(record)))] = odd
    session_id = write(store, tmp_path, EVERY[:at])
    with store.find(session_id).open("ab") as file:
        file.writelines([to_line(record), *(to_line(to_record(event)) for event in EVERY[at + 1 :])])
    log, events = store.open(session_id)
    log.close()
    assert_valid_history(messages_of(events))
    printer, story, editor = LinePrinter(io.StringIO()), Story(), Translator(tmp_path)
    for event in events:
        printer.show(event)
        story.apply(event)
        assert from_record(json.loads(to_line(to_record(event)))) == event
        for update in editor.replayed(event):
            encode({"update": update if isinstance(update, dict) else update.model_dump(mode="json")})

"""Undo puts back exactly the bytes that the assistant changed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointcode_local.checkpoints import LOST, Checkpoints
from tests.app.test_host import Play, ignore, turn
from tests.fakes import ScriptedModel, call, say


def change(store: Checkpoints, turn: int, path: Path, data: bytes | None) -> None:
    store.before(turn, [path])
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    store.after(turn, [path])


def test_undo_restores_changed_created_and_deleted_files(tmp_path: Path):
    store = Checkpoints(tmp_path / "state")
    changed, created, deleted, other = (tmp_path / n for n in ("changed", "created", "deleted", "other"))
    changed.write_bytes(b"\xff\r\nold")
    changed.chmod(0o755)
    deleted.write_bytes(b"gone")
    other.write_bytes(b"untracked")
    change(store, 1, changed, b"first")
    change(store, 1, changed, b"second")
    change(store, 1, created, b"new")
    change(store, 1, deleted, None)
    undone = Checkpoints(tmp_path / "state").undo()
    assert set(undone.restored) == {changed, created, deleted} and undone.skipped == ()
    assert changed.read_bytes() == b"\xff\r\nold" and changed.stat().st_mode & 0o777 == 0o755
    assert not created.exists() and deleted.read_bytes() == b"gone" and other.read_bytes() == b"untracked"


def test_turns_are_undone_one_by_one_from_the_last(tmp_path: Path):
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "f"
    path.write_bytes(b"0")
    change(store, 1, path, b"1")
    store.before(2, [path])
    store.after(2, [path])  # a turn that changed nothing
    change(store, 3, path, b"3")
    assert (store.undo().restored, path.read_bytes()) == ((path,), b"1")
    assert (store.undo().restored, path.read_bytes()) == ((path,), b"0")
    assert store.undo().restored == ()


def test_a_file_that_somebody_changed_since_is_left_alone(tmp_path: Path):
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "f"
    path.write_bytes(b"0")
    change(store, 1, path, b"1")
    path.write_bytes(b"mine")
    undone = store.undo()
    assert undone.skipped == (path,) and path.read_bytes() == b"mine"


def test_a_kill_between_before_and_after_loses_nothing(tmp_path: Path):
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "f"
    path.write_bytes(b"precious")
    store.before(1, [path])
    with (tmp_path / "state/index.jsonl").open("ab") as file:
        file.write(b'{"half')
    kept = [p.read_bytes() for p in (tmp_path / "state").iterdir() if p.name != "index.jsonl"]
    assert kept == [b"precious"]
    assert store.undo().restored == ()


def test_a_file_whose_end_was_not_noted_is_reported_and_left_alone(tmp_path: Path):
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "f"
    path.write_bytes(b"old")
    store.before(1, [path])
    path.write_bytes(b"new")  # and then the process is killed
    assert store.undo().skipped == (path,)


def test_names_that_are_no_utf8_are_kept(tmp_path: Path):
    import os

    store, path = Checkpoints(tmp_path / "state"), tmp_path / os.fsdecode(b"\xff\n")
    change(store, 1, path, b"x")
    assert store.undo().restored == (path,)


def test_remove_forgets_everything(tmp_path: Path):
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "f"
    change(store, 1, path, b"x")
    assert store.last_turn() == 1
    store.remove()
    assert store.last_turn() == 0 and path.exists()


def test_redo_makes_undone_changes_again_one_by_one(tmp_path: Path):
    store, path, made, gone = Checkpoints(tmp_path / "state"), tmp_path / "f", tmp_path / "made", tmp_path / "gone"
    path.write_bytes(b"0")
    path.chmod(0o755)
    gone.write_bytes(b"here")
    change(store, 1, path, b"\xff1")
    change(store, 2, path, b"2\r\n")
    change(store, 2, made, b"new")
    change(store, 2, gone, None)
    assert store.redo().restored == ()
    store.undo()
    store.undo()
    again = Checkpoints(tmp_path / "state")
    assert (again.redo().restored, path.read_bytes()) == ((path,), b"\xff1")
    assert set(again.redo().restored) == {path, made, gone}
    assert path.read_bytes() == b"2\r\n" and path.stat().st_mode & 0o777 == 0o755
    assert made.read_bytes() == b"new" and not gone.exists()
    assert again.redo().restored == ()
    assert set(again.undo().restored) == {path, made, gone} and gone.read_bytes() == b"here"


def test_redo_leaves_alone_what_was_changed_after_the_undo(tmp_path: Path):
    store, path, other = Checkpoints(tmp_path / "state"), tmp_path / "f", tmp_path / "other"
    path.write_bytes(b"0")
    change(store, 1, path, b"1")
    store.undo()
    path.write_bytes(b"mine")
    assert store.redo().skipped == (path,) and path.read_bytes() == b"mine"
    change(store, 2, other, b"2")
    store.undo()
    change(store, 3, path, b"3")
    assert store.redo().restored == () and not other.exists()


def test_the_originals_are_the_bytes_before_the_first_turn_that_stands(tmp_path: Path):
    store, path, made = Checkpoints(tmp_path / "state"), tmp_path / "f", tmp_path / "made"
    path.write_bytes(b"0")
    change(store, 1, path, b"1")
    change(store, 2, path, b"2")
    change(store, 2, made, b"new")
    assert store.originals() == {path: b"0", made: None}
    store.undo()
    assert store.originals() == {path: b"0"}
    store.undo()
    assert store.originals() == {}


def test_a_pipe_in_the_place_of_a_file_is_passed_over(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    checkpoints = Checkpoints(tmp_path / "kept")
    checkpoints.before(1, [tmp_path / "pipe"])
    checkpoints.after(1, [tmp_path / "pipe"])
    assert checkpoints.last_turn() == 0


def test_a_file_that_is_huge_by_now_is_neither_kept_nor_read_nor_replaced(tmp_path: Path) -> None:
    checkpoints, path, other = Checkpoints(tmp_path / "kept"), tmp_path / "file", tmp_path / "other"
    for one in (path, other):
        checkpoints.before(1, [one])
        one.write_bytes(b"made\n")
        checkpoints.after(1, [one])
    with path.open("ab") as file:
        file.truncate(1 << 40)
    checkpoints.before(2, [path])
    checkpoints.after(2, [path])
    undone = checkpoints.undo()
    assert (undone.restored, undone.skipped) == ((other,), (path,))
    assert path.stat().st_size == 1 << 40


def test_folders_that_a_write_made_go_with_the_file(tmp_path: Path):
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "ws" / "new" / "deep" / "f"
    (tmp_path / "ws").mkdir()
    store.before(1, [path])
    path.parent.mkdir(parents=True)
    path.write_text("x")
    store.after(1, [path])
    assert store.undo().restored == (path,)
    assert list((tmp_path / "ws").iterdir()) == []
    assert store.redo().restored == (path,) and path.read_text() == "x"


def test_undo_does_not_write_through_a_link_that_took_the_place_of_a_folder(tmp_path: Path) -> None:
    store, folder, outside = Checkpoints(tmp_path / "state"), tmp_path / "d", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "keys").write_bytes(b"theirs")
    change(store, 1, folder / "keys", None)
    folder.rmdir()
    folder.symlink_to(outside)
    undone = store.undo()
    assert undone.restored == () and undone.skipped == (folder / "keys",) and list(outside.iterdir()) == []


def test_what_a_command_made_read_only_is_undone(tmp_path: Path) -> None:
    store, made, changed = Checkpoints(tmp_path / "state"), tmp_path / "made", tmp_path / "changed"
    changed.write_bytes(b"old")
    changed.chmod(0o640)
    store.before(1, [made, changed])
    for path in (made, changed):
        path.write_bytes(b"new")
        path.chmod(0o444)
    store.after(1, [made, changed])
    assert set(store.undo().restored) == {made, changed}
    assert not made.exists() and changed.read_bytes() == b"old" and changed.stat().st_mode & 0o777 == 0o640


def test_an_undo_that_fails_half_way_changes_nothing_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, a, b = Checkpoints(tmp_path / "state"), tmp_path / "a", tmp_path / "b"
    for path in (a, b):
        path.write_bytes(b"old")
        change(store, 1, path, b"new")
    real = os.replace

    def failing(old: str, new: str, **folders: int) -> None:
        if new == "b":
            raise OSError(28, "No space left on device")
        real(old, new, **folders)

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space"):
        full.setattr(os, "replace", failing)
        store.undo()
    assert a.read_bytes() == b.read_bytes() == b"new"
    assert set(store.undo().restored) == {a, b} and a.read_bytes() == b.read_bytes() == b"old"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_damage_there_is_in_the_index_the_rest_can_be_undone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tmp_path = tmp_path_factory.mktemp("d")
    store, path = Checkpoints(tmp_path / "state"), tmp_path / "f"
    junk = data.draw(
        st.sampled_from([b"[1]\n", b"null\n", b'{"turn": 1}\n', b'{"turn": "x", "kind": "undone"}\n', b"{" * 9999])
        | st.binary(max_size=40)
        | st.builds(
            lambda key, value: json.dumps(
                {"turn": 1, "kind": "before", "path": "2f78", "sha256": "", "mode": 0} | {key: value}
            ).encode(),
            st.sampled_from(["turn", "kind", "path", "sha256", "mode", "folders"]),
            st.none() | st.text(max_size=3) | st.integers() | st.lists(st.integers(), max_size=1),
        )
    )
    (tmp_path / "state").mkdir()
    (tmp_path / "state/index.jsonl").write_bytes(junk)
    path.write_bytes(b"old")
    change(store, 7, path, b"new")
    assert store.last_turn() >= 7 or b"9" in junk
    restored: list[Path] = []
    for _ in range(3):
        restored += store.undo().restored
    assert path in restored and path.read_bytes() == b"old"


def test_a_link_that_a_patch_deletes_comes_back(tmp_path: Path) -> None:
    model = ScriptedModel(call("patch", patch="*** Begin Patch\n*** Delete File: link\n*** End Patch"), say("Gone."))
    play = Play(tmp_path, model)
    (play.cwd / "a.txt").write_text("a\n")
    (play.cwd / "link").symlink_to("a.txt")

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore))
        assert not (play.cwd / "link").is_symlink()
        assert await host.undo() == "restored link"
        assert (play.cwd / "link").readlink() == Path("a.txt")
        assert await host.redo() == "removed link"
        await host.close()

    asyncio.run(run())
    assert [path.name for path in play.cwd.iterdir()] == ["a.txt"]


def test_what_a_command_changes_in_the_background_is_said_not_to_be_kept(tmp_path: Path) -> None:
    model = ScriptedModel(call("shell", command="sleep 300", background=True), say("Started."))
    play = Play(tmp_path, model)

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore))
        assert await host.undo() == LOST
        await host.close()

    asyncio.run(run())

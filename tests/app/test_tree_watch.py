"""What commands changed is known, and undone, with the bytes that were there before."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pointcode_local import tree_watch
from pointcode_local.checkpoints import LOST, Checkpoints
from pointcode_local.tree_watch import TreeWatch
from tests.app.openai_server import Reply, tool
from tests.app.program import Program


class Folder:
    """A workspace, its watch, and its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "ws"
        self.root.mkdir()
        self.watch = TreeWatch(self.root, (folder / "ws" / "own",))
        self.kept = Checkpoints(folder / "state")

    def command(self, script: str, turn: int = 1) -> None:
        """Run a command as the agent would."""
        assert self.watch.before()
        subprocess.run(["/bin/sh", "-c", script], cwd=self.root, check=True)
        self.kept.commanded(turn, self.watch.after())

    def told(self) -> str:
        return self.kept.undo().told("restored", lambda path: os.path.relpath(path, self.root))

    @property
    def texts(self) -> dict[str, bytes]:
        found = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        return {os.path.relpath(path, self.root): path.read_bytes() for path in found}


@pytest.fixture
def ws(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    (made.root / "a.txt").write_bytes(b"\xff one\r\n")
    (made.root / "run.sh").write_bytes(b"true\n")
    (made.root / "run.sh").chmod(0o755)
    return made


def test_what_a_command_made_changed_moved_and_deleted_is_undone(ws: Folder) -> None:
    before = ws.texts
    ws.command("echo two >> a.txt; rm run.sh; mkdir -p d; echo new > d/b.txt; cp a.txt 'c d.txt'")
    assert ws.told() == "restored a.txt, run.sh, removed c d.txt, d/b.txt"
    assert ws.texts == before and not (ws.root / "d").exists()
    assert (ws.root / "run.sh").stat().st_mode & 0o777 == 0o755
    assert set(ws.kept.redo().restored) == {ws.root / n for n in ("a.txt", "run.sh", "d/b.txt", "c d.txt")}
    assert ws.texts["a.txt"] == b"\xff one\r\ntwo\n" and "run.sh" not in ws.texts


def test_folders_that_a_command_made_go_with_its_files_and_others_stay(ws: Folder) -> None:
    (ws.root / "empty").mkdir()
    ws.command("mkdir -p a/b/c mine; echo 1 > a/b/c/f; echo 2 > empty/f; echo 3 > mine/f")
    (ws.root / "mine" / "other").write_text("x")
    ws.told()
    assert sorted(path.name for path in ws.root.iterdir()) == ["a.txt", "empty", "mine", "run.sh"]
    assert ws.texts["mine/other"] == b"x"
    ws.kept.redo()
    assert ws.texts["a/b/c/f"] == b"1\n"


@pytest.mark.parametrize(
    "script",
    [
        *("rm link", "rm dangling", "ln -sfn run.sh link", "ln -s d l2; ln -s nowhere l3", "rm link; echo z > link"),
        *("ln -sf run.sh a.txt", "chmod 600 run.sh", "chmod 600 run.sh; echo 2 >> run.sh", "rm -r d", "mv d d2"),
        *("rm a.txt; mkdir a.txt; echo 1 > a.txt/q", "rm -r d; echo 1 > d", "rm -r d; ln -s . d", "mv link l2"),
    ],
)
def test_links_modes_and_what_stands_where_are_undone_and_redone(ws: Folder, script: str) -> None:
    (ws.root / "link").symlink_to("a.txt")
    (ws.root / "dangling").symlink_to("nowhere")
    (ws.root / "d" / "e").mkdir(parents=True)
    (ws.root / "d" / "e" / "f.txt").write_text("f\n")

    def content(path: Path) -> Path | bytes | None:
        return path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None

    def all_there() -> dict[Path, tuple[int, Path | bytes | None]]:
        return {path: (path.lstat().st_mode, content(path)) for path in ws.root.rglob("*")}

    before = all_there()
    ws.command(script)
    after = all_there()
    assert after != before
    for _ in range(2):
        undone = ws.kept.undo()
        assert all_there() == before and not undone.skipped and undone.restored
        redone = ws.kept.redo()
        assert all_there() == after and not redone.skipped


def test_a_link_never_counts_as_a_file_that_holds_the_same_text(ws: Folder) -> None:
    (ws.root / "link").symlink_to("a.txt")
    ws.command("rm link")
    (ws.root / "link").write_text("a.txt")
    assert ws.told() == "restored nothing; left alone (changed since): link"
    assert (ws.root / "link").read_text() == "a.txt"


def test_two_commands_and_an_edit_of_a_turn_are_undone_to_the_state_before_the_first(ws: Folder) -> None:
    ws.command("echo two > a.txt")
    ws.kept.before(1, [ws.root / "a.txt"])
    (ws.root / "a.txt").write_text("three")
    ws.kept.after(1, [ws.root / "a.txt"])
    ws.command("echo four > a.txt")
    assert ws.told() == "restored a.txt"
    assert ws.texts["a.txt"] == b"\xff one\r\n"


def test_what_changed_since_the_command_is_left_alone(ws: Folder) -> None:
    ws.command("echo two > a.txt")
    (ws.root / "a.txt").write_text("mine")
    assert ws.told() == "restored nothing; left alone (changed since): a.txt"
    assert ws.texts["a.txt"] == b"mine"


def test_ignored_files_caches_and_our_own_are_not_looked_at(ws: Folder) -> None:
    (ws.root / ".gitignore").write_text("build/\n*.log\n")
    ws.command("mkdir build node_modules own; touch build/o node_modules/m own/session x.log seen")
    assert ws.told() == "removed seen"


def test_touching_a_file_is_no_change(ws: Folder) -> None:
    ws.command("touch a.txt; cp a.txt t; mv t a.txt")
    assert ws.told() == ""


def test_more_than_can_be_kept_is_said_and_the_rest_undone(ws: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_watch, "MAX_FILE_BYTES", 100)
    ws.command("echo two > a.txt; head -c 1000 /dev/zero > large")
    assert ws.told() == f"restored a.txt; {LOST}"
    assert "large" in ws.texts
    monkeypatch.setattr(tree_watch, "MAX_CHANGES", 3)
    ws.command("touch 1; for n in 1 2 3 4 5; do echo $n > f$n; done", turn=2)
    assert ws.told() == LOST


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 1), ("MAX_LOOK_S", -1.0), ("MAX_KEPT_BYTES", 1)])
def test_a_folder_that_is_too_large_is_left_alone(
    ws: Folder, limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_watch, limit, value)
    assert not any(ws.watch.before() for _ in range(5))
    monkeypatch.undo()
    assert not ws.watch.before()  # it is not tried for ever


def test_the_home_folder_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "project").mkdir(parents=True)
    assert not TreeWatch(tmp_path / "home").before()
    assert not TreeWatch(tmp_path).before()
    assert TreeWatch(tmp_path / "home" / "project").before()


def test_a_command_of_the_model_is_undone_by_the_program(tmp_path: Path) -> None:
    program = Program(tmp_path)
    (program.ws / "a.txt").write_text("one\n")
    command = "echo two > a.txt && echo new > made.txt"
    result, _, _ = program.ask(tool("shell", command=command), Reply("Done."))
    assert (program.ws / "made.txt").exists()
    assert result["changed_files"] == ["a.txt", "made.txt"]
    undone = Checkpoints(program.state / "checkpoints" / result["session_id"]).undo()
    assert {path.name for path in undone.restored} == {"a.txt", "made.txt"} and not undone.has_lost
    assert [path.name for path in program.ws.iterdir()] == ["a.txt"]
    assert (program.ws / "a.txt").read_text() == "one\n"

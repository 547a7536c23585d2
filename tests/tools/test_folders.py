"""Links that are swapped in while files are changed: nothing behind them is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pointcode_local.tools.atomic import apply_changes, read_bytes_or_none
from pointcode_local.tools.base import FileChange
from pointcode_local.tools.folders import open_folder
from pointcode_local.tools.workspace import Workspace

from .tool_kit import Bench

OLD = b"old\n"


def swap(bench: Bench) -> Path:
    """The folder `d` moves to `e`, and a link to a folder outside with the same file takes its place."""
    outside = bench.root.parent / "outside"
    outside.mkdir()
    (outside / "f.txt").write_bytes(OLD)
    (bench.root / "d").rename(bench.root / "e")
    (bench.root / "d").symlink_to(outside)
    return outside


CALLS: dict[str, dict[str, object]] = {
    "write": {"path": "d/new.txt", "content": "x"},
    "edit": {"path": "d/f.txt", "edits": [{"old": "old", "new": "new"}]},
    "patch": {"patch": "*** Begin Patch\n*** Delete File: d/f.txt\n*** Add File: d/x/y.txt\n+y\n*** End Patch"},
}


@pytest.mark.parametrize("tool", list(CALLS))
def test_a_link_swapped_in_before_the_first_byte_is_written_is_refused(
    bench: Bench, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("d/f.txt", OLD)
    commit = Workspace.commit

    def late(self: Workspace, changes: tuple[FileChange, ...]) -> None:
        swap(bench)
        commit(self, changes)

    monkeypatch.setattr(Workspace, "commit", late)
    assert "a link came to be on the way" in bench.refused(tool, **CALLS[tool])
    outside = bench.root.parent / "outside"
    assert [p.name for p in outside.iterdir()] == ["f.txt"] and (outside / "f.txt").read_bytes() == OLD
    assert [p.name for p in (bench.root / "e").iterdir()] == ["f.txt"]


@pytest.mark.parametrize("tool", list(CALLS))
def test_a_link_swapped_in_while_files_are_written_is_not_followed(
    bench: Bench, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is ended in the folder that was meant, wherever that is by now."""
    bench.put("d/f.txt", OLD)
    calls: dict[str, Callable[..., None]] = {"replace": os.replace, "unlink": os.unlink}
    first = True

    def late(name: str) -> Callable[..., None]:
        def call(*names: str, **folders: int) -> None:
            nonlocal first
            if first:
                first = False
                swap(bench)
            calls[name](*names, **folders)

        return call

    for name in calls:
        monkeypatch.setattr(os, name, late(name))
    bench.ok(tool, **CALLS[tool])
    monkeypatch.undo()
    outside = bench.root.parent / "outside"
    assert [p.name for p in outside.iterdir()] == ["f.txt"] and (outside / "f.txt").read_bytes() == OLD
    left = {str(p.relative_to(bench.root / "e")): p.read_bytes() for p in (bench.root / "e").rglob("*") if p.is_file()}
    assert (
        left
        == {
            "write": {"f.txt": OLD, "new.txt": b"x"},
            "edit": {"f.txt": b"new\n"},
            "patch": {"x/y.txt": b"y\n"},
        }[tool]
    )


def test_a_file_that_became_a_link_is_neither_read_nor_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "f"
    target.write_bytes(OLD)
    link.symlink_to(target)
    for attempt in (
        lambda: read_bytes_or_none(link),
        lambda: apply_changes([FileChange(link, OLD, b"new")]),
        lambda: apply_changes([FileChange(link / "x", None, b"new")]),
    ):
        with pytest.raises(OSError, match="a link came to be"):
            attempt()
    assert target.read_bytes() == OLD and link.is_symlink()


def test_a_link_that_goes_goes_by_itself_and_comes_back_when_the_rest_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link, other = tmp_path / "target", tmp_path / "link", tmp_path / "other"
    target.write_bytes(OLD)
    link.symlink_to("target")
    other.write_bytes(b"other")

    def full(*names: str, **folders: int) -> None:
        assert not link.is_symlink()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as failing, pytest.raises(OSError, match="No space"):
        failing.setattr(os, "replace", full)
        apply_changes([FileChange(link, OLD, None), FileChange(other, b"other", b"new")])
    assert link.readlink() == Path("target") and other.read_bytes() == b"other"
    apply_changes([FileChange(link, OLD, None)])
    assert target.read_bytes() == OLD and not link.is_symlink()


def test_a_link_to_delete_behind_a_link_that_leads_outside_stays(bench: Bench) -> None:
    outside = bench.root.parent / "outside"
    outside.mkdir()
    bench.put("f.txt", OLD)
    (outside / "link").symlink_to(bench.root / "f.txt")
    (bench.root / "way").symlink_to(outside)
    patch = "*** Begin Patch\n*** Delete File: way/link\n*** End Patch"
    assert "behind another one that leads outside" in bench.refused("patch", patch=patch)
    assert (outside / "link").is_symlink() and bench.get("f.txt") == OLD


def test_missing_folders_are_made_one_by_one_and_told(tmp_path: Path) -> None:
    made: list[Path] = []
    with open_folder(tmp_path / "a" / "b", made.append) as folder:
        assert folder.path == tmp_path / "a" / "b" and made == [tmp_path / "a", tmp_path / "a" / "b"]
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "none")


def test_a_folder_that_may_be_passed_and_not_read_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / "passed" / "d"
    folder.mkdir(parents=True)
    (tmp_path / "passed").chmod(0o311)
    try:
        apply_changes([FileChange(folder / "f", None, b"x")])
        assert read_bytes_or_none(folder / "f") == b"x"
    finally:
        (tmp_path / "passed").chmod(0o755)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    def n_open() -> int:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208

    before = n_open()
    apply_changes([FileChange(tmp_path / "x" / name, None, b"1") for name in "abc"])
    with pytest.raises(OSError):
        apply_changes(
            [FileChange(tmp_path / "y" / "n", None, b"1"), FileChange(tmp_path / "x" / "a" / "q", None, b"1")]
        )
    assert n_open() == before and sorted(os.listdir(tmp_path)) == ["x"]  # noqa: PTH208

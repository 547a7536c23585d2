"""Changing files on disk: others that save meanwhile, full disks, and the way back after a failure."""

from __future__ import annotations

import errno
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.tools.atomic import apply_changes
from pointcode_local.tools.base import FileChange, ToolError

from .tool_kit import Bench, envelope, snapshot


def while_the_first_is_synced(monkeypatch: pytest.MonkeyPatch, save: Callable[[], object]) -> None:
    """Somebody else saves when the first new file is brought to the disk: after all checks of its old bytes."""
    sync, left = os.fsync, [save]

    def syncing(descriptor: int) -> None:
        sync(descriptor)
        if left:
            left.pop()()

    monkeypatch.setattr(os, "fsync", syncing)


@pytest.mark.parametrize("how", ["in place", "by a new file", "removed"])
@pytest.mark.parametrize("after", [b"mine", None])
def test_what_an_editor_saves_while_new_files_are_written_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, after: bytes | None
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"old")
    b.write_bytes(b"b")

    def save() -> None:
        match how:
            case "in place":
                a.write_bytes(b"theirs")
            case "by a new file":
                (tmp_path / "a~").write_bytes(b"theirs")
                (tmp_path / "a~").replace(a)
            case _:
                a.unlink()

    while_the_first_is_synced(monkeypatch, save)
    with pytest.raises(ToolError, match="changed by someone else"):
        apply_changes([FileChange(b, b"b", b"B"), FileChange(a, b"old", after)])
    assert snapshot(tmp_path) == {"b": b"b"} | ({} if how == "removed" else {"a": b"theirs"})


def test_a_failure_names_the_file_and_not_the_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        apply_changes([FileChange(tmp_path / "a", None, b"new")])
    assert caught.value.filename == str(tmp_path / "a") and snapshot(tmp_path) == {}


def no_link(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_does_not_take_the_place_of_one_that_came_to_be_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_link)
    apply_changes([FileChange(tmp_path / "plain", None, b"x")])
    while_the_first_is_synced(monkeypatch, lambda: (tmp_path / "new").write_bytes(b"theirs"))
    with pytest.raises(ToolError, match="changed by someone else"):
        apply_changes([FileChange(tmp_path / "new", None, b"mine")])
    assert snapshot(tmp_path) == {"new": b"theirs", "plain": b"x"}


def test_a_name_that_is_taken_in_the_last_moment_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(old: str, new: str, **folders: Any) -> None:
        (tmp_path / "new").write_bytes(b"theirs")
        link(old, new, **folders)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ToolError, match="changed by someone else"):
        apply_changes([FileChange(tmp_path / "new", None, b"mine")])
    assert snapshot(tmp_path) == {"new": b"theirs"}


def test_a_file_that_cannot_be_put_back_is_named_and_the_others_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a", "b", "c", "d")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    real = os.replace

    def failing(old: str, new: str, **folders: int) -> None:
        if new == "d":
            (tmp_path / "b").write_bytes(b"theirs")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(old, new, **folders)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(ToolError, match=r"No space.*could not be put back.*/b \(.*changed by someone else") as told:
        apply_changes([FileChange(tmp_path / name, name.encode(), name.upper().encode()) for name in names])
    assert "/a " not in str(told.value) and snapshot(tmp_path) == {"a": b"a", "b": b"theirs", "c": b"c", "d": b"d"}


def test_no_room_on_the_disk_leaves_every_file_as_it_was(bench: Bench) -> None:
    bench.put("a.txt", b"a" * 5000)
    bench.put("b.txt", "b\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        patch = envelope("*** Update File: b.txt", "@@", "-b", "+B", "*** Add File: n/c.txt", "+" + "c" * 5000)
        told = [
            bench.refused("edit", path="a.txt", edits=[{"old": "a" * 5000, "new": "b" * 5000}]),
            bench.refused("patch", patch=patch),
            bench.refused("write", path="new.txt", content="x" * 5000),
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all("File too large" in text for text in told)
    assert snapshot(bench.root) == {"a.txt": b"a" * 5000, "b.txt": b"b\n"}


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="extended attributes")
def test_extended_attributes_are_kept_one_by_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.put("f.txt", "old\n", 0o640)
    try:
        for name in (b"user.a", b"user.refused", b"user.z"):
            os.setxattr(path, name, name)
    except OSError:
        pytest.skip("the file system has no extended attributes")
    real = os.setxattr

    def refusing(target: int, name: str, value: bytes) -> None:
        if name == "user.refused":
            raise OSError(errno.EPERM, "only the system may")
        real(target, name, value)

    monkeypatch.setattr(os, "setxattr", refusing)
    assert not bench.edit("f.txt", ("old", "new")).is_error
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == {"user.a": b"user.a", "user.z": b"user.z"}
    assert path.stat().st_mode & 0o7777 == 0o640


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="extended attributes")
def test_the_access_list_that_a_folder_gives_new_files_is_not_put_on_an_old_one(bench: Bench) -> None:
    path = bench.put("f.txt", "old\n", 0o640)
    nobody = 2**32 - 1
    entries = ((1, 7, nobody), (2, 6, 999), (4, 5, nobody), (16, 7, nobody), (32, 0, nobody))  # 2: a user of this id
    given = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(bench.root, "system.posix_acl_default", given)
    except OSError:
        pytest.skip("the file system has no access lists")
    assert not bench.edit("f.txt", ("old", "new")).is_error
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert path.stat().st_mode & 0o7777 == 0o640
    fresh = bench.put("new.txt", "old\n")
    before = os.getxattr(fresh, "system.posix_acl_access")
    assert not bench.edit("new.txt", ("old", "new")).is_error
    assert os.getxattr(fresh, "system.posix_acl_access") == before


@pytest.mark.parametrize("links", [True, False])
def test_what_comes_back_after_a_failure_has_its_mode_and_where_links_work_is_the_very_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    for name, mode in (("changed", 0o750), ("gone", 0o700), ("last", 0o644)):
        (tmp_path / name).write_bytes(b"x")
        (tmp_path / name).chmod(mode)
    inodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    real = os.replace

    def failing(old: str, new: str, **folders: int) -> None:
        if new == "last":
            raise OSError(errno.EIO, "Input/output error")
        real(old, new, **folders)

    monkeypatch.setattr(os, "replace", failing)
    if not links:
        monkeypatch.setattr(os, "link", no_link)
    changes = [FileChange(tmp_path / "changed", b"x", b"y"), FileChange(tmp_path / "gone", b"x", None)]
    with pytest.raises(OSError, match="Input/output"):
        apply_changes([*changes, FileChange(tmp_path / "last", b"x", b"y")])
    assert snapshot(tmp_path) == {"changed": b"x", "gone": b"x", "last": b"x"}
    assert (tmp_path / "changed").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "gone").stat().st_mode & 0o7777 == 0o700
    assert not links or {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == inodes

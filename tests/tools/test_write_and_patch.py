"""Whole files and patches of several files."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.tools.atomic import apply_changes
from pointcode_local.tools.base import FileChange, ToolError

from .tool_kit import Bench, envelope, snapshot

Form = Literal["NFC", "NFD"]


# ------------------------------------------------------------------------------------------------- write
@pytest.mark.parametrize("content", ["a\nb", "a\r\nb\r\n", "", "\n", "a\rb", "\x0c\u2028", "$x `y` \\n\n"])
def test_write_puts_exactly_the_given_text(bench: Bench, content: str) -> None:
    bench.ok("write", path="a/b/new.txt", content=content)
    assert bench.get("a/b/new.txt") == content.encode()


@pytest.mark.parametrize(
    "name",
    ["-rf", "$(touch pwned).txt", "; touch pwned;", "a b 'c' \"d\"", "ü/日本.txt", "[id]/{a,b}.tsx", "a:1:b", "*"],
)
def test_odd_names_are_written_literally(bench: Bench, name: str) -> None:
    bench.ok("write", path=name, content="x\n")
    assert bench.get(name) == b"x\n"
    assert [str(p.relative_to(bench.root)) for p in bench.root.rglob("*") if p.is_file()] == [name]


@pytest.mark.parametrize(("there", "written"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_name_is_found_whatever_form_of_unicode_it_is_written_in(bench: Bench, there: Form, written: Form) -> None:
    name = "Café/über é.txt"
    path = bench.put(unicodedata.normalize(there, name), "one\n")
    wanted = unicodedata.normalize(written, name)
    assert "one" in bench.ok("read", path=wanted)
    assert not bench.edit(wanted, ("one", "two")).is_error
    bench.ok("write", path=wanted, content="three\n")
    assert path.read_bytes() == b"three\n"
    bench.ok("write", path=f"{wanted}.new", content="beside it\n")
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, Path(wanted).name + ".new"])
    other = bench.put(wanted, "its own\n")  # where both are there each is itself
    bench.ok("read", path=wanted)
    bench.ok("write", path=wanted, content="changed\n")
    assert (path.read_bytes(), other.read_bytes()) == (b"three\n", b"changed\n")
    assert "does not exist" in bench.refused("read", path="nowhere/é.txt")


def test_an_existing_file_is_replaced_only_after_its_present_bytes_were_read(bench: Bench) -> None:
    path = bench.put("f.txt", "precious\n")
    assert "read it first" in bench.refused("write", path="f.txt", content="mine\n")
    bench.ok("read", path="f.txt")
    path.write_bytes(b"precious and newer\n")
    assert "changed since" in bench.refused("write", path="f.txt", content="mine\n")
    assert path.read_bytes() == b"precious and newer\n"
    bench.ok("read", path="f.txt")
    bench.ok("write", path="f.txt", content="mine\n")
    bench.ok("write", path="f.txt", content="again\n")
    assert path.read_bytes() == b"again\n"


def test_a_file_read_in_part_is_not_replaced_until_the_rest_was_read(bench: Bench) -> None:
    bench.put("f.txt", "".join(f"{n}\n" for n in range(50)))
    bench.ok("read", path="f.txt", limit=20)
    assert "line 21" in bench.refused("write", path="f.txt", content="x")
    bench.ok("edit", path="f.txt", edits=[{"old": "49", "new": "x"}])
    bench.ok("read", path="f.txt", offset=31)
    assert bench.call("write", path="f.txt", content="x").is_error
    bench.ok("read", path="f.txt", offset=1, limit=30)
    bench.ok("write", path="f.txt", content="x")


def test_a_line_that_was_clipped_was_not_read(bench: Bench) -> None:
    long = "x" * 3000
    bench.put("f.txt", f"a\n{long}\nb\n")
    assert "not shown" in bench.ok("read", path="f.txt")
    assert "line 2" in bench.refused("write", path="f.txt", content="a\nb\n")
    bench.ok("edit", path="f.txt", edits=[{"old": long, "new": "y"}])
    bench.refused("write", path="f.txt", content="a\nb\n")
    bench.ok("read", path="f.txt")
    bench.ok("write", path="f.txt", content="a\nb\n")


def test_edits_keep_a_read_file_known_and_do_not_make_an_unread_one_known(bench: Bench) -> None:
    bench.put("known.txt", "a\n")
    bench.put("unknown.txt", "a\nb\n")
    bench.ok("read", path="known.txt")
    for name in ("known.txt", "unknown.txt"):
        bench.ok("edit", path=name, edits=[{"old": "a", "new": "A"}])
    bench.ok("write", path="known.txt", content="c\n")
    bench.refused("write", path="unknown.txt", content="c\n")


def test_replacing_keeps_mark_encoding_mode_and_link(bench: Bench) -> None:
    bench.put("a.txt", "\ufeffalt\n".encode("utf-16-be"), 0o640)
    (bench.root / "link").symlink_to("a.txt")
    bench.ok("read", path="link")
    bench.ok("write", path="link", content="\ufeffnéu\n")
    assert bench.get("a.txt") == "\ufeffnéu\n".encode("utf-16-be")
    assert (bench.root / "link").is_symlink() and (bench.root / "a.txt").stat().st_mode & 0o777 == 0o640


def test_folders_read_only_files_and_placeholders_are_refused(bench: Bench) -> None:
    bench.put("d/a.py", "def f(): pass\ndef g(): pass\n")
    bench.put("ro.txt", "x\n", 0o444)
    bench.ok("read", path="d/a.py")
    bench.ok("read", path="ro.txt")
    bench.refused("write", path="d", content="x")
    bench.refused("write", path="new/", content="x")
    bench.refused("write", path="ro.txt", content="y")
    bench.refused("write", path="d/a.py", content="def f(): pass\n# ... rest of the file ...\n")
    bench.refused("write", path="d/a.py/x", content="x")


# ------------------------------------------------------------------------------------------------- patch
def test_a_patch_adds_updates_moves_and_deletes_at_once(bench: Bench) -> None:
    bench.put("a.txt", "one\r\ntwo\r\nthree\r\n")
    bench.put("run.sh", "x\ny\n", 0o755)
    bench.put("b.txt", "bye\n")
    result = bench.call(
        "patch",
        patch=envelope(
            "*** Add File: d/new.txt",
            "+fresh",
            "+",
            "*** Update File: a.txt",
            "@@",
            " one",
            "-two",
            "+2",
            "+2b",
            " three",
            "*** Update File: run.sh",
            "*** Move to: d/run.sh",
            "@@",
            "-x",
            "+X",
            "*** Delete File: b.txt",
        ),
    )
    assert not result.is_error
    assert bench.get("d/new.txt") == b"fresh\n\n" and bench.get("a.txt") == b"one\r\n2\r\n2b\r\nthree\r\n"
    assert bench.get("d/run.sh") == b"X\ny\n" and (bench.root / "d/run.sh").stat().st_mode & 0o777 == 0o755
    assert not (bench.root / "b.txt").exists() and not (bench.root / "run.sh").exists()
    assert len(result.changes) == 5


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("*** Frobnicate File: a.txt", "+x"),
        ("*** Update File: a.txt", "@@", "-nowhere", "+x"),
        ("*** Update File: a.txt", "@@", " one", "-nowhere", "+x"),
        ("*** Update File: missing.txt", "@@", "-one", "+x"),
        ("*** Update File: a.txt",),
        ("*** Update File: a.txt", "@@"),
        ("*** Update File: a.txt", "@@", " one"),
        ("*** Update File: a.txt", "@@", "one"),
        ("*** Delete File: missing.txt",),
        ("*** Delete File: d",),
        ("*** Add File: b.txt", "+x"),
        ("*** Add File: d", "+x"),
        ("*** Add File: n.txt", "x"),
        ("*** Update File: a.txt", "*** Move to: b.txt", "@@", "-one", "+1"),
        ("*** Update File: a.txt", "*** Move to: d", "@@", "-one", "+1"),
        ("*** Update File: a.txt", "@@", "-one", "+1", "*** Update File: a.txt", "@@", "-two", "+2"),
        ("*** Add File: n.txt", "+x", "*** Add File: n.txt", "+y"),
        ("*** Update File: a.txt", "@@ nowhere", "-two", "+2"),
        ("*** Update File: twice.txt", "@@", "-x", "+y"),
        ("*** Add File: a.txt/n", "+x"),
        ("*** Delete File: fixed.txt",),
        ("*** Update File: bin.dat", "@@", "-a", "+b"),
        ("*** Update File: a.txt", "@@", "-two", "+2", "@@", "-one", "+1"),
    ],
)
def test_a_bad_patch_changes_nothing(bench: Bench, lines: tuple[str, ...]) -> None:
    bench.put("a.txt", "one\ntwo\nthree\n")
    bench.put("b.txt", "b\n")
    bench.put("twice.txt", "x\nx\n")
    bench.put("fixed.txt", "x\n", 0o444)
    bench.put("bin.dat", b"\x00a\n")
    bench.put("d/keep.txt", "keep\n")
    before = snapshot(bench.root)
    good = ("*** Update File: b.txt", "@@", "-b", "+B", "*** Add File: e/new.txt", "+x") if lines else ()
    bench.refused("patch", patch=envelope(*good, *lines))
    bench.refused("patch", patch=envelope(*lines, *good))
    assert snapshot(bench.root) == before


@pytest.mark.parametrize(
    "text", ["", "garbage", "*** Begin Patch\n*** Add File: x\n+x\n", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"]
)
def test_a_text_that_is_no_whole_envelope_is_refused(bench: Bench, text: str) -> None:
    assert "*** " in bench.refused("patch", patch=text)


def test_hunks_find_their_place_below_an_anchor_in_order_and_at_the_end(bench: Bench) -> None:
    bench.put("m.py", "def a():\n    x = 1\n\ndef b():\n    x = 1\n\nlast")
    bench.ok(
        "patch",
        patch=envelope("*** Update File: m.py", "@@ def b():", "-    x = 1", "+    x = 2", "@@", "-last", "+LAST"),
    )
    assert bench.get("m.py") == b"def a():\n    x = 1\n\ndef b():\n    x = 2\n\nLAST"
    bench.ok("patch", patch=envelope("*** Update File: m.py", "@@", "+tail", "*** End of File"))
    assert bench.get("m.py").endswith(b"\nLAST\ntail")
    bench.ok(
        "patch", patch=envelope("  *** Update File: m.py  ", "@@ -1,2 +1,2 @@", " def a():", "-    x = 1", "+    x = 3")
    )
    assert bench.get("m.py").startswith(b"def a():\n    x = 3\n")


def test_context_lines_may_look_like_headers(bench: Bench) -> None:
    bench.put("doc.md", "*** Add File: x\nold\n")
    bench.ok("patch", patch=envelope("*** Update File: doc.md", "@@", " *** Add File: x", "-old", "+*** End Patch"))
    assert bench.get("doc.md") == b"*** Add File: x\n*** End Patch\n"


def test_a_failure_half_way_restores_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"a")
    b.write_bytes(b"b")
    new = tmp_path / "deep/er/new"
    real = os.replace

    def failing(old: str, new: str, **folders: int) -> None:
        if new == "b" and (tmp_path / old).read_bytes() == b"B":
            raise OSError(28, "No space left on device")
        real(old, new, **folders)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        apply_changes([FileChange(a, b"a", b"A"), FileChange(new, None, b"n"), FileChange(b, b"b", b"B")])
    assert snapshot(tmp_path) == {"a": b"a", "b": b"b"}


def test_a_file_is_replaced_in_one_step_after_its_bytes_are_on_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bench.put("f.txt", "old\n" * 1000)
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        steps.append("sync")
        sync(descriptor)

    def noted_replace(old: str, new: str, **folders: int) -> None:
        assert new == path.name and path.read_bytes() == b"old\n" * 1000
        steps.append("rename")
        replace(old, new, **folders)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    with path.open("rb") as reader:
        assert not bench.edit("f.txt", ("old", "new"), replace_all=True).is_error
        assert reader.read() == b"old\n" * 1000  # who had it open sees the old bytes, whole
    assert steps[:2] == ["sync", "rename"] and path.read_bytes() == b"new\n" * 1000
    assert [p.name for p in bench.root.iterdir()] == ["f.txt"]


def test_bytes_that_changed_meanwhile_are_not_overwritten(tmp_path: Path) -> None:
    a = tmp_path / "a"
    a.write_bytes(b"newer")
    with pytest.raises(ToolError, match="changed"):
        apply_changes([FileChange(a, b"old", b"mine")])
    assert a.read_bytes() == b"newer"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "", "  c", "*** x", "+d", "-e"]), min_size=1, max_size=8), st.data())
def test_a_patch_of_one_line_changes_just_that_line(lines: list[str], data: st.DataObject) -> None:
    from pointcode_local.tools.filetext import decode
    from pointcode_local.tools.patch import _updated, parse_patch  # pyright: ignore[reportPrivateUsage]

    numbered = [f"{n}{line}" for n, line in enumerate(lines)]
    at = data.draw(st.integers(0, len(lines) - 1))
    hunk = [f"{'-' if n == at else ' '}{line}" for n, line in enumerate(numbered)]
    hunk.insert(at + 1, "+new")
    operation = parse_patch(envelope("*** Update File: f", "@@", *hunk))[0]
    after = _updated(operation, decode("".join(line + "\n" for line in numbered).encode()))
    assert after.decode().split("\n")[:-1] == [*numbered[:at], "new", *numbered[at + 1 :]]


@pytest.mark.parametrize("tool", ["write", "edit", "patch"])
def test_a_file_too_large_to_be_undone_is_refused_before_it_is_read(bench: Bench, tool: str) -> None:
    path = bench.put("huge.txt", "first\n")
    with path.open("ab") as file:
        file.truncate(1 << 40)
    arguments: dict[str, dict[str, Any]] = {
        "write": {"path": "huge.txt", "content": "x"},
        "edit": {"path": "huge.txt", "edits": [{"old": "first", "new": "second"}]},
        "patch": {"patch": "*** Begin Patch\n*** Update File: huge.txt\n@@\n-first\n+second\n*** End Patch"},
    }
    assert "too large" in bench.refused(tool, **arguments[tool])
    assert path.stat().st_size == 1 << 40


def test_a_hunk_may_name_several_lines_to_look_below_one_after_the_other(bench: Bench) -> None:
    f, g = (f"    def {name}(self):\n        pass\n" for name in "fg")
    text = f"class A:\n{f}\nclass B:\n{f}{g}"
    bench.put("a.py", text)
    lines = ["@@ class B:", "@@     def g(self):", "-        pass", "+        return 1"]
    bench.ok("patch", patch=envelope("*** Update File: a.py", *lines))
    assert bench.get("a.py").decode() == text[: -len("pass\n")] + "return 1\n"
    lines = [
        "@@ class A:",
        "@@ def f(self):",
        "-        pass",
        "+        return 2",
        "@@",
        "-        pass",
        "+        return 3",
    ]
    bench.ok("patch", patch=envelope("*** Update File: a.py", *lines))
    assert bench.get("a.py").decode().count("pass") == 0
    refused = bench.refused("patch", patch=envelope("*** Update File: a.py", "@@ class B:", "@@ class A:", "-x", "+y"))
    assert "class A:" in refused


def test_a_file_of_one_clipped_line_is_said_to_be_read_in_part(bench: Bench) -> None:
    bench.put("f.txt", "x" * 3000)
    bench.ok("read", path="f.txt")
    assert "only in part" in bench.refused("write", path="f.txt", content="a\n")

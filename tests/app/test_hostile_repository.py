"""A repository whose owner means harm: whatever lies where pointcode reads without being asked, a prompt is answered,
soon, and nothing from outside of the repository goes to the model."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pointcode_local.tools.regular import read_regular
from tests.app.forked import ForkedProgram
from tests.app.openai_server import Reply, tool
from tests.app.program import Program

SECRET = "outside-Zq7-secret"
READ_UNASKED = (
    *("AGENTS.md", ".gitignore", ".ignore", ".git/info/exclude", "sub/.gitignore", "sub/AGENTS.md", "note.md"),
    *(".pointcode/commands/x.md", "a.py", ".env"),
)
SETTINGS = ".pointcode/config.toml"


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path, outside: Path) -> None:
    before = os.getcwd()  # noqa: PTH109 - a socket's name may be 108 bytes long
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def endless_device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def link_outside(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def link_to_itself(path: Path, outside: Path) -> None:
    path.symlink_to(path.name)


def link_upwards(path: Path, outside: Path) -> None:
    path.symlink_to("..")


def huge(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 30)


def unreadable(path: Path, outside: Path) -> None:
    path.write_text(f"unreadable {path.name}")
    path.chmod(0)


def no_utf8(path: Path, outside: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x1b[2J\x9b\xc3(" * 40)


KINDS: tuple[Callable[[Path, Path], None], ...] = (
    *(pipe, unix_socket, folder, endless_device, link_outside, link_to_itself, link_upwards, huge, unreadable, no_utf8),
)


@pytest.fixture
def program(forked: ForkedProgram) -> Program:
    return forked


def lay(program: Program, names: tuple[str, ...], kind: Callable[[Path, Path], None]) -> None:
    outside = program.ws.parent / "outside.txt"
    outside.write_text(f"{SECRET}\n*\n")
    for name in names:
        path = program.ws / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind(path, outside)
    for n in range(8):
        (program.ws / f"module{n}.py").write_text(f"def needle{n}(): pass\n")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_whatever_lies_where_files_are_read_unasked_a_prompt_is_answered(
    program: Program, kind: Callable[[Path, Path], None]
) -> None:
    lay(program, READ_UNASKED, kind)
    calls = (
        tool("list", depth=3),
        tool("grep", pattern="needle3"),
        tool("glob", pattern="**/*.py"),
        tool("read", path="a.py"),
        tool("outline", path="a.py"),
        tool("write", path="a.py", content="x\n"),
    )
    result, done, server = program.ask(*calls, Reply("done"), prompt="Look at @note.md, @sub and @.")
    assert result["result"] == "done" and done.returncode in (0, 3), done.stderr  # 3: it leads outside
    assert b"Traceback" not in done.stderr
    sent = json.dumps([request["messages"] for request in server.requests])
    assert SECRET not in sent
    found = {made["name"]: made["text"] for made in result["tool_calls"]}
    assert "module3.py" in found["grep"] and "module3.py" in found["glob"]
    assert (program.ws.parent / "outside.txt").read_text().startswith(SECRET)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_whatever_lies_in_the_place_of_the_settings_ends_soon(
    program: Program, kind: Callable[[Path, Path], None]
) -> None:
    lay(program, (SETTINGS,), kind)
    result, done, _ = program.ask(Reply("done"))
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr and SECRET.encode() not in done.stderr + done.stdout
    assert done.returncode == 2 or result["result"] == "done"


def test_names_of_files_cannot_work_on_a_terminal_or_look_like_several(program: Program) -> None:
    names = (
        b"a\x1b]0;owned\x07.py",
        b"b\nmodule9.py",
        b"c\xff\x9b.py",
        "d\u202eyp.txt".encode(),
        b"e\x00"[:1] + b"\r.py",
    )
    for name in names:
        Path(os.fsdecode(os.fsencode(program.ws) + b"/" + name)).write_bytes(b"def needle(): pass\n")
    calls = [
        tool("list"),
        tool("glob", pattern="**/*"),
        tool("grep", pattern="needle"),
        tool("shell", command="ls"),
    ]
    result, done, server = program.ask(*calls, Reply("done"), prompt="See @.")
    assert result["result"] == "done", done.stderr
    for made in result["tool_calls"][:3]:
        assert not any(c in made["text"] for c in "\x1b\x07\r\x9b\u202e"), made
        assert "module9.py" not in made["text"].splitlines()
    assert b"\x1b" not in done.stdout + done.stderr
    assert "\\u001b" not in json.dumps(server.requests[0]["messages"])


def test_only_a_regular_file_is_read_and_only_as_far_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path) == b"0123456789"
    assert read_regular(str(path), 4) == b"0123"
    for kind in (pipe, unix_socket, folder, endless_device, link_to_itself, link_upwards):
        kind(tmp_path / kind.__name__, path)
        with pytest.raises(OSError):
            read_regular(tmp_path / kind.__name__, 4)

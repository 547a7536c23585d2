"""The official TypeScript SDK drives a whole session. POINTCODE_ACP_NODE names a folder where `npm ci` was run with
`tests/acp_node/package.json`; `.ci/run` makes one where Node and the registry are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.app.openai_server import Reply, ScriptedServer, Step, tool
from tests.app.program import ROOT, Program

pytestmark = pytest.mark.acp_node
SCRIPTS = ("session.mjs", "checker.mjs")


@pytest.fixture
def node_folder(tmp_path: Path) -> Path:
    installed = os.environ.get("POINTCODE_ACP_NODE", "")
    if not installed or not (Path(installed) / "node_modules").is_dir():
        pytest.skip("POINTCODE_ACP_NODE names no folder with node_modules")
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "node_modules").symlink_to(Path(installed) / "node_modules")
    for name in (*SCRIPTS, "package.json"):
        shutil.copy(ROOT / "tests/acp_node" / name, folder)
    return folder


def test_the_official_sdk_plays_a_whole_session(node_folder: Path, tmp_path: Path):
    program = Program(tmp_path)
    (program.ws / "a.txt").write_text("one\n")
    steps: list[Step] = [
        tool("read", path="a.txt"),
        tool("edit", path="a.txt", edits=[{"old": "one", "new": "1"}]),
        Reply("Edited."),
        tool("shell", command="echo from the terminal > out; cat out"),
        Reply("It ran."),
        Reply("Waiting.", hold=threading.Event()),
        Reply("Loaded."),
    ]
    with ScriptedServer(steps) as server:
        agent = [sys.executable, "-P", "-m", "pointcode_local", "acp", "--endpoint", server.url]
        done = subprocess.run(
            ["node", "session.mjs", str(program.ws), *agent],
            cwd=node_folder, env=program.env, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = done.stdout.splitlines()
    assert said[:-1] == [
        "ok new", "ok prompt with edit and permission", "ok command in a terminal", "ok cancel", "ok malformed input",
        "ok list and load",
    ]  # fmt: skip
    assert said[-1].endswith("messages are valid")

"""Commands end with the program, also when nothing of it can run any more."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointcode_local.events import ToolProgress
from pointcode_local.tools.own_process import PACKAGE_PARENT
from pointcode_local.tools.processes import Process, start
from pointcode_local.tools.reaper import Reaper
from pointcode_local.usershell import run_user_shell
from tests.processes import ends

from .tool_kit import Bench

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="waits for processes that are no children, and finds marks in /proc: Linux"
)
STAYS = "sh -c 'echo $$; exec sleep 600'"
LEAVES = f"setsid {STAYS} & setsid -f {STAYS}; env -i PATH=$PATH setsid {STAYS} & echo $$; exec sleep 600"
PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {parent!r})
from pointcode_local.tools.base import ToolContext
from pointcode_local.tools.registry import build_tools
from pointcode_local.tools.workspace import Workspace
from pointcode_local.usershell import run_user_shell
from pointcode_local.events import ToolProgress

async def by_the_model(background):
    tools = {{tool.name: tool for tool in build_tools().tools}}
    context = ToolContext(Workspace(Path({root!r})), on_output=lambda text: print(text, end="", flush=True))
    arguments = {{"command": {command!r}, "background": background}}
    await tools["shell"].run(context, arguments)
    await asyncio.Event().wait()

async def by_the_person():
    async for event in run_user_shell({command!r}, Path({root!r}), "c"):
        if isinstance(event, ToolProgress):
            print(event.text, end="", flush=True)

asyncio.run({how})
"""


@pytest.fixture
def reaper() -> Iterator[Reaper]:
    with Reaper() as reaper:
        yield reaper


@pytest.mark.parametrize(
    ("how", "command", "n_told"),
    [
        ("by_the_model(False)", LEAVES, 4),
        ("by_the_model(True)", LEAVES, 4),
        ("by_the_person()", "sleep 600 & echo $!; echo $$; exec sleep 600", 2),
    ],
)
def test_a_command_ends_with_all_it_started_when_the_program_is_killed(
    tmp_path: Path, how: str, command: str, n_told: int
) -> None:
    script = PROGRAM.format(parent=PACKAGE_PARENT, root=str(tmp_path), command=command, how=how)
    with subprocess.Popen([sys.executable, "-I", "-c", script], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(program.stdout.readline()) for _ in range(n_told)]
        program.send_signal(signal.SIGKILL)
    assert [pid for pid in pids if not ends(pid)] == []


def test_what_a_command_of_the_person_leaves_in_the_background_goes_on(tmp_path: Path) -> None:
    async def main() -> int:
        said = ""
        async for event in run_user_shell("sleep 600 >/dev/null 2>&1 & echo $!", tmp_path, "c"):
            said += event.text if isinstance(event, ToolProgress) else ""
        return int(said)

    pid = asyncio.run(main())
    os.kill(pid, signal.SIGKILL)  # raises when there is none
    assert ends(pid)


def test_closing_ends_what_left_its_group_long_ago(bench: Bench) -> None:
    async def main() -> int:
        return int((await bench.acall("shell", command="setsid -f sh -c 'echo $$; exec sleep 600'")).text)

    pid = asyncio.run(main())
    bench.box.close()
    assert ends(pid)


def test_a_group_whose_number_went_to_somebody_else_is_not_signalled(
    tmp_path: Path, reaper: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(taken: int) -> None:
        process = start(["/bin/true"], tmp_path, dict(os.environ), 1, reaper, lambda _: None)
        await process.exited
        monkeypatch.setattr(Process, "pid", taken)
        await process.kill()
        process.kill_now()

    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        asyncio.run(main(other.pid))
        assert other.poll() is None
        other.terminate()
        assert other.wait() == -signal.SIGTERM


def test_a_reaper_that_was_killed_is_replaced_with_the_next_command(tmp_path: Path, reaper: Reaper) -> None:
    async def main() -> int:
        first = start(["sleep", "600"], tmp_path, dict(os.environ), 1, reaper, lambda _: None)
        helper = reaper._helper  # pyright: ignore[reportPrivateUsage]
        assert helper is not None
        helper.kill()
        helper.wait()
        start(["/bin/true"], tmp_path, dict(os.environ), 2, reaper, lambda _: None)
        reaper.close()
        return await first.exited

    assert asyncio.run(main()) == -signal.SIGKILL

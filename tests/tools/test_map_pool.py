"""Tags made by several processes: the same as by one, whatever becomes of those processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pointcode_local.tools import map_pool
from pointcode_local.tools.map_pool import BATCH, tagged
from pointcode_local.tools.map_tagger import Record
from pointcode_local.tools.own_process import PACKAGE_PARENT, own_command

N_FILES = 3 * BATCH + 1


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    for i in range(N_FILES - 3):
        (tmp_path / f"use{i}.py").write_text(f"from core import Store\ndef user_{i}():\n    return Store().put({i})\n")
    (tmp_path / "é\n.go").write_text('package a\nfunc F(s string) string { return "é" }\n')
    (tmp_path / os.fsdecode(b"no-\xff-text.rs")).write_text("fn a() {}\n")
    return [*sorted(os.listdir(tmp_path)), "gone.py"]  # noqa: PTH208 - names


def in_this_process(root: Path, names: list[str]) -> dict[str, Record]:
    return dict(tagged(root, names, n_processes=1))


class Started:
    """The processes that were started for tags."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[subprocess.Popen[bytes]] = []
        start = map_pool._start  # pyright: ignore[reportPrivateUsage]

        def remembered(root: Path) -> subprocess.Popen[bytes]:
            self.all.append(start(root))
            return self.all[-1]

        monkeypatch.setattr(map_pool, "_start", remembered)


def test_processes_say_the_same_of_files_as_this_one(tmp_path: Path, names: list[str]) -> None:
    found = dict(tagged(tmp_path, names, n_processes=3, parallel_from=1))
    assert found == in_this_process(tmp_path, names)
    assert set(found) == set(names) and found["gone.py"] == ([], "")
    assert [tag.name for tag in found["é\n.go"][0]] == ["F"]


DEATHS = {
    "at once": "",
    "when asked": "sys.stdin.readline()",
    "within its answer": "sys.stdin.readline(); print('[[', end='', flush=True)",
    "by a signal": "import os; sys.stdin.readline(); os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("n_healthy", [0, 1])
def test_files_of_a_process_that_dies_are_tagged_all_the_same(
    tmp_path: Path, names: list[str], death: str, n_healthy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [own_command("map_tagger", str(tmp_path))] * n_healthy
    commands += [[sys.executable, "-I", "-c", f"import sys; {DEATHS[death]}"]] * 2
    monkeypatch.setattr(map_pool, "own_command", lambda *_: commands.pop())  # pyright: ignore[reportUnknownLambdaType]
    found = dict(tagged(tmp_path, names, n_processes=2 + n_healthy, parallel_from=1))
    assert found == in_this_process(tmp_path, names)


def test_without_room_for_a_process_files_are_tagged_here(
    tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_pool, "own_command", lambda *_: [str(tmp_path / "nothing")])  # pyright: ignore[reportUnknownLambdaType]
    assert len(dict(tagged(tmp_path, names, n_processes=2, parallel_from=1))) == N_FILES


@pytest.mark.parametrize("n_taken", [1, N_FILES])
def test_no_process_is_left_when_the_iterator_is_closed_or_at_its_end(
    tmp_path: Path, names: list[str], n_taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch)
    iterator = tagged(tmp_path, names, n_processes=2, parallel_from=1)
    for _ in range(n_taken):
        next(iterator)
    iterator.close()
    assert [process.returncode for process in started.all] != [] and None not in [p.returncode for p in started.all]


def test_few_files_start_no_process(tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    assert len(dict(tagged(tmp_path, names))) == N_FILES
    assert started.all == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes that are no children: Linux")
def test_processes_end_when_the_one_that_asked_is_killed(tmp_path: Path, names: list[str]) -> None:
    script = (
        f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r})\n"
        "from pathlib import Path\n"
        "from pointcode_local.tools import map_pool\n"
        "start = map_pool._start\n"
        "def told(root):\n"
        "    process = start(root); print(process.pid, flush=True); return process\n"
        "map_pool._start = told\n"
        f"found = map_pool.tagged(Path({str(tmp_path)!r}), {names!r}, n_processes=2, parallel_from=1)\n"
        "next(found); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        waits = [os.pidfd_open(int(asking.stdout.readline())) for _ in range(2)]
        asking.send_signal(signal.SIGKILL)
        asking.wait()
    for wait in waits:
        assert select.select([wait], [], [], 20)[0], "it still runs"
        os.close(wait)

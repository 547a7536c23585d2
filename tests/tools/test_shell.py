"""Commands: how they are started, what is shown, how they end."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pointcode_local.tools.base import ToolContext
from pointcode_local.tools.environment import command_environment
from pointcode_local.tools.output import KeptOutput, LiveOutput
from pointcode_local.tools.redact import secret_values
from pointcode_local.tools.sandbox import default_policy, sandbox_status
from pointcode_local.tools.shell import Jobs, ShellOutputTool, ShellTool
from pointcode_local.tools.workspace import Workspace
from tests.fakes import FakeClock

from .tool_kit import Bench

UNTIL_KILLED = "while :; do date +%s%N >> beat; sleep 0.02; done"


def test_output_exit_code_and_signals_are_told(bench: Bench) -> None:
    assert bench.ok("shell", command="echo out; echo err >&2") == "out\nerr\n"
    assert bench.ok("shell", command="true") == "[no output]"
    assert bench.refused("shell", command="echo out; exit 7") == "out\n[exit code 7]"
    assert "signal 9" in bench.refused("shell", command="kill -9 $$")
    assert "127" in bench.refused("shell", command="no-such-command-here")
    assert "exit code 2" in bench.refused("shell", command="echo 'open")
    assert "empty" in bench.refused("shell", command="  ")
    assert bench.call("shell", command="a\x00b").is_error


def test_a_command_that_begins_with_a_dash_is_a_command(bench: Bench) -> None:
    assert "not found" in bench.refused("shell", command="-x")


def test_a_child_that_holds_the_pipe_does_not_hold_the_tool(bench: Bench) -> None:
    async def main() -> float:
        start = time.monotonic()
        result = await bench.acall("shell", command="echo first; (sleep 30; echo late) &", timeout_s=20)
        assert result.text == "first\n"
        return time.monotonic() - start

    assert asyncio.run(main()) < 10


def test_nothing_waits_for_a_terminal(bench: Bench) -> None:
    assert bench.ok("shell", command='read x; echo "[$x]"; cat; test -t 0 || test -t 1 || echo plain') == "[]\nplain\n"
    assert "cat" in bench.ok("shell", command="echo $PAGER $GIT_PAGER $TERM")
    assert bench.call("shell", command="$EDITOR file").is_error
    assert bench.call("shell", command="cat < /dev/tty").is_error


def test_a_timeout_ends_the_whole_group_and_keeps_what_was_said(bench: Bench) -> None:
    text = bench.refused(
        "shell", command=f"trap '' TERM; echo started; setsid sh -c '{UNTIL_KILLED}' & sleep 60", timeout_s=1
    )
    assert text.startswith("started\n") and "timed out after 1 s" in text
    assert is_still(bench.root / "beat")


def is_still(path: Path) -> bool:
    """No process writes to the file any more: its size is the same after many of the writer's beats."""
    size = path.stat().st_size if path.exists() else 0
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        os.sched_yield()
    return (path.stat().st_size if path.exists() else 0) == size


def test_cancelling_ends_everything_the_command_started(bench: Bench) -> None:
    async def main() -> None:
        task = asyncio.create_task(
            bench.acall(
                "shell", command=f"echo partial; trap '' TERM INT; setsid sh -c '{UNTIL_KILLED}' & {UNTIL_KILLED}"
            )
        )
        while not (bench.root / "beat").exists() or not bench.heard:  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert "partial\n" in bench.heard and is_still(bench.root / "beat")


AWAY = f"env -i $(command -v setsid) $(command -v sh) -c '{UNTIL_KILLED}'"


def test_a_timeout_ends_what_left_both_the_group_and_its_environment(bench: Bench) -> None:
    bench.refused("shell", command=f"export PATH; {AWAY} & sleep 60", timeout_s=2)
    assert (bench.root / "beat").exists() and is_still(bench.root / "beat")


def test_the_end_of_the_session_ends_it_too(bench: Bench) -> None:
    async def main() -> None:
        await bench.acall("shell", command=f"{AWAY} & sleep 60", background=True)
        while not (bench.root / "beat").exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.005)
        bench.box.close()

    asyncio.run(main())
    assert is_still(bench.root / "beat")


def test_a_background_job_is_started_asked_and_killed(bench: Bench) -> None:
    async def main() -> None:
        started = await bench.acall("shell", command=f"echo hello; {UNTIL_KILLED}", background=True)
        assert "job-1" in started.text and bench.box.jobs.n_running == 1
        said = ""
        while "hello" not in said:
            said = (await bench.acall("shell_output", id="job-1")).text
        assert "still running" in said
        assert "hello" not in (await bench.acall("shell_output", id="1")).text
        assert "ended" in (await bench.acall("shell_kill", id="job-1")).text and bench.box.jobs.n_running == 0
        assert "SIGTERM" not in (await bench.acall("shell_output", id="job-1")).text
        assert "had ended before" in (await bench.acall("shell_kill", id="job-1")).text
        assert "no background job" in (await bench.acall("shell_output", id="9")).text

    asyncio.run(main())
    assert is_still(bench.root / "beat")


def test_running_jobs_tell_their_age_and_last_line_and_stop_with_all_they_started(bench: Bench) -> None:
    async def main() -> None:
        clock = [100.0]
        jobs = Jobs(clock=lambda: clock[0])
        job = await jobs.start(
            bench.context, f"printf 'one\\ntwo\\n\\npart'; trap '' TERM; setsid sh -c '{UNTIL_KILLED}' & wait"
        )
        jobs.keep(job)
        clock[0] += 75
        while not (bench.root / "beat").exists() or job.last_line() != "two":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        assert [(each.id, jobs.age_s(each)) for each in jobs.running()] == [("job-1", 75.0)]
        assert await jobs.stop(job)
        await job.process.exited
        assert jobs.running() == () and not await jobs.stop(job)

    asyncio.run(main())
    assert is_still(bench.root / "beat")


def test_commands_side_by_side_do_not_mix(bench: Bench) -> None:
    async def main() -> list[str]:
        commands = (bench.acall("shell", command=f"for i in 1 2 3; do echo {name}; done") for name in "abc")
        return [result.text for result in await asyncio.gather(*commands)]

    assert asyncio.run(main()) == ["a\n" * 3, "b\n" * 3, "c\n" * 3]


def test_long_output_keeps_head_and_tail_and_the_log_has_all(bench: Bench) -> None:
    text = bench.ok("shell", command="seq 1 200000")
    assert text.startswith("1\n2\n") and text.endswith("\n199999\n200000\n") and len(text) < 30_000
    log = next(iter(bench.workspace.log_folder.iterdir()))
    assert str(log) in text and log.read_text() == "".join(f"{n}\n" for n in range(1, 200_001))
    assert bench.ok("read", path=str(log), offset=-1).startswith("200000\t200000\n")
    bench.workspace.close()
    assert not log.exists()


def test_the_kept_output_is_whole_as_long_as_it_fits(tmp_path: Path) -> None:
    for size in (0, 1, 50, 99, 100, 101, 150, 1000):
        kept = KeptOutput(tmp_path / f"log-{size}", head_chars=50, tail_chars=50)
        for n in range(size):
            kept.add(chr(97 + n % 26))
        whole = "".join(chr(97 + n % 26) for n in range(size))
        assert (kept.text() == whole) == (size <= 100)
        assert size <= 100 or (tmp_path / f"log-{size}").read_text() == whole
        kept.close()


def test_live_output_of_a_noisy_command_is_thinned_out() -> None:
    out: list[str] = []
    live = LiveOutput(out.append, lambda: 1000.0)
    for n in range(100_000):
        live.add(f"row {n}\n")
    assert sum(map(len, out)) < 80_000 and out[0] == "row 0\n"


# ------------------------------------------------------------------------------------------------- environment
def test_commands_get_the_persons_environment_and_the_workspace(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        {"PATH": os.environ["PATH"], "OWN": "mine é", "POINTCODE_API_KEY": "sk-1", "HOME": "/h", "LANG": "C.UTF-8"},
    )
    text = bench.ok("shell", command='echo "$OWN|$HOME|$PATH|$POINTCODE_API_KEY|$PYTHONPATH"; pwd')
    assert text == f"mine é|/h|{os.environ['PATH']}||\n{tmp_path}\n"


def test_our_own_virtual_environment_is_left_and_another_is_kept(tmp_path: Path) -> None:
    package = str(Path(__file__).parents[2])
    ours = {
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{sys.prefix}/bin:/bin",
        "PYTHONPATH": f"{package}:/other",
        "PYTHONHOME": "/x",
    }
    left = command_environment(ours, tmp_path)
    assert (
        left["PATH"] == "/bin"
        and "VIRTUAL_ENV" not in left
        and left["PYTHONPATH"] == "/other"
        and "PYTHONHOME" not in left
    )
    theirs = {"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": f"{tmp_path}/venv/bin:/bin"}
    kept = command_environment(theirs, tmp_path)
    assert kept["VIRTUAL_ENV"] == theirs["VIRTUAL_ENV"] and kept["PATH"] == theirs["PATH"]


def test_the_workspaces_env_file_is_not_in_the_environment_and_its_values_are_blanked(bench: Bench) -> None:
    bench.put(".env", "LEAK_ME=S3cretValue99\nMODE=development\nPORT=3000\n")
    assert bench.ok("shell", command='echo "[$LEAK_ME]"') == "[]\n"
    text = bench.ok("shell", command="cat .e*; tac .env | rev | rev")
    assert "S3cretValue99" not in text + "".join(bench.heard) and "development" in text and "3000" in text
    bench.context = replace(bench.context, reveal=True)
    assert "S3cretValue99" in bench.ok("shell", command="cat .env")


def test_secrets_of_the_environment_are_blanked_in_what_commands_say(tmp_path: Path) -> None:
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "API_KEY": "abcdef123456789",
        "DB_PASSWORD": "https://u:pass12345word@host/x",
        "KEY_FILE": "/etc/key12345678",
        "MONKEYS": "not1secret2at3all",
        "SECRET_PATH": "/srv/secret12345",
        "TOKEN": "short1",
    }
    bench = Bench(tmp_path, environment)
    said = bench.ok("shell", command='echo "$API_KEY|$DB_PASSWORD|$KEY_FILE|$MONKEYS|$SECRET_PATH|$TOKEN"')
    blanked = "https://u:[secret]@host/x"
    assert said == f"[secret]|{blanked}|/etc/key12345678|not1secret2at3all|/srv/secret12345|short1\n"
    bench.box.close()


def test_a_background_command_tells_how_long_it_runs_so_that_waiting_for_it_is_no_circle(tmp_path: Path) -> None:
    clock = FakeClock()
    jobs = Jobs(clock=clock)
    context = ToolContext(Workspace(tmp_path))

    async def main() -> None:
        await ShellTool(jobs).run(context, {"command": "sleep 300", "background": True})
        said: list[str] = []
        for _ in range(2):
            clock.now_s += 30
            said.append((await ShellOutputTool(jobs).run(context, {"id": "1"})).text)
        assert said == ["[still running, after 30 s]", "[still running, after 60 s]"]

    asyncio.run(main())
    jobs.close()


def test_secret_values_are_long_runs_of_letters_and_digits() -> None:
    text = 'A=abc\nURL="postgres://me:p4ssw0rdp4ss@host:5432/db"\nexport T=tok_0123456789\nNODE_ENV=development\n'
    assert secret_values(text) == {"p4ssw0rdp4ss", "tok_0123456789"}


# ------------------------------------------------------------------------------------------------- sandbox
needs_sandbox = pytest.mark.skipif(sandbox_status().kind == "none", reason="no sandbox on this system")


@needs_sandbox
def test_a_confined_command_writes_in_the_workspace_and_nowhere_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = Path("/var/tmp") / f"pointcode-test-{os.getpid()}"  # not a temporary folder for the sandbox
    (outside / "ws").mkdir(parents=True)
    bench = Bench(outside / "ws")
    try:
        bench.context = replace(bench.context, sandbox=default_policy(bench.workspace.root))
        text = bench.refused(
            "shell", command="echo in > in.txt && cat in.txt && mkdir -p d && mv in.txt d/ && echo x > ../out.txt"
        )
        assert text.startswith("in\n") and "sandbox" in text
        for attempt in (
            "rm -rf ../keep",
            "ln in.txt ../hard",
            "mv d ../moved",
            "touch ~/pointcode-escape",
            ": > /etc/hostname",
        ):
            bench.call("shell", command=attempt)
        assert (
            sorted(p.name for p in outside.iterdir()) == ["ws"] and not Path("~/pointcode-escape").expanduser().exists()
        )
        assert bench.ok("shell", command="echo x > /dev/null; t=$(mktemp); echo y > $t; cat $t; rm $t") == "y\n"
    finally:
        bench.box.close()
        bench.workspace.close()
        for path in sorted(outside.rglob("*"), reverse=True):
            path.unlink() if not path.is_dir() else path.rmdir()
        outside.rmdir()


@needs_sandbox
@pytest.mark.skipif(not sandbox_status().blocks_network, reason="this kernel cannot close the network")
def test_a_confined_command_cannot_reach_the_network(bench: Bench) -> None:
    import socket

    bench.context = replace(bench.context, sandbox=default_policy(bench.workspace.root))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        bench.refused("shell", command=f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_status_says_what_there_is_and_what_there_is_not() -> None:
    status = sandbox_status()
    assert "sandbox" in status.text
    assert (status.kind == "none") == ("NOT confined" in status.text)

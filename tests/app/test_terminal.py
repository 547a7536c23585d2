"""Rough treatment of the real program on a pseudo-terminal: sizes, signals, a folder and a terminal that go away."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable

import pytest
from textual.app import App

from pointcode_local.tui.driver import TerminalDriver
from tests.app.openai_server import Reply, ScriptedServer, tool
from tests.app.program import Program
from tests.app.pty_program import LEFT_ALTERNATE_SCREEN, PtyProgram, has_stopped, session_of
from tests.processes import ends

CTRL_C, CTRL_D, CTRL_Z, ENTER, ESCAPE = "\x03", "\x04", "\x1a", "\r", "\x1b"
READY = "context"  # the status line once the model is open


def test_a_storm_of_sizes_leaves_a_whole_screen_and_a_clean_end(program: Program) -> None:
    dice = random.Random(3)
    answer = Reply("**Hello** there.\n\n- one\n- two")
    with ScriptedServer([answer]) as server, PtyProgram(program, "--endpoint", server.url) as terminal:
        terminal.wait_for(READY)
        terminal.send("hi" + ENTER)
        for _ in range(80):
            terminal.resize(dice.choice((1, 2, 7, 20, 40, 80, 200)), dice.choice((1, 2, 5, 24, 60)))
            terminal.read_more(0.0)
        for columns in itertools.cycle((90, 91)):  # a streamed answer is drawn in pieces, after a new size in one
            terminal.resize(columns, 30)
            for _ in range(20):
                terminal.read_more()
            assert terminal.process.poll() is None
            if "there." in terminal.text:
                break
        terminal.forget()
        terminal.resize(92, 30)
        terminal.wait_for("mode ask")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
        terminal.check_restored()


def test_a_hang_up_ends_it_with_everything_kept(program: Program) -> None:
    with ScriptedServer([Reply("An answer.")]) as server, PtyProgram(program, "--endpoint", server.url) as terminal:
        terminal.wait_for(READY)
        terminal.send("remember" + ENTER)
        terminal.wait_for("An answer.")
        os.kill(terminal.process.pid, signal.SIGHUP)
        assert terminal.wait() == 128 + signal.SIGHUP
        terminal.check_restored()
    assert "remember" in session_of(program) and "An answer." in session_of(program)


def test_a_signal_while_the_model_writes_ends_it_without_a_word_of_python(program: Program) -> None:
    hold = threading.Event()
    with ScriptedServer([Reply("some words", hold=hold)]) as server:
        with PtyProgram(program, "--endpoint", server.url) as terminal:
            terminal.wait_for(READY)
            terminal.send("go" + ENTER)
            terminal.wait_for("some")
            os.kill(terminal.process.pid, signal.SIGTERM)
            assert terminal.wait() == 128 + signal.SIGTERM
            terminal.check_restored()
        hold.set()
    assert "Warning" not in terminal.text


def test_the_windows_title_tells_who_waits_and_is_given_back(program: Program) -> None:
    steps = [tool("shell", command="touch made"), Reply("Made.")]
    with ScriptedServer(list(steps)) as server, PtyProgram(program, "--endpoint", server.url) as terminal:
        terminal.wait_for(READY)
        terminal.send("go" + ENTER)
        while b"\x1b]2;? ws - pointcode\x1b\\" not in terminal.raw:
            terminal.read_more()
        terminal.send(ESCAPE)
        terminal.wait_for("Stopped.")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
    titles = re.findall(rb"\x1b\]2;([^\x1b]*)", terminal.raw)
    assert titles[0] == b"ws - pointcode" and b"* ws - pointcode" in titles
    assert terminal.raw.rfind(b"\x1b[23;2t") > terminal.raw.rfind(b"\x1b]2;") > terminal.raw.rfind(b"\x1b[22;2t") >= 0


def test_where_the_locale_has_no_utf_8_the_line_mode_stands_in(program: Program) -> None:
    with (
        ScriptedServer([Reply("na\u00efve")]) as server,
        PtyProgram(program, "--endpoint", server.url, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") as terminal,
    ):
        terminal.wait_for("ask>")
        terminal.send("hi" + ENTER)
        terminal.wait_for("na?ve")
        assert "line mode, since the terminal is said to take" in terminal.text
        assert b"\\u" not in terminal.raw and LEFT_ALTERNATE_SCREEN not in terminal.raw


def test_a_console_without_a_window_gets_no_title(program: Program) -> None:
    with ScriptedServer([]) as server, PtyProgram(program, "--endpoint", server.url, TERM="linux") as terminal:
        terminal.wait_for(READY)
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
    assert b"\x1b]2;" not in terminal.raw and b";2t" not in terminal.raw


def test_it_works_where_its_own_log_cannot_be_written(program: Program) -> None:
    (program.state / "pointcode.log").mkdir()
    with ScriptedServer([Reply("An answer.")]) as server, PtyProgram(program, "--endpoint", server.url) as terminal:
        terminal.wait_for(READY)
        terminal.send("hi" + ENTER)
        terminal.wait_for("An answer.")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0


def test_a_terminal_that_goes_away_ends_it_and_its_command(program: Program) -> None:
    command = "echo $$ > pid; touch begun; sleep 600"
    with (
        ScriptedServer([tool("shell", command=command)]) as server,
        PtyProgram(program, "--endpoint", server.url, "--permission-mode", "auto") as terminal,
    ):
        terminal.wait_for(READY)
        terminal.send("go" + ENTER)
        while not (program.ws / "begun").exists():
            terminal.read_more()
        pid = int((program.ws / "pid").read_text())
        for end in (terminal.slave, terminal.master):
            os.close(end)
        terminal.slave = terminal.master = -1
        assert terminal.process.wait() != 0
    assert ends(pid)
    assert "interrupted" in session_of(program)


@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP])
def test_continued_after_a_stop_it_draws_and_restores_the_terminal(program: Program, stop: signal.Signals) -> None:
    with ScriptedServer([]) as server, PtyProgram(program, "--endpoint", server.url) as terminal:
        terminal.wait_for(READY)
        os.kill(terminal.process.pid, stop)
        while not has_stopped(terminal.process.pid):
            terminal.read_more()
        terminal.forget()
        # It gives the terminal back when it stops itself; SIGSTOP is not seen.
        assert stop == signal.SIGSTOP or LEFT_ALTERNATE_SCREEN in terminal.raw
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.wait_for("mode ask")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
        terminal.check_restored()


# Stands for a shell with job control: runs its arguments as a foreground job, says when that has stopped, and on a
# line from the terminal continues it; ends with it.
_SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while os.WIFSTOPPED(status := os.waitpid(job, os.WUNTRACED)[1]):
    os.tcsetpgrp(0, os.getpgrp())
    print("the job has stopped", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("mode", [(), ("--plain",)])
def test_ctrl_z_goes_back_to_the_shell_and_fg_returns(program: Program, mode: tuple[str, ...]) -> None:
    shell = (sys.executable, "-I", "-c", _SHELL, sys.executable, "-P", "-m", "pointcode_local")
    with (
        ScriptedServer([Reply("An answer.")]) as server,
        PtyProgram(program, *mode, "--endpoint", server.url, command=shell) as terminal,
    ):
        terminal.wait_for("ask>" if mode else READY)
        terminal.send(CTRL_Z)
        terminal.wait_for("the job has stopped")
        if not mode:  # the line mode leaves ctrl+s to the shell, which sets the terminal as it wants it
            assert termios.tcgetattr(terminal.slave) == terminal.settings_before
            assert LEFT_ALTERNATE_SCREEN in terminal.raw
        terminal.forget()
        terminal.send("fg\n")
        terminal.wait_for("ask>" if mode else "mode ask")
        terminal.send("hi" + ENTER)
        terminal.wait_for("An answer.")
        while mode and "ask>" not in terminal.text.rpartition("An answer.")[2]:
            terminal.read_more()  # before that the line settings are not the program's, and the key would be lost
        terminal.send(CTRL_D)
        assert terminal.wait() == 0


def test_ctrl_z_does_not_stop_what_no_shell_could_continue(program: Program) -> None:
    with ScriptedServer([]) as server, PtyProgram(program, "--endpoint", server.url) as terminal:
        terminal.wait_for(READY)
        terminal.send(CTRL_Z)
        terminal.wait_for("No shell could continue it")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0


async def test_before_it_has_the_screen_a_continuation_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Callable[[], None]] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    TerminalDriver(App[None]())
    handlers[signal.SIGCONT]()


def test_a_folder_that_was_deleted_is_said_and_nothing_breaks(program: Program) -> None:
    steps = [tool("list"), tool("shell", command="pwd"), Reply("Gone, it seems.")]
    with (
        ScriptedServer(list(steps)) as server,
        PtyProgram(program, "--endpoint", server.url, "--permission-mode", "auto") as terminal,
    ):
        terminal.wait_for(READY)
        shutil.rmtree(program.ws)
        terminal.send("look at @x")
        terminal.send(ESCAPE)
        terminal.send(ENTER)
        terminal.wait_for("Gone, it seems.")
        terminal.send("!pwd" + ENTER)
        terminal.wait_for("cannot start the shell")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
        terminal.check_restored()


def test_ctrl_c_twice_while_the_model_writes_stops_it_and_leaves(program: Program) -> None:
    hold = threading.Event()
    with ScriptedServer([Reply("some words", hold=hold)]) as server:
        with PtyProgram(program, "--endpoint", server.url) as terminal:
            terminal.wait_for(READY)
            terminal.send("go" + ENTER)
            terminal.wait_for("some")
            terminal.send(CTRL_C)
            terminal.wait_for("Stopped.")
            terminal.send(CTRL_C)
            terminal.send(CTRL_C)
            assert terminal.wait() == 0
            terminal.check_restored()
        hold.set()
    assert '"cancelled"' in session_of(program)


@pytest.mark.parametrize("where", ["closed pipe", "full disk"])
def test_the_line_mode_ends_quietly_when_nobody_can_read_it(program: Program, where: str) -> None:
    with ScriptedServer([Reply("words " * 5000)]) as server:
        command = [*program.command, "--plain", "--endpoint", server.url]
        if where == "closed pipe":
            ours, theirs = os.pipe()
            os.close(ours)
        else:
            theirs = os.open("/dev/full", os.O_WRONLY)
        done = subprocess.run(
            command, cwd=program.ws, env=program.env, input=b"go\n", stdout=theirs, stderr=subprocess.PIPE, timeout=60
        )
        os.close(theirs)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


def test_what_a_scripted_run_prints_on_a_terminal_cannot_work_on_it(program: Program) -> None:
    busy = Reply("\x1b]0;busy\x07", status=503)
    answer = Reply("Hello \x1b]52;c;aGk=\x07\x1b[2J\u202eend\nnext line")
    with (
        ScriptedServer([busy, answer]) as server,
        PtyProgram(program, "-p", "go", "--endpoint", server.url) as terminal,
    ):
        assert terminal.wait() == 0
    assert "next line" in terminal.text and "asking again" in terminal.text
    assert b"\x1b]" not in terminal.raw and b"\x1b[2J" not in terminal.raw and b"\x07" not in terminal.raw

"""The whole program as a person uses it: a real process in tmux, the embedded real model, keys and screens."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointcode_local.engine import registry
from pointcode_local.engine.download import pull
from tests.app.program import Program
from tests.app.pty_program import session_of

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


class Tmux:
    """A tmux server of its own with one window of 100 x 30."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._pause = threading.Event()

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([*self._base, *arguments], capture_output=True, text=True, check=True, timeout=30)
        return done.stdout

    @property
    def screen(self) -> str:
        return self("capture-pane", "-p", "-t", "main")

    def keys(self, *keys: str) -> None:
        """Press named keys."""
        self("send-keys", "-t", "main", *keys)

    def write(self, text: str) -> None:
        """Type a text and Enter."""
        self("send-keys", "-t", "main", "-l", text)
        self.keys("Enter")

    def wait_for(self, *texts: str) -> str:
        """Until one of them is on the screen; the test's time-out ends a wait in vain."""
        while not any(text in self.screen for text in texts):
            self._pause.wait(0.2)
        return self.screen


@pytest.fixture
def program(tmp_path: Path) -> Program:
    made = Program(tmp_path)
    model = registry.find_model(registry.DEFAULT_MODEL)
    try:
        path = registry.resolve(model.name)
    except registry.DownloadError:
        path = pull(model.name, lambda done, total: None)
    (made.state / "models").mkdir()
    (made.state / "models" / path.name).symlink_to(path)
    return made


@pytest.fixture
def tmux(tmp_path: Path, program: Program) -> Iterator[Tmux]:
    made = Tmux(tmp_path)
    environment = [f"{name}={value}" for name, value in program.env.items()]
    shell = ["env", "-i", *environment, "TERM=tmux-256color", "PS1=READY> ", "/bin/sh"]
    made("new-session", "-d", "-s", "main", "-x", "100", "-y", "30", "-c", str(program.ws), shlex.join(shell))
    yield made
    made("kill-server")


def test_a_person_prompts_approves_stops_resumes_and_quits(tmux: Tmux, program: Program) -> None:
    start = f"{shlex.quote(sys.executable)} -P -m pointcode_local"
    tmux.wait_for("READY>")
    tmux.write(f"{start} --backend cpu")
    tmux.wait_for("What was found")
    while "context 0%" not in tmux.screen:  # a key does not count before the first screen could be read
        tmux.keys("Enter")
        tmux._pause.wait(1.0)

    tmux.write("Create the file hello.py that prints hello.")
    tmux.wait_for("Yes, this once")
    assert "hello.py" in tmux.screen and "Always allow" in tmux.screen
    while not (program.ws / "hello.py").exists():  # keys do not count before the panel could be read
        tmux.keys("y")
        tmux._pause.wait(1.0)
    assert "hello" in (program.ws / "hello.py").read_text()
    while "esc to stop" in tmux.screen:
        if "Yes, this once" in tmux.screen:
            tmux.keys("n")
        tmux._pause.wait(0.5)

    tmux.write("Explain in twenty long sentences what a compiler does.")
    tmux.wait_for("Writing…", "Reading the prompt")
    tmux.wait_for("Writing…")
    tmux.keys("Escape")
    tmux.wait_for("Stopped.")
    tmux.keys("C-d")
    tmux.wait_for("Go on with: pointcode --resume")
    assert tmux("display-message", "-p", "-t", "main", "#{alternate_on}").strip() == "0"
    assert "READY>" in tmux.screen

    tmux.write(f"clear; {start} --backend cpu --continue")
    tmux.wait_for("context")
    assert "twenty long sentences" in tmux.wait_for("Stopped.")
    tmux.keys("C-d")
    tmux.wait_for("Go on with: pointcode --resume")
    tmux.write("stty -a | tr ' ' '\\n' | grep -x -e echo -e icanon -e isig | tr '\\n' '+'; echo END")
    assert "isig+icanon+echo+END" in tmux.wait_for("+END")
    assert '"cancelled"' in session_of(program)

"""`pointcode serve` as a process, and a second pointcode that finds it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pointcode_local.attach import attach, is_private, socket_of
from pointcode_local.compose import open_model
from pointcode_local.config import Places, Settings, find_places
from pointcode_local.endpoint import EndpointModel, Retries
from pointcode_local.engine.errors import CapacityError
from pointcode_local.engine.sockets import listen_unix
from pointcode_local.engine.types import AnswerText, ChatFinished, ChatRequest, Message, PrefillProgress
from tests.engine.tiny_models import make_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("qwen2", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POINTCODE_HOME", str(tmp_path / "home"))
    for name in ("POINTCODE_MODEL", "POINTCODE_ENDPOINT", "POINTCODE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@dataclass
class Server:
    """A running `pointcode serve`."""

    process: subprocess.Popen[str]
    url: str
    log: list[str]

    def wait_for(self, text: str) -> None:
        """Until this was logged."""
        assert self.process.stderr is not None
        while text not in self.log[-1]:
            line = self.process.stderr.readline()
            assert line, self.log
            self.log.append(line.rstrip())

    def end(self, number: int) -> int:
        """Sends a signal; the exit code. What was logged is in `log`."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.log += self.process.stderr.read().splitlines()
        return self.process.wait()


@contextmanager
def serving(tiny: Path, *arguments: str) -> Generator[Server]:
    command = [sys.executable, "-P", "-m", "pointcode_local", "serve", "--port", "0", "--model", str(tiny), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        log: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line.rstrip())
            if found := re.search(r"answers at (http://\S+)/v1", line):
                yield Server(process, found[1], log)
                break
        else:
            raise AssertionError("\n".join(log))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]


def settings_of(tiny: Path) -> tuple[Places, Settings]:
    return find_places(os.environ), Settings(model=str(tiny))


async def answer_of(model: EndpointModel) -> tuple[str, ChatFinished, list[PrefillProgress]]:
    request = ChatRequest((Message("user", "Hello there"),), max_tokens=8)
    deltas = [delta async for delta in model.stream(request)]
    assert isinstance(deltas[-1], ChatFinished)
    text = "".join(delta.text for delta in deltas if isinstance(delta, AnswerText))
    return text, deltas[-1], [delta for delta in deltas if isinstance(delta, PrefillProgress)]


@pytest.mark.timeout(300)  # four processes import torch
def test_a_second_pointcode_attaches_falls_back_after_a_crash_and_a_new_server_drains(home: Path, tiny: Path) -> None:
    places, settings = settings_of(tiny)
    path = socket_of(places, settings, os.environ)
    assert path is not None
    with serving(tiny) as server:
        assert is_private(path)

        async def attached() -> tuple[str, str]:
            model = await open_model(settings, places, lambda progress: None)
            assert isinstance(model, EndpointModel)
            assert (model.is_small, model.context_tokens) == (True, 4096)
            text, end, progress = await answer_of(model)
            assert end.usage.prompt_tokens == progress[-1].total_tokens > 0
            await model.aclose()
            return model.name, text

        name, text = asyncio.run(attached())
        assert name == "tiny"
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert path.exists()  # stale: nobody removed it

    async def alone() -> str:
        model = await open_model(settings, places, lambda progress: None)
        assert not isinstance(model, EndpointModel)
        request = ChatRequest((Message("user", "Hello there"),), max_tokens=8)
        deltas = [delta async for delta in model.stream(request)]
        await model.aclose()
        return "".join(delta.text for delta in deltas if isinstance(delta, AnswerText))

    assert asyncio.run(alone()) == text
    with serving(tiny) as server:  # a new server takes the stale socket's place
        assert asyncio.run(attach(places, settings, os.environ)) is not None
        sigterm_lets_a_running_answer_end(server)
        assert server.end(signal.SIGTERM) == 0
        assert server.log[-1].endswith("the server has ended with code 0")
    assert not path.exists()


def sigterm_lets_a_running_answer_end(server: Server) -> None:
    body = {"prompt": "x", "max_tokens": 600, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith((":", "data:"))
        server.process.send_signal(signal.SIGTERM)
        datas = [line for line in lines if line.startswith("data: ")]
    assert datas[-1] == "data: [DONE]"
    assert json.loads(datas[-2][6:])["choices"][0]["finish_reason"] == "length"


def test_a_second_signal_cuts_off_what_runs_and_the_log_has_no_traceback(home: Path, tiny: Path) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with (
        serving(tiny) as server,
        httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith((":", "data:"))  # more is not read, so that the answer cannot end
        server.process.send_signal(signal.SIGINT)
        server.wait_for("a second signal cuts them off")
        assert server.end(signal.SIGINT) == 0
        with pytest.raises(httpx.TransportError):
            list(lines)
    assert not any("Traceback" in line or "ERROR" in line for line in server.log)


def test_a_server_that_has_ended_is_called_by_its_name(home: Path, tiny: Path) -> None:
    async def ask() -> str:
        model = EndpointModel("http://pointcode", uds=home / "gone.sock", retries=Retries(n_tries=1))
        with pytest.raises(CapacityError) as caught:
            await answer_of(model)
        await model.aclose()
        return str(caught.value)

    assert asyncio.run(ask()).startswith("cannot reach the `pointcode serve` that this program is attached to: ")


def test_the_socket_is_of_one_model_and_backend_alone(home: Path, tiny: Path, tmp_path: Path) -> None:
    places, settings = settings_of(tiny)
    other = make_tiny("llama", tmp_path / "other")
    paths = {
        socket_of(places, Settings(model=str(model), backend=backend), os.environ)
        for model in (tiny, other)
        for backend in ("auto", "cpu")
    }
    assert len(paths) == 4 and None not in paths
    assert socket_of(places, Settings(model="no-such-model"), os.environ) is None
    deep = {"POINTCODE_HOME": str(tmp_path / ("deep" * 40))}
    short = socket_of(find_places(deep), settings, deep)
    assert short is not None and len(str(short)) < 100
    assert asyncio.run(attach(places, settings, os.environ)) is None


def test_a_socket_that_others_could_have_made_is_not_trusted(home: Path, tiny: Path) -> None:
    places, settings = settings_of(tiny)
    path = socket_of(places, settings, os.environ)
    assert path is not None
    listener = listen_unix(path)
    assert listener is not None
    assert is_private(path)
    assert listen_unix(path) is None  # somebody has it
    path.parent.chmod(0o755)
    assert not is_private(path)
    assert asyncio.run(attach(places, settings, os.environ)) is None
    path.parent.chmod(0o700)
    listener.close()
    again = listen_unix(path)  # stale now
    assert again is not None
    again.close()


def test_a_server_that_hangs_up_is_not_attached_to(home: Path, tiny: Path) -> None:
    places, settings = settings_of(tiny)
    path = socket_of(places, settings, os.environ)
    assert path is not None
    listener = listen_unix(path)
    assert listener is not None

    async def main() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_unix_server(hang_up, sock=listener):
            assert await attach(places, settings, os.environ) is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--host", "0.0.0.0"), 2, "--api-key"),
        (("--endpoint", "http://x"), 2, "--endpoint"),
        (("--port", "70000"), 2, "65535"),
        (("--model", "/no/such/model"), 2, "/no/such/model"),
    ],
)
def test_a_start_that_cannot_work_says_why(home: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    command = [sys.executable, "-P", "-m", "pointcode_local", "serve", "--port", "0", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr
    assert text in done.stderr.splitlines()[-1]


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(home: Path, tiny: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-P", "-m", "pointcode_local", "serve", "--port", port, "--model", str(tiny)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "loading" not in done.stderr

"""`pointcode acp` as a process: its streams, signals, and a folder that goes away."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.acp.schema import check
from tests.app.openai_server import Reply, ScriptedServer, Step, tool
from tests.app.program import Program

GO = [{"type": "text", "text": "Go."}]
HELLO = {"id": 1, "method": "initialize", "params": {"protocolVersion": 1}}


class Editor:
    """Talks to a started process; answers each permission request with `permit`."""

    def __init__(self, process: subprocess.Popen[bytes], permit: str = "once") -> None:
        self.process = process
        self._permit = permit
        self._n = 0
        self.methods: dict[Any, str] = {}
        self.seen: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method: str, **params: Any) -> int:
        self._n += 1
        self.methods[self._n] = method
        self.send(id=self._n, method=method, params=params)
        return self._n

    def lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            check(message, message.get("method") or self.methods.get(message["id"], ""))
            self.seen.append(message)
            yield message

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = self.request(method, **params)
        for message in self.lines():
            if message.get("method") == "session/request_permission":
                outcome = {"outcome": "selected", "optionId": self._permit}
                self.send(id=message["id"], result={"outcome": outcome})
            elif message.get("id") == number and "method" not in message:
                return message
        raise AssertionError("the agent ended")

    def new(self, cwd: Path) -> str:
        self.ask("initialize", protocolVersion=1)
        return self.ask("session/new", cwd=str(cwd), mcpServers=[])["result"]["sessionId"]

    def prompt(self, session: str) -> dict[str, Any]:
        return self.ask("session/prompt", sessionId=session, prompt=GO)

    def begin(self, session: str) -> int:
        return self.request("session/prompt", sessionId=session, prompt=GO)

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait_for_text(self) -> None:
        for message in self.lines():
            if message.get("params", {}).get("update", {}).get("sessionUpdate") == "agent_message_chunk":
                return


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def start(program: Program, server: ScriptedServer, *flags: str) -> Editor:
    process = program.start("acp", "--endpoint", server.url, *flags, stdin=subprocess.PIPE)
    return Editor(process)


def end(editor: Editor) -> int:
    """Wait for the process; its descriptors are closed."""
    process = editor.process
    code = process.wait(30)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    return code


def test_end_of_input_cancels_the_running_prompt_and_ends_the_process(program: Program):
    with ScriptedServer([Reply("Begun.", hold=threading.Event())]) as server:
        editor = start(program, server)
        number = editor.begin(editor.new(program.ws))
        editor.wait_for_text()
        editor.close_input()
        last = list(editor.lines())[-1]
        assert last["id"] == number and last["result"]["stopReason"] == "cancelled"
        assert end(editor) == 0


def test_a_signal_ends_the_process_with_its_commands(program: Program):
    os.mkfifo(program.ws / "pipe")
    with ScriptedServer([tool("shell", command="echo $$ > pid; echo > pipe; sleep 60"), Reply("x")]) as server:
        editor = start(program, server, "--permission-mode", "auto")
        session = editor.new(program.ws)
        editor.begin(session)
        (program.ws / "pipe").read_bytes()  # the command runs
        editor.process.send_signal(signal.SIGTERM)
        list(editor.lines())
        assert end(editor) == 130
        pid = int((program.ws / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_hang_up_while_the_model_opens_ends_the_process_at_once(program: Program):
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections and says nothing
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        editor = Editor(program.start("acp", "--endpoint", url, stdin=subprocess.PIPE))
        editor.begin(editor.new(program.ws))
        deaf.accept()
        editor.process.send_signal(signal.SIGHUP)
        last = list(editor.lines())[-1]
        assert last["result"]["stopReason"] == "cancelled"
        assert end(editor) == 130


def test_an_editor_that_stops_reading_for_good_ends_the_process(program: Program):
    with ScriptedServer([Reply("text " * 50)]) as server:
        editor = start(program, server)
        session = editor.new(program.ws)
        assert editor.process.stdout is not None
        editor.process.stdout.close()
        editor.begin(session)
        assert editor.process.wait(30) == 1
        assert editor.process.stderr is not None
        assert b"Traceback" not in editor.process.stderr.read()
        editor.process.stdout = None
        end(editor)


def test_streams_that_are_closed_from_the_start_are_a_usage_error(program: Program):
    for closed in ("<&-", ">&-"):
        command = f'exec "$0" -P -m pointcode_local acp {closed}'
        done = subprocess.run(
            ["sh", "-c", command, sys.executable], cwd=program.ws, env=program.env, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2 and b"must be open" in done.stderr, done.stderr


def test_sessions_from_start_to_end_of_input_one_with_a_folder_that_is_deleted(program: Program, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("old\n")
    steps: list[Step] = [
        tool("shell", command="pwd"),
        Reply("one"),
        tool("edit", path="a.txt", edits=[{"old": "old", "new": "new"}]),
        Reply("Done."),
    ]
    with ScriptedServer(steps) as server:
        editor = start(program, server)  # its own folder goes away too
        session = editor.new(program.ws)
        shutil.rmtree(program.ws)
        assert editor.prompt(session)["result"]["stopReason"] == "end_turn"
        (result,) = server.results()
        assert "could not be started" in result or "No such file" in result
        error = editor.ask("session/new", cwd=str(program.ws), mcpServers=[])["error"]
        assert error["code"] == -32602 and "No such file" in error["message"]
        second = editor.ask("session/new", cwd=str(other), mcpServers=[])["result"]["sessionId"]
        assert editor.prompt(second)["result"] == {"stopReason": "end_turn"}
        assert (other / "a.txt").read_text() == "new\n"
        listed = editor.ask("session/list", cwd=str(other))["result"]["sessions"]
        assert [(s["sessionId"], s["title"], s["cwd"]) for s in listed] == [(second, "Go.", str(other))]
        editor.close_input()
        assert list(editor.lines()) == []
        assert end(editor) == 0


def test_it_starts_in_a_folder_that_is_gone_and_answers_what_came_before_the_end_of_input(
    program: Program, tmp_path: Path
):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f'cd {gone} && rmdir {gone} && exec "$0" -P -m pointcode_local acp'
    list_all = {"id": "x", "method": "session/list", "params": {}}
    lines = b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in (HELLO, list_all))
    done = subprocess.run(["sh", "-c", command, sys.executable], env=program.env, input=lines + b"no JSON",
                          capture_output=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = {m["id"]: m for m in map(json.loads, done.stdout.splitlines())}
    assert set(answers) == {1, "x", None} and answers[None]["error"]["code"] == -32700
    assert answers[1]["result"]["protocolVersion"] == 1


def test_a_session_that_is_asked_for_just_before_the_end_of_input_is_closed_too(program: Program):
    new = {"id": "x", "method": "session/new", "params": {"cwd": str(program.ws), "mcpServers": []}}
    lines = b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in (HELLO, new))
    with ScriptedServer([]) as server:
        process = program.start("acp", "--endpoint", server.url, stdin=subprocess.PIPE, PYTHONDEVMODE="1")
        out, err = process.communicate(lines, timeout=60)
    assert process.returncode == 0
    assert "result" in json.loads(out.splitlines()[1])
    assert b"unclosed" not in err
    assert list((program.state / "sessions").iterdir()) == []

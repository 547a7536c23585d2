"""The program end to end: real process, real tools, scripted server."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.engine.errors import (
    BackendError,
    BackendUnavailable,
    CapacityError,
    EngineError,
    ModelError,
    RequestError,
    UnknownModel,
)
from pointcode_local.local_models import exit_code_of
from tests.app.forked import ForkedProgram
from tests.app.openai_server import Reply, ScriptedServer, tool
from tests.app.program import Program


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another process; the test's own time-out ends a wait in vain."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def test_every_tool_works_from_end_to_end(program: Program):
    (program.ws / "a.py").write_text("def f():\n    return 1\n")

    def after_it_began(request: dict[str, Any]) -> Reply:
        wait_until((program.ws / "begun").exists)
        return tool("shell_output", id=_job_id(request["messages"][-1]["content"]))

    result, done, server = program.ask(
        tool("read", path="a.py"),
        tool("edit", path="a.py", edits=[{"old": "return 1", "new": "return 2"}]),
        tool("write", path="new.txt", content="fresh\n"),
        tool("glob", pattern="*.txt"),
        tool("grep", pattern="return"),
        tool("list"),
        tool("shell", command="cat a.py; exit 3"),
        tool("shell", command="echo started; touch begun; sleep 30", background=True),
        after_it_began,
        lambda request: tool("shell_kill", id=_job_id(request["messages"][-3]["content"])),
        tool("todo", items=[{"text": "one", "status": "done"}]),
        tool("ask", question="Which?", options=["a", "b"]),
        Reply("All done."),
    )
    assert done.returncode == 0, done.stderr.decode()
    assert result["result"] == "All done." and result["outcome"] == "done" and result["error"] is None
    assert (program.ws / "a.py").read_text() == "def f():\n    return 2\n"
    assert result["changed_files"] == ["a.py", "new.txt"]
    names = [call["name"] for call in result["tool_calls"]]
    assert names == ["read", "edit", "write", "glob", "grep", "list", "shell", "shell", "shell_output", "shell_kill",
                     "todo", "ask"]  # fmt: skip
    texts = server.results()
    assert "return 1" in texts[0] and "new.txt" in texts[3] and "return 2" in texts[4] and "3" in texts[6]
    assert "started" in texts[8]
    assert result["turns"] == 13
    assert result["usage"]["prompt_tokens"] == 13 * 50 and result["usage"]["cached_tokens"] == 13 * 7


def _job_id(text: str) -> str:
    import re

    found = re.search(r"\b\w*\d+\b", text)
    assert found, text
    return found[0]


@pytest.mark.parametrize(
    ("steps", "mode", "code", "outcome"),
    [
        ([Reply("ok")], "ask", 0, "done"),
        ([tool("shell", command="touch x"), Reply("no")], "ask", 3, "denied"),
        ([tool("write", path="x", content="y"), Reply("no")], "plan", 3, "denied"),
        ([Reply("bad", status=400)], "ask", 1, "error"),
        ([Reply("cut", finish="length")], "ask", 4, "limit"),
        ([Reply(""), Reply("")], "ask", 4, "limit"),
        ([*[tool("read", path="nothing")] * 9], "ask", 4, "limit"),
    ],
)
def test_each_outcome_has_its_exit_code(forked: ForkedProgram, steps: list[Reply], mode: str, code: int, outcome: str):
    result, done, _ = forked.ask(*steps, mode=mode)
    assert (done.returncode, result["outcome"]) == (code, outcome)
    assert bool(result["denied"]) == (outcome == "denied")
    assert list(forked.ws.iterdir()) == []
    if outcome != "done":
        assert outcome in done.stderr.decode().lower()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownModel("no such model"), 2),
        (RequestError("that is no address"), 2),
        (BackendUnavailable("no GPU"), 2),
        (ModelError("damaged"), 1),
        (CapacityError("full"), 75),
        (BackendError("away"), 75),
    ],
)
def test_what_keeps_a_model_from_opening_has_a_code_by_its_kind(error: EngineError, code: int):
    assert exit_code_of(error) == code


@pytest.mark.parametrize("endpoint", ["ftp://x", "http://[x"])
def test_an_endpoint_that_is_no_address_is_wrong_usage(forked: ForkedProgram, endpoint: str):
    done = forked.run("-p", "x", "--endpoint", endpoint)
    assert done.returncode == 2 and done.stdout == b"" and endpoint in done.stderr.decode()


def test_a_server_that_keeps_breaking_off_is_worth_retrying_later(forked: ForkedProgram):
    result, done, server = forked.ask(*[Reply("half", breaks=True)] * 9)
    assert done.returncode == 75
    assert result["outcome"] == "error" and "before the reply was complete" in result["error"]
    assert len(server.requests) == 3


def test_wrong_usage_exits_2_and_never_waits_for_input(program: Program):
    done = program.run("-p", "x", "--continue", "--endpoint", "http://127.0.0.1:9", stdin_is_open=True)
    assert done.returncode == 2
    assert b"no session to continue" in done.stderr and b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_a_prompt_may_look_like_an_option(program: Program):
    prompt = "--permission-mode=auto x"
    with ScriptedServer([Reply("ok")]) as server:
        done = program.run("-p", prompt, "--endpoint", server.url)
        assert done.returncode == 0, done.stderr
        assert server.requests[0]["messages"][-1]["content"].endswith(prompt)


def test_only_allowed_tools_are_offered_and_others_are_denied(forked: ForkedProgram):
    result, done, server = forked.ask(
        tool("shell", command="touch x"), Reply("no"), flags=["--allowed-tools", "read, grep"]
    )
    assert [t["function"]["name"] for t in server.requests[0]["tools"]] == ["read", "grep"]
    assert result["denied"][0]["name"] == "shell" and done.returncode == 3
    assert not (forked.ws / "x").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_command_ends_everything_with_a_valid_result(program: Program, number: signal.Signals):
    command = "echo partial; while :; do date +%s%N > beat; sleep 0.05; done"
    with ScriptedServer([tool("shell", command=command)]) as server:
        process = program.start(
            "-p", "x", "--output-format", "json", "--permission-mode", "auto", "--endpoint", server.url
        )
        wait_until((program.ws / "beat").exists)
        begun = time.monotonic()
        os.killpg(process.pid, number)
        out, _ = process.communicate(timeout=30)
        assert time.monotonic() - begun < 10  # promised are 2 s; a loaded machine may take longer
    result = json.loads(out)
    assert (process.returncode, result["outcome"]) == (130, "cancelled")
    assert "interrupted" in result["tool_calls"][0]["text"]
    before = (program.ws / "beat").read_bytes()
    threading.Event().wait(0.2)
    assert (program.ws / "beat").read_bytes() == before


def test_a_signal_while_the_model_writes_closes_the_connection(program: Program):
    hold = threading.Event()
    with ScriptedServer([Reply("some words", hold=hold)]) as server:
        process = program.start("-p", "x", "--output-format", "stream-json", "--endpoint", server.url)
        assert process.stdout is not None
        while b"text_delta" not in process.stdout.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert server.gone.wait(10)
        hold.set()
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["result"].startswith("som")


def test_after_a_kill_the_session_goes_on_with_an_interrupted_call(program: Program):
    with ScriptedServer([tool("shell", command="touch started; sleep 60")]) as server:
        process = program.start("-p", "GOAL-1", "--permission-mode", "auto", "--endpoint", server.url)
        wait_until((program.ws / "started").exists)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    result, _, server = program.ask(Reply("went on"), prompt="And now?", flags=["--continue"])
    assert result["outcome"] == "done"
    messages = server.requests[0]["messages"]
    assert "GOAL-1" in messages[1]["content"]
    assert "interrupted" in messages[3]["content"] and messages[2]["tool_calls"][0]["id"] == messages[3]["tool_call_id"]


def test_sessions_are_continued_forked_listed_shown_and_removed(forked: ForkedProgram):
    one, _, first = forked.ask(Reply("ANSWER-1"), prompt="GOAL-1")
    sid = one["session_id"]
    two, _, second = forked.ask(Reply("ANSWER-2"), prompt="Next.", flags=["--resume", sid])
    fork, _, third = forked.ask(Reply("ANSWER-3"), prompt="Other.", flags=["--fork", sid])
    assert two["session_id"] == sid != fork["session_id"]
    head = first.requests[0]["messages"]
    assert second.requests[0]["messages"][: len(head)] == head == third.requests[0]["messages"][: len(head)]
    assert first.requests[0]["tools"] == second.requests[0]["tools"]
    listed = forked.run("sessions").stdout.decode()
    assert sid in listed and fork["session_id"] in listed and "GOAL-1" in listed
    shown = forked.run("sessions", "show", sid).stdout.decode()
    assert "GOAL-1" in shown and "ANSWER-2" in shown and "ANSWER-3" not in shown
    assert forked.run("sessions", "rm", sid).returncode == 0
    assert sid not in forked.run("sessions", "list", "--all").stdout.decode()


def test_the_head_is_the_same_in_every_folder(forked: ForkedProgram, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (forked.ws / "AGENTS.md").write_text("RULE-1")
    _, _, one = forked.ask(Reply("ok"))
    _, _, two = forked.ask(Reply("ok"), flags=["--cwd", str(other)])
    assert one.requests[0]["messages"][0] == two.requests[0]["messages"][0]
    assert one.requests[0]["tools"] == two.requests[0]["tools"]
    assert "RULE-1" in one.requests[0]["messages"][1]["content"]


def test_endpoint_and_key_come_from_the_environment_and_are_not_written_down(forked: ForkedProgram):
    with ScriptedServer([Reply("ok")]) as server:
        done = forked.run("-p", "x", POINTCODE_ENDPOINT=server.url, POINTCODE_API_KEY="sk-secret-1")
    assert done.stdout == b"ok\n"
    assert server.headers[0]["authorization"] == "Bearer sk-secret-1"
    written = b"".join(p.read_bytes() for p in forked.state.rglob("*") if p.is_file())
    assert b"sk-secret-1" not in written + done.stderr


def test_a_project_file_counts_fully_only_when_it_is_trusted(forked: ForkedProgram):
    (forked.ws / ".pointcode").mkdir()
    (forked.ws / ".pointcode/config.toml").write_text('[permissions]\nallow = ["shell(touch made)"]\n')
    script = [tool("shell", command="touch made"), Reply("ok")]
    result, done, _ = forked.ask(*script, mode="ask")
    assert result["outcome"] == "denied" and b"config trust" in done.stderr
    assert forked.run("config", "trust").returncode == 0
    result, _, _ = forked.ask(*script, mode="ask")
    assert result["outcome"] == "done" and (forked.ws / "made").exists()


def test_tools_or_engine_folders_of_the_user_do_not_shadow_ours(program: Program):
    for name in ("tools", "engine", "pointcode_local"):
        (program.ws / name).mkdir()
        (program.ws / name / "__init__.py").write_text("raise RuntimeError('shadowed')")
    result, done, _ = program.ask(Reply("ok"))
    assert done.returncode == 0 and result["result"] == "ok"


def test_a_path_that_no_file_can_have_is_an_answer_for_the_model(forked: ForkedProgram):
    steps = [tool(name, path="a" * 5000, content="x", pattern="x") for name in ("write", "read", "grep", "list")]
    steps.append(tool("edit", path="b" * 300, edits=[{"old": "", "new": "x"}]))
    result, done, server = forked.ask(*steps)
    assert done.returncode == 0 and result["result"] == "Done."
    assert len(server.results()) == 5 and all("too long" in text for text in server.results())


def test_without_room_for_the_undo_copy_a_file_is_left_as_it_is(forked: ForkedProgram):
    (forked.ws / "a.txt").write_text("old\n")
    (forked.state / "checkpoints").write_text("no folder")
    _, done, server = forked.ask(tool("edit", path="a.txt", edits=[{"old": "old", "new": "new"}]))
    assert done.returncode == 0
    assert "was not run" in server.results()[0]
    assert (forked.ws / "a.txt").read_text() == "old\n"


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (("--endpoint", "file:///etc/passwd"), b"http://"),
        (("--endpoint", "http://"), b"http://"),
        (("--max-turns", "x"), b"must be a whole number, got 'x'"),
        (("--resume", ""), b"--resume needs the id of a session"),
        (("--fork", ""), b"--fork needs the id of a session"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_at_once(
    forked: ForkedProgram, arguments: tuple[str, ...], cure: bytes
) -> None:
    done = forked.run("-p", "Go.", *arguments)
    assert done.returncode in (1, 2) and cure in done.stderr and b"asking again" not in done.stderr

"""`pointcode bench turn` plays its tasks through the real agent and tools, here over a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pointcode_local import cli
from pointcode_local.config import Places, Settings
from pointcode_local.exits import UsageError
from pointcode_local.turnbench.report import TaskRecord, summary, table
from pointcode_local.turnbench.turn import KeptModel, chosen_tasks, run_tasks
from tests.app.openai_server import Reply, ScriptedServer, tool
from tests.fakes import ScriptedModel, call, say


def play(tmp_path: Path, model: ScriptedModel, tasks: str, max_turns: int = 20) -> list[TaskRecord]:
    settings = Settings(permission_mode="auto", max_turns=max_turns)
    places = Places(tmp_path / "config", tmp_path / "state", tmp_path / "cache")
    return asyncio.run(run_tasks(chosen_tasks(tasks), settings, places, KeptModel(model, None)))


def test_a_task_that_is_done_passes_and_one_that_is_not_says_why(tmp_path: Path):
    model = ScriptedModel(
        call("write", path="greet.py", content='print("Good morning, world!")\n'), say("Made."), say("It is port 80.")
    )
    done, failed = play(tmp_path, model, "create/greeting,explain/which-port")
    assert (done.passed, done.problem, done.turns, done.n_tool_calls) == (True, "", 2, 1)
    assert done.changed_files == ("greet.py",)
    assert (done.prompt_tokens, done.cached_tokens, done.completion_tokens) == (200, 80, 20)
    assert not failed.passed
    assert "8123" in failed.problem
    assert failed.transcript[-1] == {"role": "assistant", "content": "It is port 80."}


def test_tasks_do_not_share_a_folder_or_a_history(tmp_path: Path):
    model = ScriptedModel(say("one"), say("two"))
    play(tmp_path, model, "create/greeting,create/two-files")
    assert len(model.requests[1].messages) == len(model.requests[0].messages)
    assert not (tmp_path / "state").exists()


def test_a_task_that_goes_on_for_ever_ends_at_its_limit(tmp_path: Path):
    model = ScriptedModel(*(call("list", path=".", depth=n) for n in range(1, 9)))
    (record,) = play(tmp_path, model, "create/greeting", max_turns=3)
    assert (record.passed, record.outcome, record.turns) == (False, "limit", 3)
    assert record.problem.startswith("limit: ")


def test_the_table_has_a_line_for_each_family_and_the_sum(tmp_path: Path):
    model = ScriptedModel(say("I cannot."), say("It is port 8123."))
    records = play(tmp_path, model, "explain/which-port,create/two-files")
    sums = summary(records)
    assert [(name, s["passed"], s["tasks"]) for name, s in sums.items()] == [
        ("create", 0, 1),
        ("explain", 1, 1),
        ("all", 1, 2),
    ]
    assert sums["all"]["cached_share"] == 0.4
    lines = table("m", records).splitlines()
    assert len(lines) == 5
    assert "create/two-files" in lines[-1]


def test_unknown_tasks_are_a_usage_error():
    with pytest.raises(UsageError, match="families: create"):
        chosen_tasks("nothing*")


def test_the_command_asks_an_endpoint_and_prints_json(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POINTCODE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    steps = [tool("shell", command="cp notes.txt ideas.txt && rm notes.txt"), Reply("Renamed.")]
    with ScriptedServer([*steps]) as server:
        assert cli.run(["bench", "turn", "--endpoint", server.url, "--tasks", "rename/file", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "scripted"
    assert printed["families"]["all"]["passed"] == 1
    assert printed["tasks"][0]["id"] == "rename/file"
    assert not (tmp_path / "ideas.txt").exists()


def test_the_list_of_tasks_needs_no_model(capsys: Any):
    assert cli.run(["bench", "turn", "--list", "--tasks", "encodings"]) == 0
    assert capsys.readouterr().out.count("\n") == 7

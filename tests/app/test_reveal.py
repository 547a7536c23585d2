"""Who sees what a guarded file holds: a yes to a question that names the file shows it, nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.config import Settings
from pointcode_local.events import AgentEvent, PermissionAsked, ToolFinished
from pointcode_local.permission import Ask
from tests.app.agents import of_type
from tests.app.permission_kit import judge, made, rules
from tests.app.test_host import Play, ignore, turn
from tests.fakes import ScriptedModel, call, say

TOKEN = "ghp_" + "a1B2" * 9
VALUE = "S3cretValue99"


def play_turns(folder: Path, *commands: str, answer: str = "once", **settings: Any) -> list[Sequence[AgentEvent]]:
    """One turn per command, in a workspace with secrets; every question gets `answer`, the model what is shown."""
    model = ScriptedModel(*(step for command in commands for step in (call("shell", command=command), say("ok"))))
    play = Play(folder, model, settings=Settings(**settings))
    (play.cwd / ".env").write_text(f"LEAK={VALUE}\nTOKEN={TOKEN}\n")
    (play.cwd / "show.sh").write_text("cat .e*\n")

    async def run() -> list[Sequence[AgentEvent]]:
        host = play.host()
        agent = await host.open(ignore)
        turns = [await turn(agent, answer=answer) for _ in commands]
        await host.close()
        return turns

    turns = asyncio.run(run())
    for events in turns:
        (result,) = of_type(events, ToolFinished)
        assert result.text in [message.content for message in model.requests[-1].messages]
    return turns


def shown(events: Sequence[AgentEvent]) -> bool:
    """Is what the file holds in the events at all, and then all of it?"""
    both = [secret in str(events) for secret in (VALUE, TOKEN)]
    assert both[0] == both[1]
    return both[0]


@pytest.mark.parametrize("mode", ["ask", "auto"])
@pytest.mark.parametrize("command", ["cat .env", "sort .e*", "cat < .env | head -5; cat nope"])
def test_a_yes_to_a_question_that_names_the_file_shows_it(tmp_path: Path, command: str, mode: str) -> None:
    (events,) = play_turns(tmp_path, command, permission_mode=mode)
    (asked,) = of_type(events, PermissionAsked)
    assert ".env, which may hold secrets" in asked.reason and shown(events)


@pytest.mark.parametrize("answer", ["session", "always"])
def test_a_lasting_yes_shows_it_once_and_later_runs_are_blanked(tmp_path: Path, answer: str) -> None:
    first, second = play_turns(tmp_path, "cat .env", "cat .env", answer=answer)
    assert of_type(first, PermissionAsked) and shown(first)
    assert not of_type(second, PermissionAsked) and not shown(second) and "[secret]" in str(second)


def test_an_allow_rule_does_not_show_it(tmp_path: Path) -> None:
    (events,) = play_turns(tmp_path, "cat .env", allow=("shell(cat .env)",))
    assert not of_type(events, PermissionAsked) and not shown(events) and "[secret]" in str(events)


def test_a_yes_to_a_command_that_was_asked_about_for_another_reason_does_not_show_it(tmp_path: Path) -> None:
    (events,) = play_turns(tmp_path, "sh show.sh")
    (asked,) = of_type(events, PermissionAsked)
    assert "secrets" not in asked.reason and not shown(events) and "[secret]" in str(events)


def test_a_no_shows_nothing(tmp_path: Path) -> None:
    (events,) = play_turns(tmp_path, "cat .env", answer="deny")
    assert of_type(events, ToolFinished)[0].denied and not shown(events)


def test_a_rule_that_asks_names_the_file_too(tmp_path: Path) -> None:
    (events,) = play_turns(tmp_path, "cat .env", ask=("shell(cat *)",))
    (asked,) = of_type(events, PermissionAsked)
    assert "the rule ask" in asked.reason and ".env, which may hold secrets" in asked.reason and shown(events)


def test_the_question_names_every_guarded_file_as_far_as_they_fit(tmp_path: Path) -> None:
    workspace = made(tmp_path)
    asked = judge(workspace, "ask", rules(), "shell", command="cat .env id_rsa settings")
    assert asked == Ask("it touches .env, id_rsa, which may hold secrets", "shell(cat .env id_rsa settings)", True)
    for n in range(9):
        (workspace.root / f"{n}.pem").write_text("x")
    many = judge(workspace, "ask", rules(), "shell", command="grep -r x .")
    assert isinstance(many, Ask) and many.secret and " and 6 more, which may hold secrets" in many.reason
    assert judge(workspace, "ask", rules(), "shell", command="touch new") == Ask(
        "no rule allows `touch new`", "shell(touch new)"
    )

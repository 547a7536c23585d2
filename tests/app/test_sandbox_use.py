"""Which commands run in the sandbox: those that nobody agreed to, unless the settings say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from pointcode_local.config import Settings
from pointcode_local.policy import AlwaysRules, RulePolicy
from pointcode_local.runner import CallRunner, Conduct, Toolbox
from pointcode_local.tools.base import Tool
from pointcode_local.tools.shell import Jobs, ShellTool
from pointcode_local.verdict import Decision
from tests.fakes import FakeTool

SHELL = cast(Tool, ShellTool(Jobs()))


def policy(folder: Path, **settings: Any) -> RulePolicy:
    return RulePolicy(Settings(**settings), folder, AlwaysRules(folder / "always.toml"))


@pytest.mark.parametrize(
    ("settings", "command", "agreed"),
    [
        ({}, "ls", False),
        ({"allow": ("shell(ls*)",)}, "ls", False),  # it needs no rule
        ({"allow": ("shell(make *)",)}, "make test", True),
        ({"allow": ("shell(make *)",)}, "ls && make test", True),
        ({"allow": ("shell(make *)",), "permission_mode": "accept-edits"}, "make test", True),
        ({"allow": ("shell(make *)",), "permission_mode": "auto"}, "make test", False),
        ({"permission_mode": "auto"}, "make test", False),
        ({"permission_mode": "plan"}, "ls", False),
    ],
)
def test_a_command_is_agreed_to_when_only_a_rule_of_the_person_allows_it(
    tmp_path: Path, settings: Mapping[str, Any], command: str, agreed: bool
) -> None:
    assert policy(tmp_path, **settings).decide(SHELL, {"command": command}) == Decision("allow", agreed=agreed)


def test_a_command_allowed_for_the_session_is_agreed_to(tmp_path: Path) -> None:
    found = policy(tmp_path)
    found.allow_for_session("shell(make test)")
    assert found.decide(SHELL, {"command": "make test"}) == Decision("allow", agreed=True)
    assert found.decide(SHELL, {"command": "make tests"}).verdict == "ask"


@pytest.mark.parametrize(
    ("sandbox", "agreed", "confined"),
    [("auto", False, True), ("auto", True, False), ("always", True, True), ("off", False, False)],
)
def test_the_setting_decides_what_is_confined(tmp_path: Path, sandbox: str, agreed: bool, confined: bool) -> None:
    found = policy(tmp_path, sandbox=sandbox).sandbox_for(agreed)
    assert (found is not None) == confined
    assert found is None or (not found.network and tmp_path in found.writable)


def test_the_network_is_open_in_the_sandbox_only_when_the_settings_say_so(tmp_path: Path) -> None:
    found = policy(tmp_path, sandbox_network=True).sandbox_for(False)
    assert found is not None and found.network


class Answers:
    """A policy with one decision for everything."""

    mode = "ask"

    def __init__(self, decision: Decision) -> None:
        self._decision = decision

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Decision:
        return self._decision

    def remember(self, rule: str) -> None:
        return

    def allow_for_session(self, rule: str) -> None:
        return

    def may_read(self, path: Path) -> bool:
        return True


@pytest.mark.parametrize(
    ("decision", "seen"),
    [
        (Decision("allow"), [False]),
        (Decision("allow", agreed=True), [True]),
        (Decision("ask", rule="x"), [False, True]),  # the preview, then the call
    ],
)
async def test_an_answer_of_the_person_counts_as_agreement(
    tmp_path: Path, decision: Decision, seen: list[bool]
) -> None:
    from pointcode_local.engine.types import ToolCall

    asked: list[bool] = []
    tool = FakeTool("shell", access="execute")
    box = Toolbox(
        tools={"shell": tool}, policy=Answers(decision), workspace=None, root=tmp_path, interactive=True,
        sandbox=asked.append,
    )  # fmt: skip

    async def yes(call_id: str) -> str:
        return "once"

    runner = CallRunner(box, Conduct(lambda event: None, yes, lambda text: text, 1))
    runner.start(ToolCall("1", "shell", "{}"))
    await runner.wait()
    assert asked == seen

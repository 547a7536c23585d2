"""Whole turns of a small model that is led by blocks: the real tools, a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pointcode_local.agent import Agent
from pointcode_local.compose import system_prompt
from pointcode_local.config import Places, Settings
from pointcode_local.events import AgentEvent, TextDelta
from pointcode_local.kit import ToolKit
from pointcode_local.runner import Toolbox
from pointcode_local.session import SessionStore
from tests.app.agents import assert_valid_history, end_of
from tests.fakes import ScriptedModel, Step


def play(
    tmp_path: Path, prompt: str, *steps: Step, mode: str = "auto", attached: str = "", **files: str
) -> tuple[ScriptedModel, str, Agent]:
    """One turn in a folder with these files (`_` stands for a dot); the model, the answer, the agent."""
    model, events, agent = play_events(tmp_path, prompt, *steps, mode=mode, attached=attached, **files)
    return model, end_of(events).text, agent


def play_events(
    tmp_path: Path, prompt: str, *steps: Step, mode: str = "auto", attached: str = "", **files: str
) -> tuple[ScriptedModel, list[AgentEvent], Agent]:
    """The same, with all events of the turn."""
    model = ScriptedModel(*steps, is_small=True)
    root = tmp_path / "ws"
    root.mkdir(exist_ok=True)
    for name, text in files.items():
        (root / name.replace("_", ".")).write_bytes(text.encode())
    kit = ToolKit(Settings(permission_mode=mode), Places(tmp_path, tmp_path, tmp_path), root, small_model=True)
    agent = Agent(
        model=model,
        toolbox=Toolbox(
            {t.name: t for t in kit.tools}, kit.policy, kit.workspace, root, sandbox=kit.policy.sandbox_for
        ),
        log=SessionStore(tmp_path / "sessions").create(root),
        system=system_prompt(small=True, blocks=True),
        menu="blocks",
    )

    async def run() -> list[AgentEvent]:
        if attached:
            agent.attach("standard input", attached)
        try:
            return [event async for event in agent.run(prompt)]
        finally:
            await kit.close()

    events = asyncio.run(run())
    assert_valid_history(agent.conversation.messages)
    return model, events, agent


def streamed(events: list[AgentEvent]) -> str:
    """The text that a front end has shown at the end."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))

"""`!command`: what the person runs, as the screen and the model get it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from pointcode_local.events import AgentEvent, ToolFinished, ToolProgress
from pointcode_local.usershell import note_for_model, run_user_shell
from tests.app.fakes_tui import ScriptedAgent, ScriptedHost
from tests.app.tui_kit import make_app, screen_text, settle, wait_for


@pytest.fixture(autouse=True)
def _plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")


async def events_of(command: str, cwd: Path) -> Sequence[AgentEvent]:
    return [event async for event in run_user_shell(command, cwd, "own")]


async def test_colours_and_rewritten_lines_are_shown_as_a_terminal_would_leave_them(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"\x1b[31mred\x1b[0m\n1%\r100%\n\x1b]0;title\x07\xff end")
    events = await events_of("cat out; exit 3", tmp_path)
    assert isinstance(events[-1], ToolFinished)
    assert events[-1].text == "red\n100%\n\ufffd end\nexit code 3"
    assert "\x1b" not in "".join(e.text for e in events if isinstance(e, ToolProgress))
    assert "\x1b" not in note_for_model(events[-1])


async def test_a_stopped_command_finishes_as_stopped_with_what_it_printed(tmp_path: Path) -> None:
    events: list[AgentEvent] = []
    begun = asyncio.Event()

    async def watch() -> None:
        async for event in run_user_shell("echo begun; exec sleep 600", tmp_path, "own"):
            events.append(event)
            if isinstance(event, ToolProgress):
                begun.set()

    task = asyncio.create_task(watch())
    await begun.wait()
    task.cancel()
    await task
    assert isinstance(events[-1], ToolFinished)
    assert events[-1].text == "begun\nstopped"
    assert events[-1].is_error


async def test_the_screen_shows_what_ones_own_command_printed_without_unfolding(tmp_path: Path) -> None:
    app = make_app(host=ScriptedHost(ScriptedAgent(), cwd=tmp_path))
    async with app.run_test(size=(80, 40)) as pilot:
        await settle(app, pilot)
        app.submit("!seq 101 150")
        await wait_for(app, pilot, lambda: "50 lines" in screen_text(app))
        assert "150" in screen_text(app) and "131" in screen_text(app)
        assert "│ 130" not in screen_text(app)
        app.submit("!exec sleep 600")
        await wait_for(app, pilot, lambda: "running…" in screen_text(app))
        await pilot.press("escape")
        await wait_for(app, pilot, lambda: not app._turns.in_user_shell)
        assert "running…" not in screen_text(app)
        assert "✗ !exec sleep 600  stopped" in screen_text(app)

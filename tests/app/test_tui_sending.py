"""What is sent while a model opens or a turn runs: it waits in order, begins by itself, and can be taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pointcode_local.events import AgentEvent, Answer, ModeChanged, SetMode, TurnFinished, TurnStarted
from pointcode_local.frontend import HostError
from pointcode_local.tui.app import PointcodeApp
from pointcode_local.tui.story import NoticeRecord, UserRecord
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import agent_of, asked, composer_text, idle, make_app, screen_text, settle, type_text, wait_for
from tests.app.tui_scripts import PERMISSION, answer


class SlowHost(ScriptedHost):
    """Its models open when the test says so."""

    def __init__(self, *scripts: list[object], **options: Any) -> None:
        super().__init__(ScriptedAgent(list(scripts)), **options)
        self.gate = asyncio.Event()
        self.models_used: list[str] = []

    async def open(self, on_progress: Any) -> Any:
        await self.gate.wait()
        return await super().open(on_progress)

    async def use_model(self, name: str, on_progress: Any) -> Any:
        await self.gate.wait()
        self.models_used.append(name)
        return self.agent


def said(app: PointcodeApp) -> list[str]:
    """What stands on the screen of the person and of the program, in order."""
    return [r.text for r in app.story.records if isinstance(r, UserRecord | NoticeRecord)]


async def send(pilot: Any, text: str) -> None:
    await type_text(pilot, text)
    await pilot.press("escape", "enter")  # escape closes the list of commands


async def test_commands_and_messages_sent_while_the_model_opens_run_in_order_when_it_is_open() -> None:
    host = SlowHost(answer("Done"))
    app = make_app(host=host)
    async with app.run_test() as pilot:
        for text in ("/undo", "do it", "/redo"):
            await send(pilot, text)
        await settle(app, pilot)
        assert said(app) == [] and composer_text(app) == ""
        assert all(f"queued  {text}" in screen_text(app) for text in ("/undo", "do it", "/redo"))
        host.gate.set()
        await wait_for(app, pilot, lambda: len(said(app)) == 3)
        assert said(app) == ["Restored src/app.py.", "do it", "Changed src/app.py again."]
        assert "queued" not in screen_text(app)


async def test_help_opens_while_the_model_does() -> None:
    app = make_app(host=SlowHost())
    async with app.run_test() as pilot:
        await send(pilot, "/help")
        await wait_for(app, pilot, lambda: "Permission modes" in screen_text(app) or "Sending" in screen_text(app))


async def test_a_mode_chosen_while_the_model_opens_is_that_of_the_first_turn() -> None:
    host = SlowHost()
    app = make_app(host=host)
    async with app.run_test() as pilot:
        await pilot.press("shift+tab")
        await settle(app, pilot)
        assert app.mode == "accept-edits"
        host.gate.set()
        await idle(app, pilot)
        assert agent_of(app).sent == [SetMode("accept-edits")]


async def test_what_waits_for_a_model_that_cannot_be_opened_comes_back_into_the_field() -> None:
    host = SlowHost(open_error="No model is on this machine.")
    app = make_app(host=host, prompt="explain this")
    async with app.run_test() as pilot:
        await send(pilot, "then go on")
        host.gate.set()
        await wait_for(app, pilot, lambda: composer_text(app) != "")
        assert composer_text(app) == "explain this\nthen go on"
        assert "queued" not in screen_text(app)


async def test_a_message_sent_while_another_model_opens_goes_to_that_model() -> None:
    host = SlowHost(answer("Hello"))
    host.gate.set()
    app = make_app(host=host)
    async with app.run_test() as pilot:
        await idle(app, pilot)
        host.gate.clear()
        await send(pilot, "/model smollm2-135m")
        await wait_for(app, pilot, lambda: app.is_opening)
        await send(pilot, "hi")
        await settle(app, pilot)
        assert not app.is_busy and "queued  hi" in screen_text(app)
        host.gate.set()
        await wait_for(app, pilot, lambda: "hi" in said(app))
        assert host.models_used == ["smollm2-135m"]
        assert said(app)[0].startswith("The model is now smollm2-135m.")


async def test_a_model_that_cannot_be_used_lets_what_waits_go_to_the_present_one() -> None:
    host = SlowHost(answer("Hello"))
    app = make_app(host=host)

    async def fail(name: str, on_progress: Any) -> Any:
        await host.gate.wait()
        raise HostError("It does not fit into memory.")

    host.use_model = fail  # type: ignore[method-assign]
    async with app.run_test() as pilot:
        for text in ("/model smollm2-135m", "hi"):
            await send(pilot, text)
        host.gate.set()
        await wait_for(app, pilot, lambda: "hi" in said(app))
        assert said(app) == ["It does not fit into memory.", "hi"]


@pytest.mark.parametrize("command", ["/undo", "/redo"])
async def test_a_command_that_needs_the_end_of_the_turn_runs_then_and_before_what_was_sent_later(command: str) -> None:
    app = make_app([*answer("Working"), WAIT], answer("Second"), prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        for text in (command, "next"):
            await send_during_turn(pilot, text)
        await settle(app, pilot)
        assert f"queued  {command}" in screen_text(app) and agent_of(app).sent == []
        agent_of(app).release()
        await wait_for(app, pilot, lambda: "next" in said(app))
        await idle(app, pilot)
        done = {"/undo": "Restored src/app.py.", "/redo": "Changed src/app.py again."}[command]
        assert said(app) == ["go", done, "next"]


async def send_during_turn(pilot: Any, text: str) -> None:
    await type_text(pilot, text)
    await pilot.press("enter")


async def test_after_a_stop_commands_that_waited_come_back_into_the_field_behind_the_messages() -> None:
    app = make_app([*answer("Working"), WAIT], prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        for text in ("later", "/undo", "last"):
            await send_during_turn(pilot, text)
        await pilot.press("escape")
        await idle(app, pilot)
        assert composer_text(app) == "later\n/undo\nlast"
        assert said(app) == ["go", "Stopped."]


async def test_up_in_an_empty_field_takes_back_what_waits_and_the_turn_goes_on() -> None:
    app = make_app([*answer("Working"), WAIT], answer("Second"), prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        await send_during_turn(pilot, "with a typo")
        await wait_for(app, pilot, lambda: app.story.queued == ["with a typo"])
        assert "Up takes back what is queued" in screen_text(app)
        await pilot.press("up")
        await settle(app, pilot)
        assert composer_text(app) == "with a typo" and app.is_busy and "queued" not in screen_text(app)
        agent_of(app).release()
        await idle(app, pilot)
        assert said(app) == ["go"]


async def test_the_seconds_of_a_queued_turn_are_counted_from_its_own_beginning() -> None:
    app = make_app([*answer("Working"), WAIT], [WAIT], prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        await send_during_turn(pilot, "next")
        app._clock.now += 50  # type: ignore[attr-defined]
        app.show_state()
        await settle(app, pilot)
        assert " 50 s" in screen_text(app)
        agent_of(app).release()
        await wait_for(app, pilot, lambda: "next" in said(app))
        assert " 50 s" not in screen_text(app)
        agent_of(app).release()
        await idle(app, pilot)


async def test_a_session_that_is_gone_on_with_shows_the_mode_of_now_not_the_one_of_then() -> None:
    events: list[AgentEvent] = [ModeChanged("plan"), TurnStarted("hi"), TurnFinished("done", "", 1)]
    app = make_app(host=ScriptedHost(ScriptedAgent(), events=events, mode="auto"))
    async with app.run_test() as pilot:
        await idle(app, pilot)
        assert app.mode == "auto" and "mode auto" in screen_text(app)


async def test_a_turn_that_ends_at_a_limit_says_at_which() -> None:
    end = TurnFinished("limit", "", 3, "stopped: the model only repeated itself")
    events: list[AgentEvent] = [TurnStarted("hi"), end]
    app = make_app(host=ScriptedHost(ScriptedAgent(), events=events))
    async with app.run_test() as pilot:
        await idle(app, pilot)
        assert said(app)[-1] == "Stopped: the model only repeated itself."


async def test_compact_waits_for_the_end_of_the_turn_and_tells_what_came_of_it() -> None:
    app = make_app([*answer("Working"), WAIT], prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        await send_during_turn(pilot, "/compact")
        await wait_for(app, pilot, lambda: "queued  /compact" in screen_text(app))
        agent_of(app).release()
        await wait_for(app, pilot, lambda: len(said(app)) == 3)
        await idle(app, pilot)
        assert said(app)[1:] == [
            "The conversation holds 900 tokens; shortening it.",
            "The conversation now holds 200 tokens.",
        ]


@pytest.mark.parametrize(("bell", "is_away", "rings"), [(True, True, 2), (True, False, 0), (False, True, 0)])
async def test_the_bell_rings_for_a_question_and_an_end_while_another_window_has_the_focus(
    bell: bool, is_away: bool, rings: int
) -> None:
    app = make_app([PERMISSION, *answer("Done")], prompt="go", bell=bell)
    rung: list[str] = []
    app.bell = lambda: rung.append("bell")  # type: ignore[method-assign]
    async with app.run_test() as pilot:
        app.app_focus = not is_away
        await asked(app, pilot)
        agent_of(app).send(Answer("ask1", "once"))
        await idle(app, pilot)
    assert len(rung) == rings

"""Screens as snapshots: what a person sees at each stage, in several sizes and colours."""

from __future__ import annotations

import pytest

from pointcode_local.events import PermissionAsked, QuestionAsked, ReasoningDelta, ToolProgress, ToolStarted
from pointcode_local.frontend import Progress
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import arm, check_snapshot, make_app, settle, wait_for
from tests.app.tui_scripts import DIFF, PERMISSION, USAGE, answer, full_turn

PROMPT = "Add a --verbose flag to the command line, and run the tests."


@pytest.mark.parametrize(("width", "theme"), [(90, "dark"), (90, "light"), (40, "dark")])
async def test_the_first_screen_says_where_it_is_and_what_to_type(width: int, theme: str) -> None:
    app = make_app(theme=theme)
    async with app.run_test(size=(width, 24)) as pilot:
        await settle(app, pilot)
        check_snapshot(app, f"first-{theme}-{width}")


@pytest.mark.parametrize(("width", "theme"), [(90, "dark"), (90, "light"), (40, "dark"), (130, "dark")])
async def test_a_whole_turn_is_readable_in_every_size(width: int, theme: str) -> None:
    app = make_app(full_turn(), prompt=PROMPT, theme=theme)
    async with app.run_test(size=(width, 56)) as pilot:
        await wait_for(app, pilot, lambda: app.agent is not None and not app.is_busy)
        check_snapshot(app, f"turn-{theme}-{width}")


async def test_without_colours_signs_and_weight_carry_the_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(full_turn(), prompt=PROMPT)
    async with app.run_test(size=(90, 56)) as pilot:
        await wait_for(app, pilot, lambda: app.agent is not None and not app.is_busy)
        check_snapshot(app, "turn-no-colour")
        colors = {s.style.color for strip in app.screen._compositor.render_strips(app.size) for s in strip if s.style}
        assert all(color is None or color.is_default for color in colors)


async def test_a_command_asks_with_its_reason_and_the_exact_rule() -> None:
    app = make_app([*answer("I will push."), PERMISSION], prompt=PROMPT)
    async with app.run_test(size=(90, 30)) as pilot:
        await wait_for(app, pilot, lambda: app._panel is not None)
        await arm(app, pilot)
        app._panel.check_armed()
        await settle(app, pilot)
        check_snapshot(app, "permission-command")


async def test_an_edit_asks_with_its_diff() -> None:
    ask = PermissionAsked("e", "edit", {"path": "src/cli.py"}, "edit src/cli.py", "", "edit(src/*)", (DIFF,))
    app = make_app([ask], prompt=PROMPT)
    async with app.run_test(size=(90, 40)) as pilot:
        await wait_for(app, pilot, lambda: app._panel is not None)
        check_snapshot(app, "permission-edit-not-yet-armed")


async def test_a_question_offers_its_options() -> None:
    ask = QuestionAsked("q", "Which unit should the forecast use?", ("Celsius", "Fahrenheit"))
    app = make_app([ask], prompt=PROMPT)
    async with app.run_test(size=(90, 24)) as pilot:
        await wait_for(app, pilot, lambda: app._panel is not None)
        await arm(app, pilot)
        app._panel.check_armed()
        await settle(app, pilot)
        check_snapshot(app, "question")


async def test_a_running_turn_shows_live_output_and_what_waits() -> None:
    script: list[object] = [
        ReasoningDelta("Let me run the tests first."),
        USAGE,
        ToolStarted("s", "shell", {"command": "pytest"}, "shell pytest"),
        ToolProgress("s", "".join(f"tests/test_{n}.py ...\n" for n in range(12))),
        WAIT,
    ]
    app = make_app(script, prompt=PROMPT)
    async with app.run_test(size=(90, 30)) as pilot:
        await wait_for(app, pilot, lambda: app.story.doing == "Running shell")
        await pilot.press(*"and the docs", "enter")
        await wait_for(app, pilot, lambda: bool(app.story.queued))
        check_snapshot(app, "running")


async def test_a_model_being_fetched_shows_how_far_it_is() -> None:
    host = ScriptedHost(
        ScriptedAgent(), open_progress=[Progress("Downloading qwen2.5-coder-0.5b", 210_000_000, 491_000_000)]
    )
    host.hold_open = True
    app = make_app(host=host)
    async with app.run_test(size=(90, 24)) as pilot:
        await settle(app, pilot)
        check_snapshot(app, "fetching")

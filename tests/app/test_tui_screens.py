"""Every screen and dialog as a snapshot: at 40, 80 and 160 columns, in dark and light colours."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from pointcode_local.complete import COMMANDS
from pointcode_local.events import PermissionAsked, QuestionAsked, ReasoningDelta, ToolProgress, ToolStarted
from pointcode_local.frontend import FirstLook, Progress
from pointcode_local.tui.app import PointcodeApp
from pointcode_local.tui.firstrun import FirstRun
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import (
    arm,
    asked,
    check_screens,
    composer_text,
    make_app,
    panel_of,
    screen_cells,
    screen_text,
    settle,
    type_text,
    wait_for,
)
from tests.app.tui_scripts import DIFF, ENGINE, FIRST_LOOK, PERMISSION, SESSIONS, USAGE, answer, full_turn

PROMPT = "Add a --verbose flag to the command line, and run the tests."
TALL = (60, 60, 50)


@asynccontextmanager
async def shown(
    *script: object, idle: bool = True, prompt: str = PROMPT, **options: Any
) -> AsyncGenerator[tuple[PointcodeApp, Pilot[Any]]]:
    """An app that has played `script`: to its end, or (`idle` False) to where it waits."""
    host = options.pop("host", None) or ScriptedHost(ScriptedAgent([list(script)]))
    app = make_app(host=host, prompt=prompt if script else "", **options)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(app, pilot, lambda: not idle or (app.agent is not None and not app.is_busy))
        yield app, pilot


async def test_the_very_first_screen_says_what_was_found_and_what_will_be_fetched() -> None:
    host = ScriptedHost(ScriptedAgent(), look=FIRST_LOOK)
    async with shown(host=host, idle=False) as (app, pilot):
        await check_screens(app, pilot, "first-run")
        await arm(app, pilot)
        await pilot.press("enter")
        await wait_for(app, pilot, lambda: app.agent is not None)
        assert host.look_seen == 1


async def test_what_is_typed_over_the_first_screen_is_in_the_composer_behind_it() -> None:
    host = ScriptedHost(ScriptedAgent(), look=FIRST_LOOK)
    async with shown(host=host, idle=False) as (app, pilot):
        await wait_for(app, pilot, lambda: isinstance(app.screen, FirstRun))
        await type_text(pilot, "quit it?")
        app.screen.post_message(Paste(" yes"))
        await pilot.press("enter")  # typed before anybody could read what is asked: it agrees to no download
        await settle(app, pilot)
        assert isinstance(app.screen, FirstRun)
        await arm(app, pilot)
        await pilot.press("enter")
        await wait_for(app, pilot, lambda: app.agent is not None)
        assert composer_text(app) == "quit it? yes" and app.story.records == []


async def test_with_nothing_to_fetch_the_first_screen_has_a_key_to_start_and_one_to_leave() -> None:
    host = ScriptedHost(ScriptedAgent(), look=FirstLook(FIRST_LOOK.findings[:3]))
    async with shown(host=host, idle=False) as (app, pilot):
        await check_screens(app, pilot, "first-run-nothing-to-fetch")
        await pilot.press("escape")
    assert app.return_value == 0 and app.agent is None and host.look_seen == 0


async def test_the_empty_conversation_says_where_it_is_and_what_to_type() -> None:
    async with shown() as (app, pilot):
        await check_screens(app, pilot, "welcome")


async def test_in_an_empty_folder_nothing_is_offered_that_needs_files(tmp_path: Path) -> None:
    async with shown(host=ScriptedHost(ScriptedAgent(), cwd=tmp_path)) as (app, _):
        assert "Create hello.py" in screen_text(app) and "Run the tests" not in screen_text(app)


async def test_a_model_being_fetched_shows_how_far_it_is() -> None:
    progress = Progress("Downloading qwen2.5-coder-0.5b", 210_000_000, 491_000_000)
    host = ScriptedHost(ScriptedAgent(), open_progress=[progress], hold_open=True)
    async with shown(host=host, idle=False) as (app, pilot):
        await check_screens(app, pilot, "fetching")


async def test_a_model_that_cannot_be_opened_is_said() -> None:
    host = ScriptedHost(ScriptedAgent(), open_error="The file of the model is damaged: fetch it again.", sandbox="none")
    async with shown(host=host, idle=False) as (app, pilot):
        await wait_for(app, pilot, lambda: bool(app.story.records))
        await check_screens(app, pilot, "cannot-open")


async def test_a_whole_turn_is_readable_in_every_size() -> None:
    async with shown(*full_turn()) as (app, pilot):
        await check_screens(app, pilot, "turn", TALL)
        await pilot.press("ctrl+o", "ctrl+t")
        await settle(app, pilot)
        await check_screens(app, pilot, "turn-unfolded", (50, 50, 50))


async def test_without_colours_signs_and_weight_carry_the_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(*full_turn()) as (app, _):
        colors = {style.split(" on ")[0] for row in screen_cells(app) for _, style in row if style}
        assert colors <= {"-", "default"}
        assert any("bold" in style for row in screen_cells(app) for _, style in row)


async def test_a_running_turn_shows_live_output_and_what_waits() -> None:
    script: list[object] = [
        ReasoningDelta("Let me run the tests first."),
        USAGE,
        ToolStarted("s", "shell", {"command": "pytest"}, "shell pytest"),
        ToolProgress("s", "".join(f"tests/test_{n}.py ...\n" for n in range(12))),
        WAIT,
    ]
    async with shown(*script, idle=False) as (app, pilot):
        await wait_for(app, pilot, lambda: app.story.doing == "Running shell")
        app.submit("and the docs")
        app.submit("only the fast ones", steer=True)
        app.story.steering[:] = ["only the fast ones"]  # the scripted agent reads it at once
        await wait_for(app, pilot, lambda: bool(app.story.queued))
        app.show_state()
        await check_screens(app, pilot, "running")


async def test_a_command_asks_with_its_reason_and_the_exact_rule() -> None:
    async with shown(*answer("I will push."), PERMISSION, idle=False) as (app, pilot):
        await asked(app, pilot)
        await arm(app, pilot)
        panel_of(app).check_armed()
        await check_screens(app, pilot, "permission-command")


async def test_an_edit_asks_with_its_diff_and_is_faint_until_it_can_be_read() -> None:
    ask = PermissionAsked("e", "edit", {"path": "src/cli.py"}, "edit src/cli.py", "", "edit(src/*)", (DIFF,))
    async with shown(ask, idle=False) as (app, pilot):
        await asked(app, pilot)
        await check_screens(app, pilot, "permission-edit-not-yet-armed", (40, 40, 40))


async def test_a_question_offers_its_options() -> None:
    ask = QuestionAsked("q", "Which unit should the forecast use?", ("Celsius", "Fahrenheit"))
    async with shown(ask, idle=False) as (app, pilot):
        await asked(app, pilot)
        await arm(app, pilot)
        panel_of(app).check_armed()
        await check_screens(app, pilot, "question")


@pytest.mark.parametrize("command", ["resume", "model", "mode", "theme"])
async def test_pickers_list_what_there_is(command: str) -> None:
    host = ScriptedHost(ScriptedAgent(), stored=SESSIONS)
    async with shown(host=host, wall_clock=lambda: 1_000_000.0) as (app, pilot):
        app.submit(f"/{command}")
        await wait_for(app, pilot, lambda: app.screen is not app._bottom.screen)
        if command == "theme":
            app.screen._on_mark = None  # type: ignore[attr-defined]  (the snapshot sets the theme itself)
        await check_screens(app, pilot, f"picker-{command}")


async def test_the_engine_has_a_screen() -> None:
    host = ScriptedHost(ScriptedAgent(), engine_views=[ENGINE])
    async with shown(host=host) as (app, pilot):
        app.submit("/engine")
        await wait_for(app, pilot, lambda: host.measured == 1)
        await check_screens(app, pilot, "engine")


FEW_COMMANDS = tuple(c for c in COMMANDS if c.name in ("help", "clear", "resume", "mode", "model", "engine", "quit"))


async def test_help_explains_keys_commands_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointcode_local.tui.help.COMMANDS", FEW_COMMANDS)  # a new command changes no picture
    async with shown() as (app, pilot):
        app.submit("/help")
        await wait_for(app, pilot, lambda: app.screen is not app._bottom.screen)
        await check_screens(app, pilot, "help", (100, 70, 60))


async def test_lists_above_the_composer_complete_commands_and_find_earlier_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointcode_local.complete.COMMANDS", FEW_COMMANDS * 2)
    history = tmp_path / "prompts.jsonl"
    history.write_text('"fix the parser"\n"write docs"\n"parse the date"\n', encoding="utf-8")
    async with shown(history_path=history, vi_keys=True) as (app, pilot):
        await pilot.press("slash")
        await settle(app, pilot)
        await check_screens(app, pilot, "commands")
        await pilot.press("backspace", "ctrl+r", *"pars")
        await settle(app, pilot)
        await check_screens(app, pilot, "history-search")

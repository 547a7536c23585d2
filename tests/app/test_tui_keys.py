"""Keys of the full-screen app, pressed on a scripted agent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from textual import events

from pointcode_local.events import (
    TurnStarted,
)
from pointcode_local.tui import FPS, app_class
from pointcode_local.tui.app import PointcodeApp
from pointcode_local.tui.composer import LOOKING
from pointcode_local.tui.keyboard import PasteParser
from tests.app.fakes_tui import ScriptedAgent, ScriptedHost
from tests.app.tui_kit import (
    composer_text,
    idle,
    make_app,
    screen_text,
    settle,
    type_text,
    wait_for,
)
from tests.app.tui_scripts import answer


async def test_enter_sends_and_the_answer_appears() -> None:
    app = make_app(answer("Hello **there**."))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        await type_text(pilot, "hi")
        await pilot.press("enter")
        await wait_for(app, pilot, lambda: len(app.story.records) == 2)
        await idle(app, pilot)
        assert "Hello there." in screen_text(app)
        assert composer_text(app) == ""


@pytest.mark.parametrize("key", ["shift+enter", "ctrl+j", "alt+enter"])
async def test_other_enters_begin_a_new_line(key: str) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await type_text(pilot, "a")
        await pilot.press(key)
        await type_text(pilot, "b")
        assert composer_text(app) == "a\nb"


async def test_what_was_typed_is_undone_by_ctrl_underscore_and_done_again_by_ctrl_y() -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await type_text(pilot, "abc")
        await pilot.press("ctrl+underscore")
        assert composer_text(app) == ""
        await pilot.press("ctrl+y")
        assert composer_text(app) == "abc"


async def test_a_final_backslash_and_enter_begin_a_new_line() -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await pilot.press("a", "backslash", "enter", "b")
        assert composer_text(app) == "a\nb"


async def test_up_and_down_walk_through_earlier_messages_and_back_to_the_draft(tmp_path: Path) -> None:
    history = tmp_path / "prompts.jsonl"
    history.write_text('"first"\nnot json\n"second\\nline"\n', encoding="utf-8")
    app = make_app(history_path=history)
    async with app.run_test() as pilot:
        await type_text(pilot, "draft")
        seen: list[str] = []
        for key in ("up", "up", "up", "down", "down", "down"):
            await pilot.press(key)
            seen.append(composer_text(app))
        assert seen == ["second\nline", "first", "first", "second\nline", "draft", "draft"]


async def test_sent_messages_are_kept_for_the_next_run(tmp_path: Path) -> None:
    history = tmp_path / "state" / "prompts.jsonl"
    app = make_app(history_path=history)
    async with app.run_test() as pilot:
        await settle(app, pilot)
        await pilot.press("o", "n", "e", "enter")
        await idle(app, pilot)
    assert history.read_text(encoding="utf-8") == '"one"\n'


async def test_ctrl_r_finds_an_earlier_message(tmp_path: Path) -> None:
    history = tmp_path / "prompts.jsonl"
    history.write_text('"fix the parser"\n"write docs"\n', encoding="utf-8")
    app = make_app(history_path=history)
    async with app.run_test() as pilot:
        await pilot.press("ctrl+r")
        await type_text(pilot, "parser")
        await pilot.press("enter")
        assert composer_text(app) == "fix the parser"


async def test_slash_lists_commands_and_tab_completes() -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await type_text(pilot, "/mo")
        await settle(app, pilot)
        assert "/mode" in screen_text(app) and "/model" in screen_text(app)
        await pilot.press("down", "tab")
        assert composer_text(app) == "/model "


async def test_at_completes_a_path_of_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "settings.py").write_text("x")
    (tmp_path / "notes.md").write_text("x")
    app = make_app(host=ScriptedHost(ScriptedAgent(), cwd=tmp_path))
    async with app.run_test() as pilot:
        await type_text(pilot, "read @sett")
        await wait_for(app, pilot, lambda: bool(app._choices.choices))
        await pilot.press("tab")
        assert composer_text(app) == "read @src/settings.py "
        (tmp_path / "my dir").mkdir()
        (tmp_path / "my dir" / "a plan.txt").write_text("x")
        app._clock.now += 60  # type: ignore[attr-defined]
        await type_text(pilot, "and @aplan")
        await wait_for(app, pilot, lambda: bool(app._choices.choices))
        await pilot.press("tab")
        assert composer_text(app) == 'read @src/settings.py and @"my dir/a plan.txt" '


def press_at_once(app: PointcodeApp, keys: str) -> None:
    """Keys that come faster than the screen follows, then Enter."""
    for character in keys:
        app._composer.post_message(events.Key(character, character))
    app._composer.post_message(events.Key("enter", "\r"))


async def test_enter_behind_a_quickly_typed_command_runs_that_and_not_what_the_list_had_marked_before() -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await type_text(pilot, "/")
        await settle(app, pilot)
        assert "› /help" in screen_text(app)
        press_at_once(app, "mcp")
        await settle(app, pilot)
        assert "docs: running, 2 tools" in screen_text(app) and composer_text(app) == ""


async def test_files_that_are_looked_for_long_are_said_to_be_and_enter_sends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = asyncio.Event()

    async def find(query: str) -> list[str]:
        await hold.wait()
        return ["slow.py"]

    agent = ScriptedAgent([answer("Read.")])
    app = make_app(host=ScriptedHost(agent, cwd=tmp_path))
    monkeypatch.setattr(app._paths, "find", find)
    async with app.run_test() as pilot:
        await type_text(pilot, "read @slow")
        await wait_for(app, pilot, lambda: LOOKING in screen_text(app))
        hold.set()
        await wait_for(app, pilot, lambda: "slow.py" in screen_text(app))
        assert LOOKING not in screen_text(app)
        hold.clear()
        await type_text(pilot, "er")
        await pilot.press("enter")
        await wait_for(app, pilot, lambda: bool(agent.played))
        assert agent.played[0] == TurnStarted("read @slower")


async def test_enter_behind_a_quickly_typed_path_sends_that_path(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("x")
    agent = ScriptedAgent([answer("Read.")])
    app = make_app(host=ScriptedHost(agent, cwd=tmp_path))
    async with app.run_test() as pilot:
        await type_text(pilot, "read @")
        await wait_for(app, pilot, lambda: bool(app._choices.choices))
        press_at_once(app, "b.md")
        await wait_for(app, pilot, lambda: bool(agent.played))
        assert agent.played[0] == TurnStarted("read @b.md")


async def test_a_large_paste_is_shown_as_a_chip_and_sent_in_full() -> None:
    app = make_app()
    text = "\n".join(f"line {n}" for n in range(20_000))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        app._composer.post_message(events.Paste(text))
        await settle(app, pilot)
        assert composer_text(app) == "[pasted text #1, 20,000 lines]"
        await type_text(pilot, "?")
        await pilot.press("enter")
        await idle(app, pilot)
        assert app.story.records[0].text == f"{text}?"  # type: ignore[union-attr]
        assert "… 19,960 lines not shown …" in screen_text(app) and "line 19999?" in screen_text(app)


async def test_a_path_that_begins_with_a_slash_is_a_message() -> None:
    app = make_app(answer("ok"))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        app.submit("/etc/hosts is wrong")
        await wait_for(app, pilot, lambda: len(app.story.records) == 2)
        assert app.story.records[0].text == "/etc/hosts is wrong"  # type: ignore[union-attr]


def test_commands_do_not_see_how_often_the_screen_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FPS, raising=False)
    assert app_class() is PointcodeApp and FPS not in os.environ
    monkeypatch.setenv(FPS, "30")
    assert app_class() is PointcodeApp and os.environ[FPS] == "30"


async def test_letters_of_every_script_are_typed_and_tabs_pasted_as_they_are() -> None:
    app = make_app()
    written = "می\u200cخواهم 👩\u200d👩\u200d👧 日本語 क्\u200dष"
    async with app.run_test() as pilot:
        await settle(app, pilot)
        for event in PasteParser().feed(written):
            app.post_message(event)
        await settle(app, pilot)
        assert composer_text(app) == written
        app._composer.set_text("")
        app.post_message(events.Paste("all:\n\tgo build\n"))
        await settle(app, pilot)
        assert composer_text(app) == "all:\n\tgo build\n"

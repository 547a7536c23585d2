"""Turns, leaving and commands of the full-screen app over a scripted agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from pointcode_local.events import (
    FileDiff,
    Prompt,
    SessionInfo,
    SetMode,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.tui.bottom import PLACEHOLDER
from pointcode_local.tui.story import AnswerRecord, UserRecord
from pointcode_local.tui.theme import DARK, LIGHT
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import (
    Clock,
    agent_of,
    composer_text,
    idle,
    make_app,
    screen_lines,
    screen_text,
    settle,
    type_text,
    wait_for,
)
from tests.app.tui_scripts import answer, full_turn


# ------------------------------------------------------------------------------------------- turns and leaving
async def test_escape_stops_the_turn_and_keeps_what_was_shown() -> None:
    app = make_app([*answer("Half an answer"), WAIT], prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: any(isinstance(r, AnswerRecord) for r in app.story.records))
        await pilot.press("escape")
        await idle(app, pilot)
        assert "Half an answer" in screen_text(app)
        assert isinstance(agent_of(app).played[-1], TurnFinished)


async def test_enter_queues_and_ctrl_s_steers_while_a_turn_runs() -> None:
    app = make_app([*answer("Working"), WAIT], answer("Second"), prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        await type_text(pilot, "later")
        await pilot.press("enter")
        await type_text(pilot, "now")
        await pilot.press("ctrl+s")
        await wait_for(app, pilot, lambda: app.story.queued == ["later"] and app.story.records[-1].text == "now")  # type: ignore[union-attr]
        assert agent_of(app).sent == [Prompt("later"), Prompt("now", steer=True)]
        agent_of(app).release()
        await idle(app, pilot)
        assert [r.text for r in app.story.records if isinstance(r, UserRecord)] == ["go", "now", "later"]
        assert app.story.queued == []


async def test_a_queued_message_comes_back_into_the_composer_after_a_stop() -> None:
    app = make_app([*answer("Working"), WAIT], prompt="go")
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        await type_text(pilot, "later")
        await pilot.press("enter")
        await wait_for(app, pilot, lambda: app.story.queued == ["later"])
        await pilot.press("escape")
        await idle(app, pilot)
        assert composer_text(app) == "later"


async def test_a_message_typed_before_the_model_is_open_is_sent_when_it_is() -> None:
    host = ScriptedHost(ScriptedAgent([answer("Hello")]))
    gate = asyncio.Event()
    real_open = host.open

    async def slow_open(on_progress: Any) -> Any:
        await gate.wait()
        return await real_open(on_progress)

    host.open = slow_open  # type: ignore[method-assign]
    app = make_app(host=host)
    async with app.run_test() as pilot:
        await pilot.press("h", "i", "enter")
        await settle(app, pilot)
        assert "queued  hi" in screen_text(app)
        gate.set()
        await wait_for(app, pilot, lambda: len(app.story.records) == 2)
        await idle(app, pilot)
        assert "Hello" in screen_text(app)


async def test_a_model_that_cannot_be_opened_is_said_and_the_screen_stays() -> None:
    app = make_app(host=ScriptedHost(ScriptedAgent(), open_error="No model is on this machine."))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        assert "No model is on this machine." in screen_text(app)
        await pilot.press("ctrl+d")
    assert app.return_value == 1


async def test_ctrl_c_twice_quits_and_once_does_not() -> None:
    app = make_app()
    clock = app._clock
    assert isinstance(clock, Clock)
    async with app.run_test() as pilot:
        await settle(app, pilot)
        await pilot.press("ctrl+c")
        clock.now += 5
        await pilot.press("ctrl+c")
        assert app.is_running and app.return_value is None
        await pilot.press("ctrl+c")
    assert app.return_value == 0


async def test_ctrl_c_stops_what_runs_and_keeps_the_draft_then_clears_it() -> None:
    app = make_app([WAIT], prompt="go")
    clock = app._clock
    assert isinstance(clock, Clock)
    async with app.run_test() as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        await type_text(pilot, "draft")
        await pilot.press("ctrl+c")
        await idle(app, pilot)
        assert composer_text(app) == "draft" and "Stopped." in screen_text(app)
        clock.now += 5
        await pilot.press("ctrl+c")
        assert composer_text(app) == "" and app.is_running


async def test_ctrl_d_quits_only_with_nothing_written() -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await settle(app, pilot)
        await pilot.press("a", "ctrl+d")
        assert app.return_value is None
        await pilot.press("backspace", "ctrl+d")
    assert app.return_value == 0


async def test_shift_tab_goes_through_the_modes() -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await settle(app, pilot)
        await pilot.press("shift+tab", "shift+tab")
        await settle(app, pilot)
        assert agent_of(app).sent == [SetMode("accept-edits"), SetMode("plan")]
        assert screen_text(app).splitlines()[-1].lstrip().startswith("mode plan")


# ---------------------------------------------------------------------------------------------------- commands
async def test_commands_change_theme_mode_and_model() -> None:
    app = make_app()
    async with app.run_test(size=(100, 50)) as pilot:
        await settle(app, pilot)
        app.submit("/theme light")
        await settle(app, pilot)
        assert app.theme == LIGHT.name
        app.submit("/theme dark")
        await settle(app, pilot)
        assert app.theme == DARK.name
        app.submit("/mode plan")
        await settle(app, pilot)
        assert agent_of(app).sent == [SetMode("plan")]
        app.submit("/model nonsense")
        await settle(app, pilot)
        assert "There is no model nonsense." in screen_text(app)


async def test_every_command_does_what_it_says() -> None:
    host = ScriptedHost(ScriptedAgent([answer("An answer")]), stored=[SessionInfo("s7", "Old work", "/", 0.0)])
    app = make_app(host=host)
    async with app.run_test(size=(100, 50)) as pilot:
        await settle(app, pilot)
        app.submit("hello")
        await wait_for(app, pilot, lambda: len(app.story.records) == 2)
        await idle(app, pilot)
        app.submit("/undo")
        await settle(app, pilot)
        assert "Restored src/app.py." in screen_text(app)
        host.own_commands["check"] = "!Check $ARGUMENTS"
        app.submit("/check it")
        await wait_for(app, pilot, lambda: any(getattr(e, "prompt", "") == "!Check it" for e in agent_of(app).played))
        await idle(app, pilot)
        app.submit("/copy")
        await settle(app, pilot)
        assert app.clipboard == "An answer"
        app.submit("/help")
        await settle(app, pilot)
        assert "/resume" in screen_text(app)
        await pilot.press("escape")
        told_by = {
            "/redo": "Changed src/app.py again.",
            "/diff": "changed src/app.py  +1 −1",
            "/map": "def main()",
            "/mcp": "docs: running",
        }
        for command, told in told_by.items():
            app.submit(command)
            await settle(app, pilot)
            assert told in screen_text(app)
        app.submit("/resume nope")
        await settle(app, pilot)
        assert "There is no session nope." in screen_text(app)
        app.submit("/clear")
        await settle(app, pilot)
        assert app.story.records == []
        assert "Say what you want done" in screen_text(app)
        app.submit("/quit")
        await settle(app, pilot)
    assert app.return_value == 0


async def test_selected_answer_text_is_copied_without_bullets_and_soft_line_ends() -> None:
    app = make_app([*answer("- " + "word " * 30 + "end\n\nA [link](https://example.org/x).")], prompt="go")
    async with app.run_test(size=(60, 24)) as pilot:
        await idle(app, pilot)
        rows = screen_lines(app)
        top = next(y for y, row in enumerate(rows) if "• word" in row)
        await pilot.mouse_down(offset=(2, top))
        end = next((row.index(" end") + 4, y) for y, row in enumerate(rows) if " end" in row)
        await pilot.hover(offset=end)
        await pilot.mouse_up(offset=end)
        await settle(app, pilot)
        await pilot.press("ctrl+c")
        assert app.clipboard == ("word " * 30 + "end").strip()
        link = next(y for y, row in enumerate(rows) if "A link." in row)
        await pilot.click(offset=(rows[link].index("link"), link))
        await settle(app, pilot)
        assert app.clipboard == "https://example.org/x"


async def test_resume_shows_a_list_and_replays_the_session_that_was_picked() -> None:
    stored = [SessionInfo("s7", "Old work", "/", 0.0), SessionInfo("s8", "Docs", "/", 0.0)]
    host = ScriptedHost(ScriptedAgent(), stored=stored, events=[TurnStarted("earlier"), TurnFinished("done", "", 1)])
    app = make_app(host=host)
    async with app.run_test() as pilot:
        await settle(app, pilot)
        app.submit("/resume")
        await settle(app, pilot)
        assert "Old work" in screen_text(app)
        await type_text(pilot, "docs")
        await pilot.press("enter")
        await settle(app, pilot)
        assert host.opened_sessions == ["s8"]
        assert "earlier" in screen_text(app)


async def test_ctrl_o_unfolds_thinking_and_results() -> None:
    app = make_app(full_turn(), prompt="go")
    async with app.run_test(size=(90, 120)) as pilot:
        await idle(app, pilot)
        assert "where argv is parsed" not in screen_text(app)
        await pilot.press("ctrl+o")
        await settle(app, pilot)
        assert "where argv is parsed" in screen_text(app)
        assert "39  line" in screen_text(app)
        await pilot.press("ctrl+o")
        await settle(app, pilot)
        assert "where argv is parsed" not in screen_text(app)


async def test_the_files_that_a_command_changed_are_told_below_its_output() -> None:
    many = ("a.py", "b/c.txt", *(f"generated/part-{n:02}.txt" for n in range(9)))
    call = {"command": "make"}
    app = make_app(
        [
            ToolStarted("c1", "shell", call, "shell: make"),
            ToolFinished("c1", "shell", call, "one\ntwo\n[exit code 1]", True, changed=("a.py", "b/c.txt")),
            ToolStarted("c2", "shell", call, "shell: make all"),
            ToolFinished("c2", "shell", call, "ok", False, changed=many),
        ],
        prompt="go",
    )
    async with app.run_test(size=(90, 40)) as pilot:
        await idle(app, pilot)
        lines = [line.strip() for line in screen_lines(app)]
        first = lines.index("changed: a.py, b/c.txt")
        assert "two" in lines[first - 2]
        told = next(line for line in lines if "+" in line and line.startswith("changed: "))
        assert told == "changed: a.py, b/c.txt, generated/part-00.txt, generated/part-01.txt (+7 more)"


async def test_ctrl_t_unfolds_the_plan() -> None:
    app = make_app(full_turn(), prompt="go")
    async with app.run_test(size=(90, 60)) as pilot:
        await idle(app, pilot)
        assert "○ Run the tests" not in screen_text(app)
        await pilot.press("ctrl+t")
        await settle(app, pilot)
        assert "○ Run the tests" in screen_text(app)


async def test_a_command_of_the_person_that_must_wait_for_another_stays_in_the_field(tmp_path: Path) -> None:
    app = make_app(host=ScriptedHost(ScriptedAgent(), cwd=tmp_path))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        app.submit("!sleep 600")
        app.submit("!echo two")
        assert composer_text(app) == "!echo two"
        app.action_stop()
        await wait_for(app, pilot, lambda: not app._turns.in_user_shell)


async def test_a_command_of_the_person_runs_and_the_model_hears_of_it(tmp_path: Path) -> None:
    app = make_app(host=ScriptedHost(ScriptedAgent(), cwd=tmp_path))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        app.submit("!printf 'one\\ntwo'; exit 3")
        await wait_for(app, pilot, lambda: bool(agent_of(app).notes))
        assert "exit code 3" in screen_text(app)
        assert "two" in screen_text(app)
        assert "printf" in agent_of(app).notes[0] and "two" in agent_of(app).notes[0]
        assert app._composer.placeholder == PLACEHOLDER


@pytest.mark.parametrize("width", [60, 160])
async def test_selected_lines_of_a_diff_are_copied_without_numbers_and_signs(width: int) -> None:
    new = "def f():\n    return '日本' + " + "'word ' + " * 12 + "'end'\n    last\n"
    diff = FileDiff("a.py", "def f():\n    return 1\n    last\n", new)
    edit: list[object] = [
        ToolStarted("e", "edit", {"path": "a.py"}, "edit a.py"),
        ToolFinished("e", "edit", {"path": "a.py"}, "ok", False, (diff,)),
    ]
    app = make_app([*edit, *answer("Done.")], prompt="go")
    async with app.run_test(size=(width, 30)) as pilot:
        await idle(app, pilot)
        rows = screen_lines(app)
        top = next(y for y, row in enumerate(rows) if "return '日本'" in row)
        bottom = next(y for y, row in enumerate(rows) if "last" in row)
        start = (cell_len(rows[top][: rows[top].index("return '日本'")]), top)
        end = (cell_len(rows[bottom][: rows[bottom].rindex("last") + 4]), bottom)
        await pilot.mouse_down(offset=start)
        await pilot.hover(offset=end)
        await pilot.mouse_up(offset=end)
        await settle(app, pilot)
        await pilot.press("ctrl+c")
        assert app.clipboard == "return '日本' + " + "'word ' + " * 12 + "'end'\n    last"

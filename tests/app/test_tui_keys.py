"""Keys of the full-screen app, pressed on a scripted agent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from textual import events

from pointcode_local.events import (
    Answer,
    FileDiff,
    PermissionAsked,
    Prompt,
    QuestionAsked,
    SetMode,
    TurnStarted,
)
from pointcode_local.tui import FPS, app_class
from pointcode_local.tui.app import PointcodeApp
from pointcode_local.tui.composer import LOOKING
from pointcode_local.tui.dialogs import ARM_AFTER_S, HINT_MESSAGE_HAS_KEYS
from pointcode_local.tui.keyboard import PasteParser
from tests.app.fakes_tui import ScriptedAgent, ScriptedHost
from tests.app.tui_kit import (
    Clock,
    agent_of,
    arm,
    asked,
    composer_text,
    idle,
    make_app,
    panel_of,
    screen_text,
    settle,
    type_text,
    wait_for,
)
from tests.app.tui_scripts import PERMISSION, answer


# -------------------------------------------------------------------------------------------------- composer
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
        await pilot.press("enter")
        await idle(app, pilot)
        assert app.story.records[0].text == text  # type: ignore[union-attr]
        assert "more characters" in screen_text(app)


async def test_a_path_that_begins_with_a_slash_is_a_message() -> None:
    app = make_app(answer("ok"))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        app.submit("/etc/hosts is wrong")
        await wait_for(app, pilot, lambda: len(app.story.records) == 2)
        assert app.story.records[0].text == "/etc/hosts is wrong"  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------ permission
async def test_keys_typed_before_the_permission_panel_could_be_read_do_not_answer_it() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await type_text(pilot, "yes")
        await pilot.press("enter")
        await settle(app, pilot)
        assert agent_of(app).sent == []
        assert app._panel is not None
        assert composer_text(app) == "yes"


async def test_each_early_key_starts_the_waiting_time_again() -> None:
    app = make_app([PERMISSION], prompt="go")
    clock = app._clock
    assert isinstance(clock, Clock)
    async with app.run_test() as pilot:
        await asked(app, pilot)
        clock.now += ARM_AFTER_S * 0.9
        await pilot.press("y")
        clock.now += ARM_AFTER_S * 0.9
        await pilot.press("y")
        assert agent_of(app).sent == []
        clock.now += ARM_AFTER_S * 1.1
        await pilot.press("y")
        assert agent_of(app).sent == [Answer("ask1", "once")]


async def test_a_message_typed_while_the_panel_is_open_answers_nothing_and_is_queued() -> None:
    app = make_app([PERMISSION], answer("Fine"), prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await type_text(pilot, "explain any")  # its a, y and n are no answers
        await settle(app, pilot)
        assert composer_text(app) == "explain any" and app.focused is app._composer
        await pilot.press("enter")
        await settle(app, pilot)
        assert agent_of(app).sent == [Prompt("explain any")] and app.focused is app._panel
        await pilot.press("y")  # too early: the panel has only now the keys again
        await arm(app, pilot)
        assert len(agent_of(app).sent) == 1
        await pilot.press("n")
        await idle(app, pilot)
        assert agent_of(app).sent[1] == Answer("ask1", "deny")


async def test_no_letter_of_a_message_begun_before_the_panel_came_answers_it_but_tab_gives_it_the_keys() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await type_text(pilot, "please ")
        await arm(app, pilot)
        panel_of(app).check_armed()
        await settle(app, pilot)
        assert HINT_MESSAGE_HAS_KEYS in screen_text(app)
        await type_text(pilot, "any")  # after a pause for thought
        await settle(app, pilot)
        assert composer_text(app) == "please any" and agent_of(app).sent == []
        await pilot.press("tab")
        await wait_for(app, pilot, lambda: app.focused is app._panel)
        await arm(app, pilot)
        await pilot.press("n")
        await idle(app, pilot)
        assert agent_of(app).sent == [Answer("ask1", "deny")] and composer_text(app) == "please any"


async def test_letters_that_come_at_once_with_the_first_of_a_message_answer_nothing() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        for character in "what any":  # faster than the focus can move
            panel_of(app).post_message(events.Key(character, character))
        await settle(app, pilot)
        assert composer_text(app) == "what any" and agent_of(app).sent == []
        assert HINT_MESSAGE_HAS_KEYS in screen_text(app)


async def test_what_comes_at_once_behind_an_answer_is_no_second_answer() -> None:
    second = PermissionAsked("ask2", "shell", {"command": "ls"}, "shell ls", "", "shell(ls)")
    app = make_app([PERMISSION, second], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        for character in "ya":
            panel_of(app).post_message(events.Key(character, character))
        await wait_for(app, pilot, lambda: app._panel is not None and app._panel.call_id == "ask2")
        await settle(app, pilot)
        assert agent_of(app).sent == [Answer("ask1", "once")]


async def test_of_a_diff_without_room_the_first_change_is_in_view() -> None:
    before = "".join(f"line {n}\n" for n in range(1, 40))
    diff = FileDiff("a.py", before, before.replace("line 9\n", "line nine\n"))
    ask = PermissionAsked("ask1", "edit", {"path": "a.py"}, "edit a.py", "edit changes a.py", "edit(a.py)", (diff,))
    app = make_app([ask], prompt="go")
    async with app.run_test(size=(80, 16)) as pilot:
        await asked(app, pilot)
        await settle(app, pilot)
        assert "line nine" in screen_text(app) and "Why it asks" not in screen_text(app)


async def test_a_message_that_is_wiped_out_gives_the_keys_back_to_the_panel() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press("x")
        await wait_for(app, pilot, lambda: app.focused is app._composer)
        await pilot.press("backspace")
        await wait_for(app, pilot, lambda: app.focused is app._panel)


async def test_enter_behind_a_message_that_was_begun_before_the_panel_came_does_not_say_yes() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await type_text(pilot, "so")
        await arm(app, pilot)
        await pilot.press("enter")
        await wait_for(app, pilot, lambda: app.focused is app._composer)
        assert agent_of(app).sent == [] and composer_text(app) == "so"


@pytest.mark.parametrize(("keys", "expected"), [("y", "once"), ("s", "session"), ("a", "always"), ("n", "deny")])
async def test_letters_answer_the_permission_panel(keys: str, expected: str) -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press(keys)
        await idle(app, pilot)
        assert agent_of(app).sent == [Answer("ask1", expected)]
        assert app._panel is None
        assert app.focused is app._composer


@pytest.mark.parametrize("mode", ["ask", "accept-edits"])
async def test_a_yes_to_all_edits_is_a_yes_and_the_mode_accept_edits_where_that_is_another_one(mode: str) -> None:
    ask = PermissionAsked(
        "ask1", "edit", {"path": "a.py"}, "edit a.py", "edit changes a.py", "", (FileDiff("a.py", "1\n", "2\n"),)
    )
    app = make_app(host=ScriptedHost(ScriptedAgent([[ask]]), mode=mode), prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        assert ("all later edits" in screen_text(app)) == (mode == "ask")
        if mode == "ask":
            await pilot.press("e")
            await idle(app, pilot)
            assert agent_of(app).sent == [SetMode("accept-edits"), Answer("ask1", "once")]
            assert app.mode == "accept-edits"


async def test_arrows_and_enter_answer_the_permission_panel() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press("down", "down", "down", "enter")
        assert agent_of(app).sent == [Answer("ask1", "deny")]


async def test_an_edit_is_allowed_for_the_session_by_its_mode_and_not_by_its_rule() -> None:
    diff = FileDiff("a.py", "1\n", "2\n")
    ask = PermissionAsked("ask1", "edit", {"path": "a.py"}, "edit a.py", "edit changes a.py", "edit(a.py)", (diff,))
    app = make_app([ask], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        assert "all later edits" in screen_text(app) and "for this session" not in screen_text(app)


async def test_without_a_rule_neither_always_nor_the_session_is_offered() -> None:
    ask = PermissionAsked("x", "shell", {"command": "rm -rf /"}, "shell rm -rf /", "", "")
    app = make_app([ask], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press("a")
        assert agent_of(app).sent == []
        assert "Always" not in screen_text(app) and "session" not in screen_text(app)


async def test_two_questions_are_asked_one_after_the_other_and_each_must_be_armed() -> None:
    second = PermissionAsked("ask2", "shell", {"command": "ls"}, "shell ls", "", "")
    app = make_app([PERMISSION, second], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press("y")
        await wait_for(app, pilot, lambda: app._panel is not None and app._panel.call_id == "ask2")
        await pilot.press("y")
        assert agent_of(app).sent == [Answer("ask1", "once")]


async def test_a_question_is_answered_by_number_or_in_words() -> None:
    script: list[object] = [QuestionAsked("q1", "Unit?", ("Celsius", "Fahrenheit")), QuestionAsked("q2", "Name?", ())]
    app = make_app(script, prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press("2")
        await wait_for(app, pilot, lambda: app._panel is not None and app._panel.call_id == "q2")
        await arm(app, pilot)
        panel_of(app).check_armed()
        await type_text(pilot, "wttr")
        await pilot.press("enter")
        await idle(app, pilot)
        assert agent_of(app).sent == [Answer("q1", "Fahrenheit"), Answer("q2", "wttr")]


async def test_escape_while_asked_stops_the_turn() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await pilot.press("escape")
        await idle(app, pilot)
        assert app._panel is None
        assert "Stopped." in screen_text(app)


def test_commands_do_not_see_how_often_the_screen_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FPS, raising=False)
    assert app_class() is PointcodeApp and FPS not in os.environ
    monkeypatch.setenv(FPS, "30")
    assert app_class() is PointcodeApp and os.environ[FPS] == "30"


@pytest.mark.parametrize("size", [(100, 30), (40, 24), (40, 18), (160, 60)])
async def test_however_long_the_call_is_the_answers_are_in_view_and_page_down_shows_all(size: tuple[int, int]) -> None:
    diff = FileDiff("big.py", None, "".join(f"x{n} = {n}\n" for n in range(60)))
    ask = PermissionAsked("big", "write", {"path": "big.py"}, "write big.py", "write changes big.py", "", (diff,))
    app = make_app([ask], prompt="go")
    async with app.run_test(size=size) as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        assert "Yes, this once" in screen_text(app)
        assert "No, go on without" in screen_text(app)
        assert "page down: " in screen_text(app)
        assert "x0 = 0" in screen_text(app)
        for _ in range(60):
            await pilot.press("pagedown")
            await settle(app, pilot)
            if "page down" not in screen_text(app):
                break
        assert "x59 = 59" in screen_text(app)
        assert "No, go on without" in screen_text(app)
        await pilot.resize_terminal(size[0], size[1] + 10)
        await settle(app, pilot)
        assert "No, go on without" in screen_text(app)
        await pilot.press("n")
        assert agent_of(app).sent == [Answer("big", "deny")]


async def test_a_long_command_is_shown_to_its_last_line() -> None:
    command = "cat <<'EOF' > big.txt\n" + "".join(f"line {n}\n" for n in range(120)) + "EOF\nrm -rf build\n"
    reason, rule = f"no rule allows `{command}`", f"shell({command})"
    ask = PermissionAsked("c", "shell", {"command": command}, "shell", reason, rule)
    app = make_app([ask], prompt="go")
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        assert "Yes, this once" in screen_text(app)
        for _ in range(50):
            await pilot.press("pagedown")
        await settle(app, pilot)
        assert "rm -rf build" in screen_text(app)


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

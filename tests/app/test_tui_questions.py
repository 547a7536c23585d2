"""Keys at a permission question and at questions of the model, in the full-screen app on a scripted agent."""

from __future__ import annotations

import pytest
from textual import events

from pointcode_local.events import (
    Answer,
    FileDiff,
    PermissionAsked,
    Prompt,
    QuestionAsked,
    SetMode,
)
from pointcode_local.tui.dialogs import ARM_AFTER_S, HINT_MESSAGE_HAS_KEYS
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


async def test_keys_typed_before_the_permission_panel_could_be_read_do_not_answer_it() -> None:
    app = make_app([PERMISSION], prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await type_text(pilot, "yes")
        await pilot.press("enter")
        await settle(app, pilot)
        assert agent_of(app).sent == []
        assert app._question.panel is not None
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
        assert agent_of(app).sent == [Prompt("explain any")] and app.focused is app._question.panel
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
        await wait_for(app, pilot, lambda: app.focused is app._question.panel)
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
        await wait_for(app, pilot, lambda: app._question.panel is not None and app._question.panel.call_id == "ask2")
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
        await wait_for(app, pilot, lambda: app.focused is app._question.panel)


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
        assert app._question.panel is None
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
        await wait_for(app, pilot, lambda: app._question.panel is not None and app._question.panel.call_id == "ask2")
        await pilot.press("y")
        assert agent_of(app).sent == [Answer("ask1", "once")]


async def test_a_question_is_answered_by_number_or_in_words() -> None:
    script: list[object] = [QuestionAsked("q1", "Unit?", ("Celsius", "Fahrenheit")), QuestionAsked("q2", "Name?", ())]
    app = make_app(script, prompt="go")
    async with app.run_test() as pilot:
        await asked(app, pilot)
        await arm(app, pilot)
        await pilot.press("2")
        await wait_for(app, pilot, lambda: app._question.panel is not None and app._question.panel.call_id == "q2")
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
        assert app._question.panel is None
        assert "Stopped." in screen_text(app)


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

"""Text that tries to act: in every place where text of a model, a tool, a file or a person is shown."""

from __future__ import annotations

from typing import Any

import pytest

from pointcode_local.events import (
    AgentEvent,
    ContextAdded,
    ErrorRaised,
    FileDiff,
    PermissionAsked,
    PromptQueued,
    QuestionAsked,
    ReasoningDelta,
    TextDelta,
    TodoChanged,
    ToolCallDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.frontend import Progress
from pointcode_local.tui.views import AnswerView
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import make_app, screen_text, settle, wait_for

NASTY = "[/dim][bold red]x[/] [@click=app.quit]go[/] \x1b[31m\x1b]52;c;QQ==\x07 a\u202eb\u200bc\u2066 \ud83d\x9b2J"
ASK = PermissionAsked("p", "shell", {"command": NASTY, NASTY: NASTY}, NASTY, NASTY, f"shell({NASTY})")
EVERYWHERE: list[object] = [
    ContextAdded("@" + NASTY, NASTY),
    ReasoningDelta(NASTY),
    TextDelta(
        NASTY + "\n\n- " + NASTY + "\n\n| " + NASTY + " | b |\n|---|---|\n| c | " + NASTY + " |\n\n```" + NASTY + "\n"
    ),
    TextDelta(NASTY + "\n```\n\n[" + NASTY + "](https://example.org/" + "x" + ")\n"),
    ToolCallDelta("w", NASTY, '{"path": "' + NASTY),
    ToolStarted("t", NASTY, {"a": NASTY}, NASTY),
    ToolProgress("t", NASTY + "\n" + NASTY),
    ToolFinished("t", NASTY, {}, NASTY + "\n" + NASTY, True),
    ToolStarted("d", "edit", {}, "edit"),
    ToolFinished("d", "edit", {}, NASTY, False, (FileDiff(NASTY, NASTY, NASTY + NASTY),)),
    ToolFinished("n", "shell", {"command": NASTY}, NASTY, True, (), NASTY),
    TodoChanged(((NASTY, "in_progress"), (NASTY, NASTY))),
    PromptQueued(NASTY),
    ErrorRaised(NASTY),
]


def check_inert(text: str) -> None:
    assert not [c for c in text if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f" or c in "\u202e\u200b\u2066\ud83d"]


@pytest.mark.parametrize("width", [40, 100, 130])
async def test_no_text_becomes_markup_or_reaches_the_terminal_as_a_control_sequence(width: int) -> None:
    app = make_app([*EVERYWHERE, WAIT], prompt=NASTY)
    async with app.run_test(size=(width, 200)) as pilot:
        await wait_for(app, pilot, lambda: bool(app.story.todo) and app.is_settled)
        await pilot.press("ctrl+o", "ctrl+t")
        await settle(app, pilot)
        text = screen_text(app)
        check_inert(text)
        if width > 40:
            assert text.count("[/dim][bold red]x[/]") >= 12
            assert "<U+202E>" in text and "␛[31m" in text
        metas = [s.style.meta for strip in app.screen._compositor.render_strips(app.size) for s in strip if s.style]
        actions = {str(meta["@click"]) for meta in metas if "@click" in meta}
        assert not any("quit" in action for action in actions)


@pytest.mark.parametrize("ask", [ASK, QuestionAsked("q", NASTY, (NASTY, "b"))], ids=["permission", "question"])
async def test_panels_show_text_as_it_is(ask: Any) -> None:
    app = make_app([ask], prompt="go")
    async with app.run_test(size=(120, 60)) as pilot:
        await wait_for(app, pilot, lambda: app._question.panel is not None)
        await settle(app, pilot)
        text = screen_text(app)
        check_inert(text)
        assert text.count("[/dim][bold red]x[/]") >= 2


async def test_an_edit_preview_shows_hidden_characters() -> None:
    diff = FileDiff("a.py", "if admin:\n", "if admin\u202e:\u2066 # \u200bok\n")
    app = make_app([PermissionAsked("p", "edit", {}, "edit a.py", "", "", (diff,))], prompt="go")
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_for(app, pilot, lambda: app._question.panel is not None)
        assert "if admin<U+202E>:<U+2066> # <U+200B>ok" in screen_text(app)


async def test_session_titles_model_names_and_progress_are_inert() -> None:
    host = ScriptedHost(
        ScriptedAgent(), mode=NASTY, sandbox=NASTY, open_progress=[Progress(NASTY, 1, 2)], hold_open=True
    )
    app = make_app(host=host)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(app, pilot)
        check_inert(screen_text(app))


HUGE = "x\x1b[31m\u202e" + "y" * 50_000_000
LARGE = HUGE[:3_000_000]
HUGE_EVERYWHERE: list[object] = [
    ReasoningDelta(LARGE),
    TextDelta(HUGE),
    TextDelta("\n\nafter the long line\n"),
    ToolStarted("t", "shell", {"command": LARGE}, LARGE),
    ToolProgress("t", HUGE),
    ToolFinished("t", "shell", {"command": LARGE}, HUGE, True),
    ToolStarted("d", "edit", {}, "edit"),
    ToolFinished("d", "edit", {}, LARGE, False, (FileDiff(LARGE, "a\n", LARGE),)),
    TodoChanged(((LARGE, "in_progress"),)),
    ErrorRaised(HUGE),
    PermissionAsked("p", "shell", {"command": LARGE}, LARGE, LARGE, f"shell({HUGE[:200]})"),
]


async def test_a_line_of_50_million_characters_is_shown_in_part_everywhere() -> None:
    app = make_app(HUGE_EVERYWHERE, prompt=LARGE)
    async with app.run_test(size=(100, 200)) as pilot:
        await wait_for(app, pilot, lambda: app._question.panel is not None)
        await pilot.press("ctrl+o")
        await settle(app, pilot)
        text = screen_text(app)
        check_inert(text)
        assert "not shown" in text and "<U+202E>" in text
        markdown = app.query_one(AnswerView).markdown
        assert len(markdown) < 11_000 and markdown.endswith("\n\nafter the long line\n")


async def test_a_log_of_an_older_version_with_unbalanced_events_can_be_shown() -> None:
    events: list[AgentEvent] = [
        TurnStarted("one"),
        ToolStarted("a", "shell", {"command": "ls"}, "shell ls"),
        PermissionAsked("b", "shell", {"command": "ls"}, "shell ls", "", ""),
        TurnStarted("two"),
        TurnFinished("error", "", 1, "it broke"),
    ]
    app = make_app(host=ScriptedHost(ScriptedAgent(), events=events))
    async with app.run_test() as pilot:
        await settle(app, pilot)
        text = screen_text(app)
        assert "it broke" in text and "stopped" in text
        assert app._question.panel is None

"""Reading back in the full-screen app: the end is followed, or what is read stays where it is."""

from __future__ import annotations

from typing import Any

import pytest

from pointcode_local.events import (
    TurnFinished,
    TurnStarted,
)
from pointcode_local.tui.story import AnswerRecord
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import (
    agent_of,
    idle,
    make_app,
    screen_text,
    settle,
    wait_for,
)
from tests.app.tui_scripts import answer


async def test_reading_back_is_not_disturbed_by_new_text() -> None:
    long = "\n\n".join(f"paragraph {n}" for n in range(60))
    app = make_app([*answer(long, 400), WAIT, *answer("the end")], prompt="go")
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(app, pilot, lambda: any(isinstance(r, AnswerRecord) and r.done for r in app.story.records))
        assert "paragraph 59" in screen_text(app)
        await pilot.press("pageup", "pageup")
        await settle(app, pilot)
        before = app._transcript.scroll_y
        agent_of(app).release()
        await idle(app, pilot)
        assert app._transcript.scroll_y == before
        await pilot.press("ctrl+end")
        await settle(app, pilot)
        assert "the end" in screen_text(app)


NEWS = "new text below (ctrl+end)"


@pytest.mark.parametrize("way_back", ["ctrl+end", "pagedown", "a click"])
async def test_new_text_is_told_of_while_reading_back_until_it_is_in_view(way_back: str) -> None:
    long = "\n\n".join(f"paragraph {n}" for n in range(60))
    app = make_app([*answer(long, 400), WAIT, *answer("the end"), WAIT, *answer("more")], prompt="go")
    async with app.run_test(size=(40, 24)) as pilot:
        await wait_for(app, pilot, lambda: any(isinstance(r, AnswerRecord) and r.done for r in app.story.records))
        await pilot.press("pageup", "pageup")
        await settle(app, pilot)
        height = app._transcript.size.height
        assert NEWS not in screen_text(app)  # all of it was in view
        agent_of(app).release()
        await wait_for(app, pilot, lambda: NEWS in screen_text(app))
        assert app._transcript.size.height == height  # what is read stays where it is
        if way_back == "a click":
            await pilot.click("#below")
        else:
            await pilot.press(*[way_back] * 5)
        await settle(app, pilot)
        assert NEWS not in screen_text(app) and "the end" in screen_text(app)
        agent_of(app).release()
        await idle(app, pilot)
        assert NEWS not in screen_text(app) and "more" in screen_text(app)


async def test_text_that_is_not_laid_out_yet_is_no_new_text_below() -> None:
    long = "\n\n".join(f"paragraph {n}" for n in range(60))
    app = make_app([*answer(long, 400), WAIT], prompt="go")
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(app, pilot, lambda: any(isinstance(r, AnswerRecord) and r.done for r in app.story.records))
        await settle(app, pilot)
        transcript = app._transcript
        transcript.set_reactive(type(transcript).scroll_y, transcript.max_scroll_y - 3)  # as within a layout
        await transcript.sync([app.story.records[-1]])
        await settle(app, pilot)
        assert NEWS not in screen_text(app)


async def test_what_changes_above_or_in_view_is_no_new_text_below() -> None:
    long = "\n\n".join(f"paragraph {n}" for n in range(60))
    app = make_app([*answer(long, 400), WAIT], prompt="go")
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(app, pilot, lambda: any(isinstance(r, AnswerRecord) and r.done for r in app.story.records))
        await pilot.press("pageup")
        await settle(app, pilot)
        await app._transcript.sync([app.story.records[0]])
        await settle(app, pilot)
        assert NEWS not in screen_text(app)
        await app._transcript.sync([app.story.records[-1]])
        await settle(app, pilot)
        assert NEWS in screen_text(app)


@pytest.mark.parametrize("key", ["pageup", "pagedown", "ctrl+home"])
async def test_a_key_that_scrolls_where_there_is_nowhere_to_go_does_not_stop_following_the_end(key: str) -> None:
    long = "\n\n".join(f"paragraph {n}" for n in range(60))
    app = make_app([*answer("short"), WAIT, *answer(long, 400)], prompt="go")
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(app, pilot, lambda: any(isinstance(r, AnswerRecord) and r.done for r in app.story.records))
        await pilot.press(key)
        await settle(app, pilot)
        agent_of(app).release()
        await idle(app, pilot)
        await settle(app, pilot)
        assert "paragraph 59" in screen_text(app)


async def test_a_long_session_opens_with_its_end_mounted_and_loads_more_when_read_back() -> None:
    history: list[Any] = []
    for n in range(2500):
        history += [TurnStarted(f"question {n}"), TurnFinished("done", "", 1)]
    app = make_app(host=ScriptedHost(ScriptedAgent(), events=history))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(app, pilot)
        assert "question 2499" in screen_text(app)
        n_mounted = len(app._transcript._views)
        assert n_mounted < 100
        app._transcript.load_earlier()
        await wait_for(app, pilot, lambda: len(app._transcript._views) > n_mounted and not app._transcript._loading)
        assert "question 2499" in screen_text(app)

"""The engine on the screen: its figures in words, live speed, and the screen of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pointcode_local.engine_text import Rates, acceptance, engine_lines, rates, request_text, sparkline
from pointcode_local.frontend import EngineRequest, EngineView, PagePool, Timeline, TimelineSpan
from pointcode_local.trace_file import last_trace, note_trace
from pointcode_local.tui.engine_screen import NO_ENGINE, EngineScreen
from pointcode_local.tui.meter import Meter
from pointcode_local.tui.timeline import timeline_lines
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.tui_kit import Clock, make_app, screen_lines, screen_text, settle, wait_for
from tests.app.tui_scripts import ENGINE, PERMISSION, USAGE, answer

LATER = replace(ENGINE, steps=ENGINE.steps + 20, busy_s=ENGINE.busy_s + 0.5)


def test_rates_are_the_difference_of_two_views() -> None:
    assert rates(ENGINE, LATER, 1.0) == Rates(step_s=0.025, tokens_per_s=20.0, prefill_tokens_per_s=0.0)
    assert rates(LATER, LATER, 1.0) == Rates()
    assert rates(None, ENGINE, 0.0).prefill_tokens_per_s == ENGINE.prefill_tokens / ENGINE.prefill_s


def test_a_sparkline_has_one_block_a_value() -> None:
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([]) == sparkline([0, 0]) == ""


def text_of(view: EngineView, now: Rates) -> str:
    return "\n".join(f"{line.name}: {line.text} ({line.meaning})" for line in engine_lines(view, now, Rates(), [1.0]))


def test_the_share_of_the_speed_of_light_is_told_once_it_is_measured() -> None:
    now = Rates(step_s=0.05, tokens_per_s=20.0)
    told = text_of(replace(ENGINE, ceiling_bytes_per_s=10e9), now)
    assert "0.40 GB a step, 8.0 GB/s = 80% of speed of light (the memory gives 10.0 GB/s)" in told
    assert "of speed of light" not in text_of(replace(ENGINE, ceiling_bytes_per_s=0.0), now)
    assert "not known yet" in text_of(ENGINE, Rates())


def test_it_is_idle_only_when_no_request_is_being_written() -> None:
    assert "speed: 0.0 tokens/s" in text_of(ENGINE, Rates())  # a step that takes longer than the time between two views
    assert "speed: idle" in text_of(replace(ENGINE, requests=()), Rates())


def test_guessing_is_told_only_by_an_engine_that_guesses() -> None:
    guessing = replace(ENGINE, drafted_tokens=200, accepted_tokens=150)
    assert acceptance(guessing) == "75%" and acceptance(ENGINE) == ""
    assert "75% of 200 guessed tokens were right" in text_of(guessing, Rates())


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (EngineRequest(3, "waiting", 90, 0, 0, 0), "#3 waits: 0 of 90 tokens"),
        (EngineRequest(4, "reading", 4096, 1024, 512, 0), "#4 reads its prompt: 1k of 4.1k tokens"),
        (EngineRequest(5, "writing", 90, 90, 64, 1), "#5 writes: prompt 90 (64 from cache), 1 new token"),
    ],
)
def test_a_request_is_told_in_a_line(request_: EngineRequest, text: str) -> None:
    assert request_text(request_) == text


def test_the_meter_keeps_the_last_speeds_and_forgets_them_with_the_model() -> None:
    clock = Clock()
    meter = Meter(clock)
    view = ENGINE
    meter.look(view)
    for n in range(1, 11):
        clock.now += 1.0
        view = replace(view, steps=view.steps + n, busy_s=view.busy_s + 0.1)
        meter.look(view)
    assert meter.speeds == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0] and meter.is_live
    clock.now += 1.0
    meter.look(view)
    assert not meter.is_live and len(meter.speeds) == 8
    clock.now += 1.0
    meter.look(replace(view, model="other"))
    assert meter.speeds == []
    meter.look(None)
    assert meter.view is None


async def test_the_status_line_shows_the_speed_of_this_moment_while_a_turn_runs() -> None:
    host = ScriptedHost(ScriptedAgent([[USAGE, *answer("Working"), WAIT]]), engine_views=[ENGINE, LATER])
    app = make_app(host=host, prompt="go")
    clock = app._clock
    assert isinstance(clock, Clock)
    async with app.run_test(size=(140, 24)) as pilot:
        await wait_for(app, pilot, lambda: app.is_busy and app.story.usage is not None)
        assert "128 tok/s · first token 0.31 s · cache 43%" in screen_text(app)
        clock.now += 1.0
        app._sample()
        await settle(app, pilot)
        assert "20 tok/s █" in screen_text(app)


async def test_the_engine_screen_follows_the_engine_and_closes_again() -> None:
    host = ScriptedHost(ScriptedAgent([]), engine_views=[ENGINE, ENGINE, LATER])
    app = make_app(host=host)
    clock = app._clock
    assert isinstance(clock, Clock)
    async with app.run_test(size=(110, 30)) as pilot:
        await wait_for(app, pilot, lambda: app.agent is not None)
        app.submit("/engine")
        await wait_for(app, pilot, lambda: isinstance(app.screen, EngineScreen) and host.measured == 1)
        clock.now += 1.0
        assert isinstance(app.screen, EngineScreen)
        app.screen.refresh_figures()
        await settle(app, pilot)
        assert "#12 writes: prompt 3.4k (3.3k from cache), 120 new tokens" in screen_text(app)
        await pilot.press("q")
        await settle(app, pilot)
        assert "Say what you want done" in screen_text(app)


async def test_a_model_that_runs_elsewhere_has_no_engine_to_show() -> None:
    app = make_app()
    async with app.run_test(size=(110, 30)) as pilot:
        await settle(app, pilot)
        app.submit("/engine")
        await settle(app, pilot)
        assert NO_ENGINE[:40] in screen_text(app)


async def test_a_question_that_comes_under_another_screen_is_said_and_waits() -> None:
    app = make_app([WAIT, PERMISSION], prompt="go")
    async with app.run_test(size=(110, 30)) as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        app.submit("/engine")
        await wait_for(app, pilot, lambda: isinstance(app.screen, EngineScreen))
        app.agent.release()  # type: ignore[union-attr]
        await wait_for(app, pilot, lambda: app._question.panel is not None)
        assert any("waits for your answer" in notification.message for notification in app._notifications)
        await pilot.press("escape")
        await settle(app, pilot)
        assert "Yes, this once" in screen_text(app) and app.focused is app._question.panel


# PagePool is part of what a view shows: one pool needs no name, two do.
def test_pools_are_named_where_there_are_two() -> None:
    two = replace(ENGINE, pools=(PagePool("full layers", 1, 2, 10), PagePool("sliding layers", 3, 0, 8)))
    assert "KV cache: sliding layers: 3 pages in use, 0 kept, 5 free" in text_of(two, Rates())
    assert "KV cache: 14 pages in use" in text_of(ENGINE, Rates())


TRACE = Timeline(
    Path("/tmp/trace.json"),
    "SM",
    (
        TimelineSpan(0, "qkv", 0.0, 50.0),
        TimelineSpan(0, "", 50.0, 60.0),
        TimelineSpan(0, "down", 60.0, 100.0),
        TimelineSpan(1, "qkv", 0.0, 100.0),
        TimelineSpan(2, "down", 50.0, 100.0),
    ),
)


def test_a_timeline_has_two_processors_a_line_and_its_legend() -> None:
    head, first, second, *legend = timeline_lines(TRACE, 26)
    assert head.plain.startswith("Timeline  of one decode")
    assert first.plain == "SM 0  " + "▀" * 20 and second.plain == "SM 2  " + " " * 10 + "▀" * 10
    words = " ".join(line.plain for line in legend).replace("\u00a0", " ").split("■")
    assert [word.strip() for word in words] == ["", "qkv 60%", "down 36%", "waiting 4%"]
    assert len({span.style for span in first.spans}) == 4  # the label, and three pairs of colours


def test_a_timeline_without_colours_has_a_letter_for_each_kind_of_work() -> None:
    lines = [line.plain for line in timeline_lines(TRACE, 16, colours=False)]
    assert lines[1:4] == ["SM 0  aaaaa·bbbb", "SM 1  aaaaaaaaaa", "SM 2       bbbbb"]


def test_the_last_step_of_the_trace_that_was_drawn_last_is_read_back(tmp_path: Path) -> None:
    def task(name: str, step: int, at: float) -> dict[str, object]:
        return {"ph": "X", "name": name, "cat": "task", "tid": 0, "ts": at, "dur": 5.0, "args": {"step": step}}

    meta = {"ph": "M", "name": "thread_name", "tid": 0, "args": {"name": "worker 0"}}
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": [meta, task("L0 QKV", 0, 0.0), task("L1 DOWN", 1, 9.0)]}))
    state = tmp_path / "state"
    assert last_trace(state) is None
    note_trace(["--model", "m", "--trace", str(file)], state)
    assert last_trace(state) == Timeline(file, "worker", (TimelineSpan(0, "DOWN", 9.0, 14.0),))
    note_trace(["--trace", str(tmp_path / "picture.svg")], state)
    assert last_trace(state) is not None
    file.write_text("no trace")
    assert last_trace(state) is None


async def test_the_engine_screen_shows_the_last_trace() -> None:
    app = make_app(host=ScriptedHost(ScriptedAgent(), engine_views=[ENGINE], trace=TRACE))
    async with app.run_test(size=(100, 40)) as pilot:
        await settle(app, pilot)
        app.submit("/engine")
        await wait_for(app, pilot, lambda: isinstance(app.screen, EngineScreen))
        assert "of one decode step, 0.100 ms" in screen_text(app) and "■ qkv" in screen_text(app).replace("\u00a0", " ")


async def test_the_last_line_says_how_many_commands_the_model_left_running() -> None:
    host = ScriptedHost(ScriptedAgent())
    app = make_app(host=host)
    async with app.run_test(size=(100, 24)) as pilot:
        await settle(app, pilot)
        assert "job" not in screen_lines(app)[-1]
        for n_jobs, said in ((1, " 1 job "), (2, " 2 jobs ")):
            host.n_jobs = n_jobs
            app._sample()
            await settle(app, pilot)
            assert said in screen_lines(app)[-1]
        host.n_jobs = 0
        app._sample()
        await settle(app, pilot)
        assert "job" not in screen_lines(app)[-1]

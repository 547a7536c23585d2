"""`/status`: one text for every front end says what is in force in this session and how full it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pointcode_local.config import Settings, load_settings
from pointcode_local.events import CompactionFinished, UsageChanged
from pointcode_local.open_session import SessionChoice
from pointcode_local.status import status_text
from pointcode_local.tui.status import title_text
from pointcode_local.tui.story import Story
from tests.app.acp.kit import EditorKit
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.test_host import Play, ignore, turn
from tests.app.test_plain import talk
from tests.app.tui_kit import idle, make_app, screen_text, wait_for
from tests.app.tui_scripts import answer
from tests.fakes import ScriptedModel, say

USAGE = UsageChanged(
    prompt_tokens=4000,
    cached_tokens=3000,
    completion_tokens=90,
    time_to_first_token_s=0.25,
    tokens_per_second=31.4,
    context_tokens=4090,
    context_limit=32768,
)
THEME = ("theme", '"light"', "user file /home/ada/config.toml:3")


def a_host() -> ScriptedHost:
    return ScriptedHost(ScriptedAgent(), events=[USAGE], set_values=[THEME], n_jobs=2)


async def test_every_fact_has_a_line_of_its_own() -> None:
    assert (await status_text(a_host())).splitlines() == [
        "model     qwen2.5-coder-0.5b on cpu",
        "context   4,090 of 32,768 tokens, 12%",
        "speed     31 tok/s, first token after 0.25 s, 75% of 4k prompt tokens from the cache (last reply)",
        "mode      ask: asks before it changes files or runs commands",
        "sandbox   bubblewrap",
        "jobs      2 background commands (/jobs)",
        "session   s1",
        "folder    /home/ada/weather",
        "version   pointcode 0.1.0",
        'settings  theme = "light" (user file /home/ada/config.toml:3)',
    ]


async def test_nothing_written_no_sandbox_and_no_settings_are_said_too() -> None:
    text = await status_text(ScriptedHost(ScriptedAgent(), sandbox="none"))
    for part in (
        "context   0 of 32,768 tokens, 0%",
        "speed     nothing was written yet",
        "sandbox   none: commands run with your rights",
        "settings  all are the defaults",
    ):
        assert part in text
    assert "jobs" not in text


async def test_each_rule_that_holds_in_this_session_only_has_a_line_too() -> None:
    host = ScriptedHost(ScriptedAgent(), session_rules=("shell(make test)", "shell(a\nb)"))
    assert (
        "allowed   shell(make test) (until this session is left)\n          shell(a b) (until this session is left)\n"
    ) in await status_text(host)


async def test_after_a_compaction_the_context_is_what_is_left() -> None:
    host = ScriptedHost(ScriptedAgent(), events=[USAGE, CompactionFinished(context_tokens=900, summary="s")])
    assert "context   900 of 32,768 tokens, 3%" in await status_text(host)


async def test_a_folder_with_a_line_break_in_its_name_makes_no_line_of_its_own() -> None:
    host = ScriptedHost(ScriptedAgent(), cwd=Path("/home/ada/a\nmode      auto\x1b[2J"))
    lines = (await status_text(host)).splitlines()
    assert len([line for line in lines if line.startswith("mode ")]) == 1 and "\x1b" not in "".join(lines)


def test_a_real_session_tells_its_mode_model_and_settings_as_they_now_are(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/config.toml").write_text('model = "first"\nmax_turns = 7\napi_key = "sk-secret"\n')
    play = Play(tmp_path, ScriptedModel(say("Hello.")), ScriptedModel())
    settings = load_settings(play.setup.places, play.cwd, {}, {"permission_mode": "plan"})
    play.setup = replace(play.setup, settings=settings)

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        await turn(agent)
        text = await status_text(host)
        assert "model     scripted on " in text and "mode      plan: only reads" in text
        assert f"session   {host.info.session_id}" in text and f"folder    {play.cwd}" in text
        assert "max_turns = 7 (user file " in text and "sk-secret" not in text
        assert "nothing was written yet" not in text and "context   0" not in text
        await host.use_model("second", ignore)
        assert ("model", '"second"', "/model") in host.settings()
        await host.close()

    asyncio.run(run())


def test_a_resumed_session_tells_how_full_it_is(tmp_path: Path) -> None:
    play = Play(tmp_path, ScriptedModel(say("Hello.")), ScriptedModel())

    async def run() -> None:
        first = play.host()
        await turn(await first.open(ignore))
        context = next(line for line in (await status_text(first)).splitlines() if line.startswith("context"))
        await first.close()
        again = play.host(SessionChoice(continue_last=True))
        await again.open(ignore)
        assert context in await status_text(again)
        await again.close()

    asyncio.run(run())


async def test_the_line_mode_tells_it_and_lists_the_command() -> None:
    text, _ = await talk(a_host(), ["/status", "/help"])
    assert await status_text(a_host()) in text
    assert "  /status " in text


@pytest.mark.parametrize("width", [60, 110])
async def test_the_screen_tells_it_also_while_a_turn_runs(width: int) -> None:
    host = ScriptedHost(ScriptedAgent([[*answer("Working"), WAIT]]), set_values=[THEME])
    app = make_app(host=host, prompt="go")
    async with app.run_test(size=(width, 40)) as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        app.submit("/status")
        await wait_for(app, pilot, lambda: "settings  theme" in screen_text(app))
        for part in ("context   ", "session   s1", "folder    /home/ada/weather"):
            assert part in screen_text(app)
        assert app.is_busy
        await pilot.press("escape")
        await idle(app, pilot)


async def test_the_screen_tells_it_while_the_model_is_fetched() -> None:
    app = make_app(host=ScriptedHost(ScriptedAgent(), sandbox="", hold_open=True))
    async with app.run_test(size=(90, 40)) as pilot:
        await wait_for(app, pilot, lambda: app.is_opening)
        app.submit("/status")
        await wait_for(app, pilot, lambda: "sandbox   not known yet" in screen_text(app))
        assert app.is_opening


async def test_an_editor_gets_the_same_lines(tmp_path: Path) -> None:
    model = ScriptedModel(say("Hello."))
    async with EditorKit(tmp_path, model, settings=Settings(sandbox="off")) as editor:
        session = await editor.new()
        await editor.prompt(session, "/mode plan")
        assert await editor.prompt(session, "/status") == "end_turn"
        said = editor.said()
        for part in (f"session   {session}", "mode      plan: only reads", "sandbox   none", "settings  "):
            assert part in said
        assert not model.requests


def test_a_folders_name_cannot_act_on_the_terminal_through_the_windows_title() -> None:
    info = replace(a_host().info, cwd=Path("/x/a\x1b]0;b\x07\x9cc\x1b\\\nd\u202e\udc80"))
    title = title_text(info, Story())
    assert title.isprintable() and title.endswith(" - pointcode") and "\u202e" not in title

"""`/jobs`: commands that the model left running are listed and ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pointcode_local.complete import matching_commands
from pointcode_local.config import Settings
from pointcode_local.frontend import HostError, JobInfo
from pointcode_local.jobs import jobs_text
from tests.app.acp.kit import EditorKit, permitting
from tests.app.fakes_tui import WAIT, ScriptedAgent, ScriptedHost
from tests.app.test_host import Play, ignore, turn
from tests.app.test_plain import talk
from tests.app.tui_kit import idle, make_app, screen_text, settle, wait_for
from tests.app.tui_scripts import answer
from tests.fakes import ScriptedModel, Step, call, say

SERVER = JobInfo("job-2", "npm run dev", 200.0, "Listening on\x1b[31m :3000")
WATCHER = JobInfo("job-4", "make watch", 4.2, "")


def left_running() -> Step:
    """A call that starts a command which waits for ever."""
    return call("shell", command="echo ready; exec tail -f /dev/null", background=True)


def test_the_list_tells_id_age_command_and_last_line() -> None:
    lines = jobs_text([SERVER, WATCHER]).splitlines()
    assert lines[0] == "job-2, for 3 min 20 s: npm run dev"
    assert "Listening on" in lines[1] and "\x1b" not in lines[1]
    assert lines[2:] == ["job-4, for 4.2 s: make watch", "/jobs stop N ends one."]
    assert jobs_text([]) == "The model left no command running."
    assert [command.name for command in matching_commands("jo")] == ["jobs"]


def test_a_job_that_the_person_stops_ends_and_the_model_hears_of_it(tmp_path: Path) -> None:
    model = ScriptedModel(left_running(), say("It runs."), say("I see."))
    play = Play(tmp_path, model, settings=Settings(permission_mode="ask", sandbox="off"))

    async def run() -> None:
        host = play.host()
        assert host.jobs() == ()
        with pytest.raises(HostError):
            await host.stop_job("1")
        agent = await host.open(ignore)
        await turn(agent)
        while [job.last_line for job in host.jobs()] != ["ready"]:  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.002)
        assert host.jobs()[0].id == "job-1" and host.info.n_jobs == 1
        with pytest.raises(HostError, match="no background job '9'"):
            await host.stop_job("9")
        assert await host.stop_job("1") == "ended job-1"
        while host.info.n_jobs:  # noqa: ASYNC110 - the end of another process
            await asyncio.sleep(0.002)
        assert list(host.jobs()) == []
        assert await host.stop_job("job-1") == "job-1 had ended before"
        await turn(agent, "And now?")
        await host.close()

    asyncio.run(run())
    assert "The user ended the background command job-1 (echo ready" in model.requests[-1].messages[-1].content


async def test_in_plain_mode_jobs_are_listed_and_stopped_by_their_number() -> None:
    host = ScriptedHost(ScriptedAgent(), running=[SERVER, WATCHER])
    text, _ = await talk(host, ["/jobs", "/jobs stop job-2", "/jobs stop 9", "/jobs nonsense", "/help"])
    for part in (
        "npm run dev",
        "Ended job-2.",
        "There is no job 9.",
        "usage: /jobs, or /jobs stop N",
        "/jobs [stop N]",
    ):
        assert part in text
    assert host.running == [WATCHER]


async def test_on_the_screen_jobs_are_listed_and_stopped_while_a_turn_runs() -> None:
    host = ScriptedHost(ScriptedAgent([[*answer("Working"), WAIT]]), running=[SERVER])
    app = make_app(host=host, prompt="go")
    async with app.run_test(size=(90, 40)) as pilot:
        await wait_for(app, pilot, lambda: app.is_busy)
        app.submit("/jobs")
        await wait_for(app, pilot, lambda: "npm run dev" in screen_text(app))
        assert "Listening on" in screen_text(app)
        app.submit("/jobs stop job-2")
        await wait_for(app, pilot, lambda: "Ended job-2." in screen_text(app))
        app.submit("/jobs stop job-2")
        await wait_for(app, pilot, lambda: "There is no job job-2." in screen_text(app))
        assert app.is_busy
        await pilot.press("escape")
        await idle(app, pilot)
        await settle(app, pilot)


async def test_in_an_editor_jobs_are_listed_and_stopped_without_the_model(tmp_path: Path) -> None:
    model = ScriptedModel(left_running(), say("It runs."))
    async with EditorKit(tmp_path, model, settings=Settings(sandbox="off"), answers=permitting()) as editor:
        session = await editor.new()
        await editor.prompt(session)
        for command in ("/jobs", "/jobs stop 1", "/jobs stop 9"):
            assert await editor.prompt(session, command) == "end_turn"
        said = editor.said()
        for part in ("exec tail -f", "ended job-1", "no background job '9'"):
            assert part in said
        while "The model left no command running." not in editor.said():
            await editor.prompt(session, "/jobs")
        assert len(model.requests) == 2

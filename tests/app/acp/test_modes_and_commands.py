"""Modes, models, options and slash commands of a session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pointcode_local.config import Settings
from pointcode_local.engine.errors import ModelError
from pointcode_local.frontend import Progress
from pointcode_local.hosts import ModelPool
from tests.app.acp.kit import EditorKit, permitting
from tests.fakes import ScriptedModel, call, say


def edited(path: str = "a.txt") -> list[Any]:
    """A turn that changes a file."""
    return [call("write", path=path, content="new\n"), say("It is ", "done.", reasoning="Easy.")]


async def test_modes_change_what_is_asked(tmp_path: Path):
    async with EditorKit(tmp_path, ScriptedModel(*edited(), *edited("b.txt"))) as editor:
        result = await editor.ask("session/new", cwd=str(editor.ws), mcpServers=[])
        session, modes = result["sessionId"], result["modes"]
        assert [m["id"] for m in modes["availableModes"]] == ["ask", "accept-edits", "plan", "auto"]
        assert modes["currentModeId"] == "ask"
        await editor.ask("session/set_mode", sessionId=session, modeId="accept-edits")
        assert editor.updates("config_option_update")[-1]["configOptions"][0]["currentValue"] == "accept-edits"
        await editor.prompt(session)
        assert editor.asked == [] and (editor.ws / "a.txt").exists()
        await editor.ask("session/set_mode", sessionId=session, modeId="plan")
        await editor.prompt(session)
        assert editor.asked == [] and not (editor.ws / "b.txt").exists()


async def test_a_mode_may_be_set_while_the_model_still_loads(tmp_path: Path):
    ready = asyncio.Event()
    model = ScriptedModel(*edited())
    async with EditorKit(tmp_path) as editor:

        async def slow(settings: Any, places: Any, on_progress: Any) -> ScriptedModel:
            on_progress(Progress("downloading it", 50, 100))
            await ready.wait()
            return model

        editor.use(slow)
        session = await editor.new()
        await editor.ask("session/set_mode", sessionId=session, modeId="accept-edits")
        running = editor.begin(session)
        await editor.until(lambda: editor.updates("agent_thought_chunk"))
        assert editor.updates("agent_thought_chunk")[0]["content"]["text"] == "(downloading it: 50%)\n"
        ready.set()
        assert (await running)["result"]["stopReason"] == "end_turn"
        assert editor.asked == [] and (editor.ws / "a.txt").exists()


async def test_a_prompt_is_cancelled_while_the_model_still_loads(tmp_path: Path):
    ready = asyncio.Event()
    async with EditorKit(tmp_path) as editor:

        async def slow(settings: Any, places: Any, on_progress: Any) -> ScriptedModel:
            await ready.wait()
            return ScriptedModel(say("Now."))

        editor.use(slow)
        session = await editor.new()
        running = editor.begin(session)
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        ready.set()
        assert await editor.prompt(session) == "end_turn" and editor.said() == "Now."


async def test_after_a_cancelled_prompt_and_a_failure_the_next_one_sees_the_model_load_and_leaves_it_loading(
    tmp_path: Path,
):
    """The end of the first loading, which no prompt waits for any more, is not taken for the end of the second."""
    gates = [asyncio.Event(), asyncio.Event()]
    begun: list[int] = []
    async with EditorKit(tmp_path) as editor:

        async def slow(settings: Any, places: Any, on_progress: Any) -> ScriptedModel:
            n = len(begun)
            begun.append(n)
            on_progress(Progress(f"loading {n}", 0, 0))
            await gates[n].wait()
            if n == 0:
                raise ModelError("the disk is gone")
            return ScriptedModel(say("Now."))

        editor.use(slow)
        session = await editor.new()
        running = editor.begin(session)
        await editor.until(lambda: editor.updates("agent_thought_chunk"))
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        gates[0].set()
        opening = editor.agent._sessions[session].open()
        await asyncio.wait([opening])
        running = editor.begin(session)
        await editor.until(
            lambda: "(loading 1)\n" in [u["content"]["text"] for u in editor.updates("agent_thought_chunk")]
        )
        editor.notify("session/cancel", sessionId=session)
        assert (await running)["result"]["stopReason"] == "cancelled"
        gates[1].set()
        assert await editor.prompt(session) == "end_turn" and editor.said() == "Now."
        assert begun == [0, 1]


async def test_options_hold_mode_and_model_and_can_be_set(tmp_path: Path):
    settings = Settings(model="one", endpoint="http://127.0.0.1:9/v1")
    async with EditorKit(tmp_path, ScriptedModel(say("1")), ScriptedModel(say("2")), settings=settings) as editor:
        result = await editor.ask("session/new", cwd=str(editor.ws), mcpServers=[])
        session = result["sessionId"]
        assert [(o["id"], o["category"], o["type"]) for o in result["configOptions"]] == [
            ("mode", "mode", "select"), ("model", "model", "select"),
        ]  # fmt: skip
        await editor.prompt(session)
        set_option = "session/set_config_option"
        changed = await editor.ask(set_option, sessionId=session, configId="mode", value="plan")
        assert changed["configOptions"][0]["currentValue"] == "plan"
        assert editor.updates("current_mode_update")[-1]["currentModeId"] == "plan"
        await editor.ask(set_option, sessionId=session, configId="model", value="two")
        assert editor.opened == ["one", "two"]
        await editor.prompt(session)
        assert editor.said() == "12"
        wrong = [("mode", "god"), ("model", "broken"), ("nothing", "x"), ("mode", True)]
        for name, value in wrong:
            params = {"configId": name, "value": value, **({"type": "boolean"} if value is True else {})}
            assert (await editor.refused(set_option, sessionId=session, **params))["code"] == -32602, params
        assert (await editor.refused("session/set_mode", sessionId=session, modeId="god"))["code"] == -32602


async def test_commands_are_told_and_run_without_the_model(tmp_path: Path):
    model = ScriptedModel(*edited())
    async with EditorKit(tmp_path, model, answers=permitting()) as editor:
        session = await editor.new()
        await editor.until(lambda: editor.updates("available_commands_update"))
        (told,) = editor.updates("available_commands_update")
        names = [c["name"] for c in told["availableCommands"]]
        assert names == ["compact", "undo", "redo", "diff", "map", "mcp", "jobs", "mode", "model", "status", "help"]
        await editor.prompt(session)
        n_requests = len(model.requests)
        for command in (
            "/diff",
            "/undo",
            "/redo",
            "/mode",
            "/mode plan",
            "/mode nothing",
            "/model",
            "/status",
            "/help",
        ):
            assert await editor.prompt(session, command) == "end_turn"
        said = editor.said()
        for text in ("+new", "removed a.txt", "changed again a.txt", "`accept-edits`", "The mode is now `plan`",
                     "no mode 'nothing'", "(in use)", "model     scripted on", "/status"):  # fmt: skip
            assert text in said, text
        assert len(model.requests) == n_requests
        assert editor.updates("current_mode_update")[-1]["currentModeId"] == "plan"


async def test_own_commands_become_prompts(tmp_path: Path):
    folder = tmp_path / "ws/.pointcode/commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("Review $ARGUMENTS with care.\n")
    model = ScriptedModel(say("Fine."))
    async with EditorKit(tmp_path, model) as editor:
        session = await editor.new()
        await editor.until(lambda: editor.updates("available_commands_update"))
        assert "review" in str(editor.updates("available_commands_update"))
        await editor.prompt(session, "/review a.py now")
        assert "Review a.py now with care." in model.requests[0].messages[-1].content


async def test_a_path_at_the_start_of_a_prompt_is_no_command(tmp_path: Path):
    model = ScriptedModel(say("Fine."))
    async with EditorKit(tmp_path, model) as editor:
        await editor.prompt(await editor.new(), "/etc/hosts is wrong")
        assert "/etc/hosts is wrong" in model.requests[0].messages[-1].content


async def test_a_pool_opens_a_model_once_and_frees_the_one_that_nobody_uses(tmp_path: Path):
    closed: list[str] = []

    class Model(ScriptedModel):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.label = name

        async def aclose(self) -> None:
            closed.append(self.label)

    opened: list[str] = []

    async def open_one(settings: Settings, places: Any, on_progress: Any) -> Model:
        opened.append(settings.model)
        await asyncio.sleep(0)
        return Model(settings.model)

    def ignore(progress: Progress) -> None:
        return

    pool, places = ModelPool(open_one), None
    one, again = await asyncio.gather(*(pool.open(Settings(model="a"), places, ignore) for _ in range(2)))  # type: ignore[arg-type]
    assert opened == ["a"]
    await one.aclose()
    other = await pool.open(Settings(model="b"), places, ignore)  # type: ignore[arg-type]
    assert closed == []  # `again` still uses it
    await again.aclose()
    await again.aclose()
    assert closed == ["a"]  # nobody uses it, and another one is in use
    await other.aclose()
    assert closed == ["a"]  # the last one stays
    await pool.open(Settings(model="b"), places, ignore)  # type: ignore[arg-type]
    await pool.open(Settings(model="c"), places, ignore)  # type: ignore[arg-type]
    assert opened == ["a", "b", "c"]
    assert await pool.close() and sorted(closed) == ["a", "b", "c"]

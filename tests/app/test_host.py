"""The host's services: sessions, undo, change of the model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.compose import Setup, pick_tools, system_prompt
from pointcode_local.config import Settings, find_places
from pointcode_local.engine.errors import ModelError
from pointcode_local.events import AgentEvent, Answer, FileDiff, PermissionAsked, SetMode, ToolFinished, TurnStarted
from pointcode_local.frontend import HostError, Progress
from pointcode_local.host import AppHost
from pointcode_local.open_session import SessionChoice
from pointcode_local.tools.mcp_server import McpServer
from tests.app.agents import end_of, of_type
from tests.app.openai_server import ScriptedServer
from tests.fakes import ScriptedModel, Step, call, calls, say


def ignore(progress: Progress) -> None:
    return


class Play:
    """A host over scripted models in a folder of its own; all of a test happens in one event loop."""

    def __init__(
        self, folder: Path, *models: ScriptedModel, settings: Settings | None = None, interactive: bool = True
    ):
        self.cwd = folder / "ws"
        self.cwd.mkdir(exist_ok=True)
        self._models = list(models)
        self.opened: list[str] = []
        places = find_places({"POINTCODE_HOME": str(folder / "home")})
        self.setup = Setup(settings or Settings(permission_mode="accept-edits"), places, self.cwd)
        self.interactive = interactive

    async def open_model(self, settings: Settings, places: Any, on_progress: Any) -> ScriptedModel:
        self.opened.append(settings.model)
        if settings.model == "broken":
            raise ModelError("no such model")
        return self._models.pop(0)

    def host(self, choice: SessionChoice | None = None) -> AppHost:
        return AppHost(self.setup, choice, interactive=self.interactive, open_model=self.open_model)


async def turn(agent: Any, prompt: str = "Go.", answer: str = "once") -> Sequence[AgentEvent]:
    events: list[AgentEvent] = []
    async for event in agent.run(prompt):
        events.append(event)
        if isinstance(event, PermissionAsked):
            agent.send(Answer(event.call_id, answer))
    return events


def write(path: str, content: str) -> Step:
    return call("write", path=path, content=content)


def test_undo_restores_the_last_turn_and_tells_the_model(tmp_path: Path):
    model = ScriptedModel(write("new.txt", "x"), say("made"), say("ok"))
    play = Play(tmp_path, model)

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        await turn(agent)
        assert (play.cwd / "new.txt").exists()
        assert await host.undo() == "removed new.txt"
        assert not (play.cwd / "new.txt").exists()
        assert await host.undo() == "nothing to undo" and not host.changes()
        assert await host.redo() == "changed again new.txt"
        assert host.changes() == [FileDiff("new.txt", None, "x")]
        assert await host.redo() == "nothing to redo"
        await turn(agent, "And now?")
        await host.close()
        await host.close()

    asyncio.run(run())
    told = model.requests[-1].messages[-1].content
    assert "undid your last changes" in told and "changed again new.txt" in told


def test_the_bytes_for_undo_are_kept_outside_the_workspace(tmp_path: Path):
    play = Play(tmp_path, ScriptedModel(call("edit", path="f.bin", edits=[{"old": "old", "new": "new"}]), say("done")))
    (play.cwd / "f.bin").write_bytes(b"\xe9 old\r\n")

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore))
        assert (play.cwd / "f.bin").read_bytes() == b"\xe9 new\r\n"
        assert [p.name for p in play.cwd.iterdir()] == ["f.bin"]
        assert any(p.read_bytes() == b"\xe9 old\r\n" for p in (tmp_path / "home").rglob("*") if p.is_file())
        await host.undo()
        await host.close()

    asyncio.run(run())
    assert (play.cwd / "f.bin").read_bytes() == b"\xe9 old\r\n"


def test_undo_and_edits_leave_gits_index_and_refs_alone(tmp_path: Path):
    model = ScriptedModel(write("kept.txt", "changed"), write("new.txt", "x"), say("made"))
    play = Play(tmp_path, model)
    for command in (["init", "-q"], ["add", "kept.txt"]):
        (play.cwd / "kept.txt").write_text("")
        subprocess.run(["git", "-C", play.cwd, *command], check=True)
    (play.cwd / "untracked.txt").write_text("mine")

    def git_files() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in (play.cwd / ".git").rglob("*") if p.is_file()}

    before = git_files()

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore))
        assert (play.cwd / "kept.txt").read_text() == "changed"
        await host.undo()
        await host.redo()
        await host.undo()
        await host.close()

    asyncio.run(run())
    assert git_files() == before
    assert {p.name: p.read_text() for p in play.cwd.glob("*.txt")} == {"kept.txt": "", "untracked.txt": "mine"}


@pytest.mark.parametrize(("mode", "sandbox", "warns"), [("auto", "off", True), ("ask", "off", False)])
def test_auto_mode_without_a_sandbox_warns(tmp_path: Path, mode: str, sandbox: str, warns: bool):
    play = Play(tmp_path, ScriptedModel(), settings=Settings(permission_mode=mode, sandbox=sandbox))

    async def run() -> None:
        host = play.host()
        await host.open(ignore)
        assert host.info.sandbox == "none"
        assert ("run unconfined" in host.sandbox_warning()) == warns
        await host.close()

    asyncio.run(run())


def test_the_map_is_added_once_and_can_be_shown(tmp_path: Path):
    model = ScriptedModel(say("one"), say("two"))
    play = Play(tmp_path, model, ScriptedModel(say("three")))
    for i in range(9):
        (play.cwd / f"use{i}.py").write_text(f"from core import Store\ndef user_{i}(): return Store()\n")
    (play.cwd / "core.py").write_text("class Store: pass\n")

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        assert "core.py:\n  class Store" in await host.repo_map()
        await turn(agent)
        await turn(agent, "More.")
        session_id = host.info.session_id
        await host.close()
        assert sum(m.content.count("[repository map: ") for m in model.requests[-1].messages) == 1
        again = play.host(SessionChoice(resume=session_id))
        await turn(await again.open(ignore), "Again.")
        assert sum("[repository map: " in m.content for m in again_model.requests[-1].messages) == 1
        await again.close()

    again_model = play._models[1]
    asyncio.run(run())


def test_tools_of_mcp_servers_are_offered_and_asked_for_like_commands(tmp_path: Path):
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    stub = Path(__file__).parents[1] / "tools" / "mcp_stub.py"
    echo = calls(("mcp__docs__echo", '{"text": "hi"}'))
    model = ScriptedModel(echo, say("ok"), echo, say("ok"), echo, say("ok"))
    servers = (
        McpServer("docs", command=sys.executable, args=("-I", str(stub))),
        McpServer("gone", command="no-such-program-anywhere"),
    )
    settings = Settings(permission_mode="accept-edits", mcp_servers=servers)
    play = Play(tmp_path, model, settings=settings)

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        assert [spec.name for spec in agent_tools(host)][-3:-2] == ["mcp__docs__echo"]
        assert "docs: running, 3 tools\n  mcp__docs__echo" in host.servers()
        assert len(host.problems) == 1 and "no-such-program-anywhere" in host.problems[0]
        asked = await turn(agent, answer="deny")
        assert of_type(asked, PermissionAsked)[0].rule == "mcp__docs__echo"
        assert of_type(asked, ToolFinished)[0].denied
        agent.send(SetMode("plan"))
        assert of_type(await turn(agent), ToolFinished)[0].denied
        agent.send(SetMode("ask"))
        assert '"hi"' in of_type(await turn(agent, answer="always"), ToolFinished)[0].text
        await host.close()

    def agent_tools(host: AppHost) -> Sequence[Any]:
        return host._kit.tools if host._kit is not None else ()

    asyncio.run(run())


@pytest.mark.parametrize("is_small", [True, False])
def test_no_map_for_small_models_or_when_it_is_switched_off(tmp_path: Path, is_small: bool):
    model = ScriptedModel(say("one"), is_small=is_small)
    settings = Settings() if is_small else Settings(repo_map_tokens=0)
    play = Play(tmp_path, model, settings=settings)
    for i in range(9):
        (play.cwd / f"use{i}.py").write_text(f"def user_{i}(): pass\n")

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        assert "user_1" in await host.repo_map()
        await turn(agent)
        await host.close()

    asyncio.run(run())
    assert not any("repository map" in m.content for m in model.requests[-1].messages)


def test_an_always_answer_holds_in_the_next_session_of_the_folder(tmp_path: Path):
    shell = call("shell", command="touch made")
    play = Play(tmp_path, ScriptedModel(shell, say("ok")), ScriptedModel(shell, say("ok")))

    async def run(answer: str) -> Sequence[AgentEvent]:
        host = play.host()
        events = await turn(await host.open(ignore), answer=answer)
        await host.close()
        return events

    first = asyncio.run(run("always"))
    (asked,) = of_type(first, PermissionAsked)
    assert asked.rule in (play.setup.places.state / "always.toml").read_text()
    second = asyncio.run(run("deny"))
    assert of_type(second, PermissionAsked) == [] and end_of(second).outcome == "done"


def test_an_answer_for_the_session_holds_with_another_model_and_ends_with_the_session(tmp_path: Path):
    shell = call("shell", command="touch made")
    model = ScriptedModel(shell, say("ok"), shell, say("ok"))
    play = Play(tmp_path, model, ScriptedModel(*[shell, say("ok")] * 3), ScriptedModel(shell, say("ok")))

    async def questions(agent: Any) -> int:
        return len(of_type(await turn(agent, answer="session"), PermissionAsked))

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        first = host.info.session_id
        assert [await questions(agent), await questions(agent)] == [1, 0]
        assert await questions(await host.use_model("second", ignore)) == 0
        assert await questions(await host.resume(first)) == 0  # it is the one that is open
        assert host.info.session_rules == ("shell(touch made)",)
        agent = await host.new_session()
        assert host.info.session_rules == () and await questions(agent) == 1
        await host.close()
        again = play.host(SessionChoice(resume=first))
        assert await questions(await again.open(ignore)) == 1
        await again.close()

    asyncio.run(run())
    assert not (play.setup.places.state / "always.toml").exists()


def test_sessions_are_opened_listed_and_changed(tmp_path: Path):
    play = Play(tmp_path, ScriptedModel(say("one"), say("two"), say("three")))

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore), "First.")
        first = host.info.session_id
        agent = await host.new_session()
        assert host.info.session_id != first and host.history() == []
        await turn(agent, "Second.")
        assert {info.title for info in host.sessions()} == {"First.", "Second."}
        agent = await host.resume(first)
        assert [e.prompt for e in of_type(host.history(), TurnStarted)] == ["First."]
        await turn(agent, "Third.")
        with pytest.raises(HostError):
            await host.resume("nothing")
        assert host.info.session_id == first
        await host.close()

    asyncio.run(run())


def test_a_conversation_goes_on_with_another_model(tmp_path: Path):
    other = ScriptedModel(say("two"))
    play = Play(tmp_path, ScriptedModel(say("one")), other)

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore), "First.")
        with pytest.raises(HostError, match="no such model"):
            await host.use_model("broken", ignore)
        await turn(await host.use_model("other", ignore), "Second.")
        await host.close()

    asyncio.run(run())
    assert play.opened == ["", "broken", "other"]
    assert [m.role for m in other.requests[0].messages] == ["system", "user", "assistant", "user"]


def test_front_ends_get_a_host_error_and_scripts_the_cause(tmp_path: Path):
    settings = Settings(model="broken")
    with pytest.raises(HostError):
        asyncio.run(Play(tmp_path, settings=settings).host().open(ignore))
    with pytest.raises(ModelError):
        asyncio.run(Play(tmp_path, settings=settings, interactive=False).host().open(ignore))
    with pytest.raises(HostError, match="no session"):
        asyncio.run(Play(tmp_path).host(SessionChoice(resume="nothing")).open(ignore))


def test_a_small_model_gets_the_short_prompt_and_fewer_tools(tmp_path: Path):
    small = ScriptedModel(say("ok"), is_small=True)
    large = ScriptedModel(say("ok"))
    for model in (small, large):
        play = Play(tmp_path, model)

        async def run(play: Play = play) -> None:
            host = play.host()
            await turn(await host.open(ignore))
            await host.close()

        asyncio.run(run())
    assert small.requests[0].messages[0].content == system_prompt(small=True)
    assert len(small.requests[0].tools) < len(large.requests[0].tools)


def test_the_system_prompts_are_short():
    assert len(system_prompt(small=False)) < 1500 * 4
    assert len(system_prompt(small=True)) < 300 * 4


def test_tools_keep_their_order_when_some_are_withheld():
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    tools = [Named(n) for n in ("read", "write", "shell")]
    offered, withheld = pick_tools(tools, ("shell", "read"))
    assert list(offered) == ["read", "shell"] and list(withheld) == ["write"]


@pytest.mark.parametrize(
    ("about", "settings", "menu"),
    [
        ({"is_small": True, "takes_prefix": True}, {}, "blocks"),
        ({"is_small": False, "takes_prefix": True}, {}, "tools"),
        ({"is_small": True}, {}, "tools"),  # another server of the same model cannot be led
        ({"is_small": True, "takes_prefix": True}, {"edit_menus": {"own-name": "tools"}}, "tools"),
        ({"takes_prefix": True}, {"edit_menus": {"own-name": "blocks"}}, "blocks"),
    ],
)
def test_a_model_at_our_own_server_gets_the_menu_that_it_gets_here(
    tmp_path: Path, about: dict[str, Any], settings: dict[str, Any], menu: str
) -> None:
    """Whatever alias it is asked for by: the server tells which model it runs."""

    async def main(server: ScriptedServer) -> Any:
        wanted = Settings(endpoint=server.url, model="alias", **settings)
        places = find_places({"POINTCODE_HOME": str(tmp_path / "home")})
        host = AppHost(Setup(wanted, places, tmp_path), interactive=False)
        agent = await host.open(ignore)
        await host.close()
        return agent

    with ScriptedServer([], model="alias", about={"root": "own-name", **about}) as server:
        assert asyncio.run(main(server))._menu == menu

"""Sessions of random replies, with random things happening meanwhile: prompts stay prefixes, the log tells the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pointcode_local.agent import Agent
from pointcode_local.config import Settings
from pointcode_local.engine.errors import BackendError
from pointcode_local.events import Answer, PermissionAsked, Prompt, SetMode, TurnFinished
from pointcode_local.host import AppHost, SessionChoice
from tests.app.agents import assert_valid_history
from tests.app.test_host import Play, ignore
from tests.app.test_prefix import assert_extends
from tests.fakes import ScriptedModel, Step, call, calls, cut_call, say

CALLS: Sequence[tuple[str, str]] = [
    *(("read", f'{{"path": "{path}"}}') for path in ("a.txt", "b.py", "none.txt", ".env")),
    *(
        ("edit", json.dumps({"path": "a.txt", "edits": [{"old": old, "new": "two"}]}))
        for old in ("one 1\n", "x", "two")
    ),
    *(("write", '{"path": "b.py", "content": "def f(): pass"}'), ("grep", '{"pattern": "one"}'), ("no_such", "{}")),
    *(("shell", '{"command": "echo hi"}'), ("read", '{"path": "a.txt",}'), ("glob", '{"pattern": "'), ("list", "{}")),
]


def reply(chance: random.Random) -> Step:
    text, thought = chance.choice(["", "Let me look. ", "Grüße 漢字 "]), chance.choice(["", "hm " * 9])
    named = [chance.choice(CALLS) for _ in range(chance.choice([1, 1, 2, 5]))]
    return chance.choice(
        [
            *([calls(*named, text=text)] * 6),
            *(say(f"{text}Done.", reasoning=thought), say(f"{text}Yes."), say("", reasoning="hm"), say(text or "Half")),
            *(cut_call("write", '{"path": "c.txt", "con'), [BackendError("broken")], say("cut", reason="length")),
            *([*calls(*named)[:-1], BackendError("broken")], call("todo", items=[{"text": "x", "status": "pending"}])),
        ]
    )


@pytest.mark.parametrize("seed", range(8))
def test_prompts_stay_prefixes_and_the_log_tells_the_same(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    model = ScriptedModel(*[reply(chance) for _ in range(60)], context_tokens=200_000)
    play = Play(tmp_path, model, model, settings=Settings(permission_mode="auto", sandbox="off", max_turns=12))
    (play.cwd / "a.txt").write_text("".join(f"one {n}\n" for n in range(30)))
    (play.cwd / "b.py").write_text("def f():\n    pass\n")
    (play.cwd / ".env").write_text("KEY=abc123def456\n")

    async def happen(host: AppHost, agent: Agent) -> None:
        match chance.randrange(40):
            case 0:
                agent.note("A file changed.")
            case 1:
                agent.send(Prompt("Mind the gap.", steer=True))
            case 2:
                agent.send(SetMode(chance.choice(["plan", "auto", "accept-edits"])))
            case 3:
                await host.undo()
            case _:
                pass

    async def turn(host: AppHost, agent: Agent) -> None:
        n_ends = 0
        async for event in agent.run("Go on."):
            n_ends += isinstance(event, TurnFinished)
            if isinstance(event, PermissionAsked):
                agent.send(Answer(event.call_id, chance.choice(["once", "deny"])))
            elif not isinstance(event, TurnFinished):
                await happen(host, agent)
        assert n_ends == 1

    async def main() -> None:
        host = play.host()
        agent = await host.open(ignore)
        for _ in range(3):
            await turn(host, agent)
            await host.redo()
        told = agent.conversation.messages_so_far
        assert_valid_history(told)
        session = host.info.session_id
        await host.close()
        host = play.host(SessionChoice(resume=session))
        agent = await host.open(ignore)
        assert agent.conversation.messages_so_far == told
        await turn(host, agent)
        await host.close()

    asyncio.run(main())
    assert_extends(model.requests, [])

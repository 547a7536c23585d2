"""Cancel at a hundred moments of a turn with real tools: the history is valid, processes are gone, files are whole."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pointcode_local.agent import Agent
from pointcode_local.checkpoints import Checkpoints
from pointcode_local.conversation import Conversation
from pointcode_local.events import AgentEvent, ToolProgress, TurnFinished
from pointcode_local.runner import Toolbox
from pointcode_local.session import SessionStore
from pointcode_local.tools.registry import build_tools
from pointcode_local.tools.workspace import Workspace
from tests.app.agents import assert_valid_history
from tests.fakes import FakePolicy, ScriptedModel, Step, calls, say
from tests.processes import ends

# A process that is cancelled while it is being started leaves asyncio's pipes to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("collected"),
]
SYSTEM = "You help."
FILLER = "".join(f"line {i}\r\n" for i in range(4000))
BEFORE = {
    "a.txt": f"old a\n{FILLER}",
    "b.txt": f"old b\n{FILLER}",
    "c.txt": f"old c\n{FILLER}",
    "d.txt": f"old d\n{FILLER}",
    "e.py": "def f():\n    return 'old e'\n",
}
AFTER = {name: text.replace("old", "new") for name, text in BEFORE.items()}
PATCH = (
    "*** Begin Patch\n*** Update File: c.txt\n@@\n-old c\n+new c\n*** Update File: d.txt\n@@\n-old d\n+new d\n"
    "*** Add File: made.txt\n+made\n*** End Patch\n"
)
LASTING = "(echo child $BASHPID; exec sleep 600) & echo shell $$; setsid sleep 600 & echo away $!; wait"


@pytest.fixture
def collected() -> Iterator[None]:
    """Such pipes go here, and not in the middle of another test."""
    yield
    gc.collect()


def script(command: str) -> list[Step]:
    """A turn that reads, changes every file in its own way and runs a command."""

    def one(*named: tuple[str, Mapping[str, object]]) -> Step:
        return calls(*((name, json.dumps(arguments)) for name, arguments in named), text="On it. ")

    edit = {"path": "a.txt", "edits": [{"old": "old a", "new": "new a"}]}
    return [
        one(("read", {"path": "b.txt", "limit": 5000}), ("grep", {"pattern": "old"}), ("edit", edit)),
        one(("write", {"path": "b.txt", "content": AFTER["b.txt"]}), ("patch", {"patch": PATCH})),
        one(("replace_symbol", {"path": "e.py", "symbol": "f", "content": AFTER["e.py"]})),
        one(("shell", {"command": command, "timeout_s": 300})),
        say("All ", "done."),
    ]


class Turn:
    """One turn over real tools in a folder of its own."""

    def __init__(self, folder: Path, command: str) -> None:
        self.root = folder / "ws"
        self.root.mkdir(parents=True)
        for name, text in BEFORE.items():
            (self.root / name).write_bytes(text.encode())
        self.store = SessionStore(folder / "sessions")
        self.log = self.store.create(self.root)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.box = build_tools()
        self.workspace = Workspace(self.root)
        toolbox = Toolbox(
            tools={tool.name: tool for tool in self.box.tools},
            policy=FakePolicy(),
            workspace=self.workspace,
            root=self.root,
            checkpoints=self.checkpoints,
        )
        self.model = ScriptedModel(*script(command), context_tokens=100_000)
        self.agent = Agent(model=self.model, toolbox=toolbox, log=self.log, system=SYSTEM)

    async def play(self, watch: Callable[[AgentEvent], None] = lambda event: None) -> list[AgentEvent]:
        events: list[AgentEvent] = []
        async for event in self.agent.run("Change everything."):
            events.append(event)
            watch(event)
        return events

    def check(self, events: list[AgentEvent]) -> None:
        """What must hold whenever the turn was cancelled."""
        end = events[-1]
        assert isinstance(end, TurnFinished) and end.outcome in ("cancelled", "done")
        live = self.agent.conversation.messages
        assert_valid_history(live)
        self.log.close()
        log, history = self.store.open(self.log.id)
        log.close()
        assert Conversation(SYSTEM, history).messages == live
        texts = {name: (self.root / name).read_bytes().decode() for name in BEFORE}
        for name, text in texts.items():
            assert text in (BEFORE[name], AFTER[name]), f"{name} is neither as before nor as after"
        made = (self.root / "made.txt").exists()
        assert (texts["c.txt"] == AFTER["c.txt"]) == (texts["d.txt"] == AFTER["d.txt"]) == made
        assert {path.name for path in self.root.iterdir()} <= {*BEFORE, "made.txt", "out.txt"}
        self.checkpoints.undo()
        assert {name: (self.root / name).read_bytes().decode() for name in BEFORE} == BEFORE
        assert not (self.root / "made.txt").exists()

    def close(self) -> None:
        self.box.close()
        self.workspace.close()


def cancel_after(agent: Agent, n_rounds: int) -> None:
    """Cancel after so many rounds of the event loop."""
    loop = asyncio.get_running_loop()

    def tick(left: int) -> None:
        if left <= 0:
            agent.cancel()
        else:
            loop.call_soon(tick, left - 1)

    tick(n_rounds)


@pytest.mark.parametrize("seed", range(4))
def test_a_turn_may_be_cancelled_at_any_round_of_the_event_loop(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    outcomes: set[str] = set()
    for number in range(20):
        turn = Turn(tmp_path / str(number), "echo made > out.txt")
        n_rounds = int(10 ** moments.uniform(0, 4.6))  # the last ones may come after the end

        async def play(turn: Turn = turn, n_rounds: int = n_rounds) -> list[AgentEvent]:
            asyncio.get_running_loop().call_soon(cancel_after, turn.agent, n_rounds)
            return await turn.play()

        events = asyncio.run(play())
        turn.check(events)
        turn.close()
        end = events[-1]
        assert isinstance(end, TurnFinished)
        outcomes.add(end.outcome)
    assert "cancelled" in outcomes


def test_a_turn_may_be_cancelled_at_any_event(tmp_path: Path) -> None:
    whole = Turn(tmp_path / "whole", "echo made > out.txt")
    n_events = len(asyncio.run(whole.play()))
    assert {name: (whole.root / name).read_bytes().decode() for name in BEFORE} == AFTER
    whole.close()
    for number in sorted(random.Random(7).sample(range(n_events - 1), 16)):
        turn = Turn(tmp_path / str(number), "echo made > out.txt")
        seen: list[AgentEvent] = []

        def watch(event: AgentEvent, turn: Turn = turn, number: int = number, seen: list[AgentEvent] = seen) -> None:
            seen.append(event)
            if len(seen) == number + 1:
                turn.agent.cancel()

        turn.check(asyncio.run(turn.play(watch)))
        turn.close()


def test_a_cancelled_command_leaves_no_process_behind(tmp_path: Path) -> None:
    for number in range(4):
        turn = Turn(tmp_path / str(number), LASTING)
        output: list[str] = []

        def watch(event: AgentEvent, turn: Turn = turn, output: list[str] = output) -> None:
            if isinstance(event, ToolProgress):
                output.append(event.text)
                if all(word in "".join(output) for word in ("child", "shell", "away")) and output[-1].endswith("\n"):
                    turn.agent.cancel()

        events = asyncio.run(turn.play(watch))
        pids = [int(line.split()[1]) for line in "".join(output).splitlines()]
        assert len(pids) == 3 and all(ends(pid) for pid in pids)
        turn.check(events)
        turn.close()

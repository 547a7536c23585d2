"""Every prompt begins with the whole of the one before: only then has the model's cache what it needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from pointcode_local.compaction import REQUEST
from pointcode_local.config import Settings
from pointcode_local.engine.errors import BackendError
from pointcode_local.engine.types import ChatDelta, ChatRequest, Message, ToolCallArguments, ToolCallBegun
from pointcode_local.events import AgentEvent, AssistantMessage, CompactionFinished, Prompt, SetMode, TextDelta
from tests.app.agents import Bench, assert_valid_history, of_type
from tests.app.test_host import Play, ignore, turn
from tests.fakes import FakeTool, ScriptedModel, Step, call, calls, cut_call, say


def written(messages: Sequence[Message]) -> str:
    """All that of messages reaches a template."""
    return "\n".join(
        json.dumps([m.role, m.content, m.reasoning, [[c.name, c.arguments] for c in m.tool_calls]]) for m in messages
    )


def assert_extends(requests: Sequence[ChatRequest], replies: Sequence[AssistantMessage], n_fresh: int = 0) -> None:
    """Each request begins with the one before; at most `n_fresh` begin anew. Replies stand right behind what they
    answer."""
    for request in requests:
        assert_valid_history(request.messages)
    anew = [
        i
        for i, (one, two) in enumerate(zip(requests, requests[1:], strict=False), 1)
        if not written(two.messages).startswith(written(one.messages)) or one.tools != two.tools
    ]
    assert len(anew) <= n_fresh, [written(requests[i].messages)[-500:] for i in anew]
    sent = {written(request.messages) for request in requests}
    for request in requests:
        for at, message in enumerate(request.messages):
            if message.role == "assistant" and any(message.content == each.text for each in replies):
                assert written(request.messages[:at]) in sent or n_fresh


def test_what_happens_while_the_model_writes_comes_behind_its_reply(tmp_path: Path):
    model = ScriptedModel(say("I am ", "thinking."), call("look"), say("Done."), say("Again."))
    bench = Bench(tmp_path, model, [FakeTool("look")])
    replies: list[AssistantMessage] = []

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, TextDelta):
            bench.agent.note(f"The user ended job-{len(event.text)}.")
        if isinstance(event, AssistantMessage):
            replies.append(event)

    for _ in range(3):
        bench.play("Go.", on_event)
    assert_extends(model.requests, replies)
    assert "ended job-5" in written(bench.agent.conversation.messages)
    bench.log.close()
    _, history = bench.store.open(bench.log.id)
    again = Bench(tmp_path, ScriptedModel(), [FakeTool("look")], history=history)
    assert again.agent.conversation.messages == bench.agent.conversation.messages


def rough() -> list[Step]:
    """Replies as they come from a strong model on a bad day, with all that tools do meanwhile."""
    edit = {"path": "a.txt", "edits": [{"old": "one", "new": "two"}]}
    return [
        say(reasoning="I only think."),
        calls(*[("read", json.dumps({"path": "a.txt", "offset": i})) for i in range(1, 9)], text="Looking. "),
        calls(("edit", json.dumps(edit)), ("edit", json.dumps(edit)), ("shell", '{"command": "echo hi"}')),
        calls(("edit", '{"path": "a.txt", "edits": [{"old": "tw'), ("no_such", "{}"), ("read", '{"path": "a.txt",}')),
        cut_call("write", '{"path": "b.txt", "content": "half'),
        [ToolCallBegun(0, "", "read"), ToolCallArguments(0, '{"pa'), BackendError("broken")],
        [BackendError("broken before anything came")],
        say("half an answ", reason="length"),
    ]


def test_a_long_rough_session_extends_its_prompt_byte_by_byte(tmp_path: Path):
    job = calls(
        ("shell", '{"command": "sleep 300", "background": true}'),
        ("todo", '{"items": [{"text": "x", "status": "open"}]}'),
    )
    model = ScriptedModel(*rough(), job, say("Started."), call("write", path="n.txt", content="x"), say("Planned?"),
                          call("write", path="n.txt", content="y"), say("Yes."), say("Bye."))  # fmt: skip
    play = Play(tmp_path, model, settings=Settings(permission_mode="auto", sandbox="off"))
    (play.cwd / "a.txt").write_text("".join(f"line one {i}\n" for i in range(20)).replace("one", "1", 19))
    (play.cwd / "AGENTS.md").write_text("Be kind.")
    replies: list[AssistantMessage] = []

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)

        async def one(prompt: str) -> None:
            replies.extend(of_type(await turn(agent, prompt), AssistantMessage))

        await one("First. @a.txt")
        await host.undo()
        await one("Start a server.")
        (job,) = host.jobs()
        await host.stop_job(job.id)
        agent.send(SetMode("plan"))
        await one("Plan.")
        agent.send(SetMode("auto"))
        async for event in agent.run("Do it."):
            if isinstance(event, AssistantMessage):
                replies.append(event)
                agent.note("A file changed.")
                if event.text == "":
                    agent.send(Prompt("Mind the gap. @AGENTS.md", steer=True))
        await host.redo()
        await one("Bye.")
        await host.close()

    asyncio.run(run())
    assert len(model.requests) == 15 and not model.steps
    assert_extends(model.requests, replies)


class Noting(ScriptedModel):
    """Answers every request for notes."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        if request.messages[-1].content == REQUEST:
            self.steps.insert(0, say("Notes."))
        async for delta in super().stream(request):
            yield delta


def test_compaction_keeps_plan_and_jobs_and_asks_for_notes_behind_the_whole_prompt(tmp_path: Path):
    plan = [{"text": "look at all", "status": "done"}, {"text": "mend the gap", "status": "in_progress"}]
    start = calls(("todo", json.dumps({"items": plan})), ("shell", '{"command": "sleep 300", "background": true}'))
    reads = [call("read", path="a.txt", offset=1 + 40 * i, limit=40) for i in range(40)]
    model = Noting(start, *reads, say("Done."), context_tokens=16_384)
    play = Play(tmp_path, model, settings=Settings(permission_mode="auto", sandbox="off"))
    (play.cwd / "a.txt").write_text("".join(f"some words in line {i}\n" for i in range(1700)))
    found: list[CompactionFinished] = []

    async def run() -> None:
        host = play.host()
        events = await turn(await host.open(ignore), "Go.")
        found.extend(of_type(events, CompactionFinished))
        await host.close()

    asyncio.run(run())
    assert found
    for each in found:
        assert "- in_progress: mend the gap" in each.summary and "- job-1: sleep 300" in each.summary
    assert_extends(model.requests, [], n_fresh=len(found))


def test_what_compaction_took_away_is_not_known_well_enough_to_be_replaced(tmp_path: Path):
    steps = [
        call("read", path="a.txt"),
        say("I know it."),
        call("write", path="a.txt", content="all new"),
        say("Done."),
    ]
    model = Noting(*steps)
    play = Play(tmp_path, model, settings=Settings(permission_mode="auto"))
    (play.cwd / "a.txt").write_text("precious\n" * 50)

    async def run() -> None:
        host = play.host()
        agent = await host.open(ignore)
        await turn(agent, "Read it.")
        assert of_type([event async for event in agent.compact()], CompactionFinished)[0].summary
        await turn(agent, "Write it.")
        await host.close()

    asyncio.run(run())
    assert (play.cwd / "a.txt").read_text() == "precious\n" * 50
    assert "was not read" in model.requests[-1].messages[-1].content


def test_ids_of_calls_stay_unique_when_compaction_took_their_messages_away(tmp_path: Path):
    model = Noting(*[call("look", call_id="call_0") for _ in range(3)], say("One."), call("look", call_id="call_0"))
    bench = Bench(tmp_path, model, [FakeTool("look", lambda: "x" * len(model.requests))])
    first = of_type(bench.play("Go."), AssistantMessage)

    async def shorten() -> None:
        assert of_type([event async for event in bench.agent.compact()], CompactionFinished)[0].summary

    asyncio.run(shorten())
    later = of_type(bench.play("Go on."), AssistantMessage)
    ids = [each[0] for message in [*first, *later] for each in message.tool_calls]
    assert len(ids) == 4 and len(set(ids)) == 4


def test_a_file_whose_middle_was_left_out_to_fit_the_context_is_not_replaced(tmp_path: Path):
    steps = [call("read", path="a.txt"), call("write", path="a.txt", content="all new"), say("Done.")]
    model = ScriptedModel(*steps, context_tokens=4096)
    play = Play(tmp_path, model, settings=Settings(permission_mode="auto"))
    text = "".join(f"some words in line {i}\n" for i in range(1000))
    (play.cwd / "a.txt").write_text(text)

    async def run() -> None:
        host = play.host()
        await turn(await host.open(ignore))
        await host.close()

    asyncio.run(run())
    assert "left out here" in model.requests[1].messages[-1].content
    assert "only in part" in model.requests[2].messages[-1].content
    assert (play.cwd / "a.txt").read_text() == text


def test_what_is_told_after_a_request_that_failed_is_a_message_of_its_own_also_when_the_log_is_read(tmp_path: Path):
    model = ScriptedModel(call("look"), [lambda: bench.agent.note("Late."), BackendError("broken")], say("Done."))
    bench = Bench(tmp_path, model, [FakeTool("look")])

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, AssistantMessage) and event.tool_calls:
            bench.agent.send(Prompt("Mind this.", steer=True))

    bench.play("Go.", on_event)
    assert_extends(model.requests, [])
    assert [m.content for m in model.requests[-1].messages[-2:]] == ["Mind this.", "[note] Late."]
    bench.log.close()
    _, history = bench.store.open(bench.log.id)
    again = Bench(tmp_path, ScriptedModel(), [FakeTool("look")], history=history)
    assert again.agent.conversation.messages == bench.agent.conversation.messages

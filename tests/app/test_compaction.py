"""Compaction and the context budget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pointcode_local.compaction import NOTES_HEAD, REQUEST
from pointcode_local.engine.errors import ContextOverflow
from pointcode_local.engine.types import Message
from pointcode_local.events import AgentEvent, CompactionFinished, CompactionStarted, ResultsCut
from pointcode_local.window import Window
from tests.app.agents import Bench, assert_valid_history, end_of, of_type
from tests.fakes import FakeTool, ScriptedModel, Step, call, calls, say

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LONG = "some plain words on a line\n" * 120  # about 800 tokens


class Summarising(ScriptedModel):
    """Plays its script, and answers every request for notes with `notes`."""

    def __init__(self, *steps: Step, notes: Step, context_tokens: int = 4096) -> None:
        super().__init__(*steps, context_tokens=context_tokens)
        self.notes = notes
        self.n_asked = 0

    async def stream(self, request):  # type: ignore[no-untyped-def]
        if request.messages[-1].content == REQUEST:
            self.n_asked += 1
            assert request.tool_choice == "none"
            self.steps.insert(0, self.notes)
        async for delta in super().stream(request):
            yield delta


def reading(folder: Path, n: int, notes: Step) -> tuple[Bench, Summarising]:
    """A model that reads `n` long files, each once."""
    model = Summarising(*[call("read", path=f"f{i}") for i in range(n)], say("All read."), notes=notes)
    tool = FakeTool("read", lambda path: f"{path}\n{LONG}", parameters=PATH)
    return Bench(folder, model, [tool]), model


def test_a_long_turn_is_compacted_and_goes_on(tmp_path: Path):
    bench, model = reading(tmp_path, 10, say("Files f0 and f1 hold words."))
    (bench.root / "AGENTS.md").write_text("RULE-1")
    events = bench.play("GOAL-1: read all.")
    assert end_of(events).text == "All read."
    assert 1 <= model.n_asked <= 10
    assert len(of_type(events, CompactionStarted)) == len(of_type(events, CompactionFinished)) == model.n_asked
    text = "\n".join(m.content for m in bench.last_messages)
    assert "GOAL-1" in text and "RULE-1" in text and "f0 and f1 hold words" in text
    for request in model.requests:
        assert_valid_history(request.messages)
        assert model.count_tokens(request.messages, request.tools) <= model.context_tokens


def test_the_last_result_is_still_there_after_compaction(tmp_path: Path):
    bench, model = reading(tmp_path, 6, say("notes"))
    bench.play()
    asked = [r for r in model.requests if r.messages[-1].content != REQUEST]
    for i, request in enumerate(asked[1:]):
        assert request.messages[-1].content.startswith(f"f{i}\n")


def test_where_the_model_writes_no_notes_a_list_of_the_calls_stands_in(tmp_path: Path):
    bench, _ = reading(tmp_path, 8, say(""))
    events = bench.play()
    assert end_of(events).outcome == "done"
    assert any("- read" in e.summary for e in of_type(events, CompactionFinished))


def test_later_prompts_of_the_person_are_kept_in_their_words(tmp_path: Path):
    bench, _ = reading(tmp_path, 4, say("notes"))
    bench.play("GOAL-1.")
    bench.model.steps = [call("read", path=f"g{i}") for i in range(6)] + [say("Done.")]
    bench.play("WISH-2.")
    text = "\n".join(m.content for m in bench.last_messages)
    assert "GOAL-1." in text and "WISH-2." in text


def test_a_compacted_session_is_replayed_to_the_same_messages(tmp_path: Path):
    bench, _ = reading(tmp_path, 8, say("notes"))
    bench.play("GOAL-1.")
    live = bench.agent.conversation.messages
    bench.log.close()
    log, history = bench.store.open(bench.log.id)
    again = Bench(tmp_path, ScriptedModel(say("ok"), context_tokens=32_768), log=log, history=history)
    again.play("Next.")
    assert again.last_messages[: len(live)] == live
    assert any(m.content.startswith(NOTES_HEAD) for m in live)


def test_a_prompt_longer_than_the_context_is_refused_at_once(tmp_path: Path):
    model = ScriptedModel(context_tokens=2048)
    events = Bench(tmp_path, model).play("word " * 5000)
    assert end_of(events).outcome == "error"
    assert "context is 2,048" in (end_of(events).error or "")
    assert model.requests == []


def test_a_conversation_that_cannot_shrink_ends_with_an_error_after_two_attempts(tmp_path: Path):
    class Heavy(ScriptedModel):
        def count_tokens(self, messages: Any, tools: Any = ()) -> int:
            return 10_000 if len(messages) > 2 else 100

    bench = Bench(tmp_path, Heavy(say("one"), context_tokens=4096))
    bench.play("First.")
    events = bench.play("Second.")
    assert end_of(events).outcome == "error"
    assert "nothing more can be left out" in (end_of(events).error or "")
    assert len(of_type(events, CompactionStarted)) == len(of_type(events, CompactionFinished)) == 2


def test_a_result_is_cut_to_what_is_left_with_head_tail_and_a_note(tmp_path: Path):
    model = ScriptedModel(call("read", path="f"), say("ok"), context_tokens=4096)
    text = "".join(f"line {i}\n" for i in range(10_000))
    bench = Bench(tmp_path, model, [FakeTool("read", lambda path: text, parameters=PATH)])
    bench.play()
    shown = bench.last_messages[-1].content
    assert shown.startswith("line 0\n") and shown.endswith("line 9999\n")
    assert "left out here" in shown
    assert model.count_tokens(bench.last_messages) < 4096 - 1024


def test_cutting_keeps_whole_lines_and_short_texts():
    window = Window(ScriptedModel(context_tokens=4096), ())
    assert window.cut("short", 100) == "short"
    cut = window.cut("".join(f"line {i}\n" for i in range(1000)), 100)
    assert all(line.startswith(("line", "[")) for line in cut.splitlines())
    assert window.count_text(cut) <= 130


def test_the_window_counts_the_reserve_for_the_answer():
    window = Window(ScriptedModel(context_tokens=4096), ())
    assert window.reserve == 1024
    assert window.room((Message("user", "x" * 4000),)) == 4096 - 1024 - 1004


def test_mentioned_files_that_are_too_long_together_are_cut_to_fit(tmp_path: Path):
    bench = Bench(tmp_path, ScriptedModel(say("Seen."), context_tokens=4096), [])
    for name in ("a", "b", "c"):
        (bench.root / f"{name}.txt").write_text(f"START-{name}\n{LONG * 6}END-{name}\n")
    (bench.root / "short.txt").write_text("SHORT\n")
    events = bench.play("Look at @a.txt, @short.txt, @b.txt and @c.txt")
    assert end_of(events).outcome == "done"
    assert not of_type(events, CompactionStarted)
    text = "\n".join(m.content for m in bench.last_messages)
    assert all(word in text for name in ("a", "b", "c") for word in (f"START-{name}", f"END-{name}"))
    assert "SHORT\n" in text and "left out here to fit the context" in text


def shorten(bench: Bench) -> list[AgentEvent]:
    """Play a compaction that the person asked for."""

    async def run() -> list[AgentEvent]:
        return [event async for event in bench.agent.compact()]

    return asyncio.run(run())


def test_a_compaction_that_was_asked_for_keeps_the_goal_and_the_last_answer_however_much_room_there_is(tmp_path: Path):
    model = Summarising(say("ANSWER-1" + LONG), say("ANSWER-2"), say("ANSWER-3"), say("Fine."), notes=say("The notes."))
    bench = Bench(tmp_path, model)
    for prompt in ("GOAL-1", "PROMPT-2", "PROMPT-3"):
        bench.play(prompt)
    started, finished = shorten(bench)
    assert isinstance(started, CompactionStarted) and isinstance(finished, CompactionFinished)
    bench.play("Go on.")
    texts = [message.content for message in bench.last_messages]
    assert "GOAL-1" in texts[1] and "The notes." in texts[2] and texts[3] == "ANSWER-3"
    assert not any("ANSWER-1" in text or "ANSWER-2" in text for text in texts)
    assert_valid_history(bench.last_messages)


def test_of_a_short_conversation_nothing_is_left_out(tmp_path: Path):
    bench = Bench(tmp_path, Summarising(say("ANSWER-1"), notes=say("notes")))
    bench.play("GOAL-1")
    _, finished = shorten(bench)
    assert isinstance(finished, CompactionFinished) and finished.summary == ""


def test_a_conversation_is_not_shortened_to_something_longer(tmp_path: Path):
    bench = Bench(tmp_path, Summarising(say("ANSWER-1"), say("ANSWER-2"), notes=say(LONG)))
    bench.play("GOAL-1")
    bench.play("PROMPT-2")
    before = bench.agent.conversation.messages
    _, finished = shorten(bench)
    assert isinstance(finished, CompactionFinished) and finished.summary == ""
    assert bench.agent.conversation.messages == before


def test_what_came_with_the_persons_words_is_not_taken_for_them(tmp_path: Path):
    model = Summarising(*[say(f"ANSWER-{n}") for n in range(4)], notes=say("The notes."))
    bench = Bench(tmp_path, model)
    (bench.root / "a.txt").write_text(f"MENTIONED {LONG}")
    for prompt in ("GOAL-1", "PROMPT-2: look at @a.txt", "PROMPT-3"):
        bench.play(prompt)
    shorten(bench)
    bench.play("Go on.")
    shorten(bench)
    text = "\n".join(message.content for message in bench.agent.conversation.messages)
    assert "PROMPT-2: look at @a.txt\nPROMPT-3" in text and "MENTIONED" not in text


def test_a_small_model_is_not_asked_for_notes(tmp_path: Path):
    model = ScriptedModel(call("read", path="f"), say("DONE-1"), say("DONE-2"), is_small=True)
    bench = Bench(tmp_path, model, [FakeTool("read", lambda path: LONG, parameters=PATH)])
    bench.play("GOAL-1")
    bench.play("PROMPT-2")
    n_before = len(model.requests)
    _, finished = shorten(bench)
    assert isinstance(finished, CompactionFinished) and "- read" in finished.summary
    assert len(model.requests) == n_before


async def test_a_compaction_that_is_stopped_leaves_the_conversation_as_it_was(tmp_path: Path):
    model = Summarising(say("ANSWER-1"), say("ANSWER-2"), notes=say(*"The notes."))
    bench = Bench(tmp_path, model)
    for prompt in ("GOAL-1", "PROMPT-2"):
        await bench.play_async(prompt)
    before = bench.agent.conversation.messages
    events: list[AgentEvent] = []
    async for event in bench.agent.compact():
        events.append(event)
        bench.agent.cancel()
    assert isinstance(events[-1], CompactionFinished) and events[-1].summary == ""
    assert bench.agent.conversation.messages == before and len(before) == 5


def test_many_results_at_once_are_cut_evenly_and_the_model_sees_each(tmp_path: Path):
    sizes = [400 if i % 10 == 3 else 40_000 for i in range(60)]
    many = calls(*[("read", f'{{"path": "{i}"}}') for i in range(60)])
    model = Summarising(say("Hello."), many, say("All read."), notes=say("notes"), context_tokens=32_768)
    work = FakeTool("read", lambda path: f"file {path}\n" + "words\n" * (sizes[int(path)] // 6), parameters=PATH)
    bench = Bench(tmp_path, model, [work])
    bench.play("Hello.")
    events = bench.play("Read all.")
    assert end_of(events).text == "All read." and model.n_asked == 0
    before, after = model.requests[-2].messages, model.requests[-1].messages
    assert after[: len(before)] == before
    shown = [message.content for message in after if message.role == "tool"]
    assert [text.split("\n")[0] for text in shown] == [f"file {i}" for i in range(60)]
    assert all(len(text) > 380 for text, size in zip(shown, sizes, strict=True) if size == 400)
    assert model.count_tokens(after) <= 32_768 - 4096
    (cut,) = of_type(events, ResultsCut)
    assert max(map(len, shown)) <= cut.max_chars + 120
    bench.log.close()
    log, history = bench.store.open(bench.log.id)
    again = Bench(tmp_path, ScriptedModel(), [work], log=log, history=history)
    assert again.agent.conversation.messages == bench.agent.conversation.messages


def test_results_are_cut_only_when_they_do_not_fit(tmp_path: Path):
    bench, model = reading(tmp_path, 6, say("notes"))
    assert not of_type(bench.play(), ResultsCut) and model.n_asked


def test_what_was_learnt_from_a_refusal_is_measured_again_when_the_server_counts():
    class Learning(ScriptedModel):
        def count_tokens(self, messages: Any, tools: Any = ()) -> int:
            return counted

    window, messages = Window(Learning(), ()), (Message("user", "x"),)
    counted = 1000
    window.learn(ContextOverflow("too long", prompt_tokens=1500, context_tokens=32_768), messages)
    assert window.count(messages) == 1500
    counted = 1500  # the model's own count has learnt too
    window.settle(1500, messages)
    assert window.count(messages) == 1500
    counted = 1200
    window.settle(0, messages)
    assert window.count(messages) == 1200


def test_a_refusal_with_numbers_that_cannot_be_ends_one_turn_and_no_session(tmp_path: Path):
    overflow = ContextOverflow("too long", prompt_tokens=900_000, context_tokens=300)
    bench = Bench(tmp_path, ScriptedModel([overflow], say("Hello."), context_tokens=8192))
    assert end_of(bench.play("Hi.")).outcome == "error"
    assert end_of(bench.play("Hi again.")).text == "Hello."


def test_what_was_told_before_a_compaction_stands_where_it_stood_when_the_log_is_read_again(tmp_path: Path):
    bench, _ = reading(tmp_path, 1, say("notes"))
    bench.play()
    bench.agent.note("The user undid something.")

    async def shorten() -> list[AgentEvent]:
        return [event async for event in bench.agent.compact()]

    asyncio.run(shorten())
    bench.model.steps = [say("Done.")]
    bench.play("Next.")
    live = bench.agent.conversation.messages
    bench.log.close()
    log, history = bench.store.open(bench.log.id)
    again = Bench(tmp_path, ScriptedModel(), log=log, history=history)
    assert again.agent.conversation.messages == live

"""Events folded into records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.events import (
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    ErrorRaised,
    ModeChanged,
    PermissionAsked,
    PrefillChanged,
    PromptQueued,
    ReasoningDelta,
    Steered,
    TextDelta,
    ToolCallDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
)
from pointcode_local.tui.story import AnswerRecord, NoticeRecord, Story, ThinkingRecord, ToolRecord, UserRecord
from tests.app.tui_scripts import USAGE, full_turn


def told(*events: object) -> Story:
    story = Story()
    for event in events:
        story.apply(event)  # type: ignore[arg-type]
    return story


def kinds(story: Story) -> list[str]:
    return [type(record).__name__.removesuffix("Record") for record in story.records]


def test_a_turn_becomes_one_record_per_piece() -> None:
    story = told(TurnStarted("go"), *full_turn(), TurnFinished("done", "", 1))
    assert kinds(story) == ["User", "Thinking", "Answer", "Tool", "Tool", "Tool", "Tool"]
    assert all(record.done for record in story.records if isinstance(record, AnswerRecord | ThinkingRecord))
    assert not story.in_turn and story.context_tokens == 9210


@given(st.lists(st.text(max_size=5), max_size=8))
def test_text_is_the_same_however_it_was_cut(pieces: list[str]) -> None:
    story = told(*map(TextDelta, pieces), AssistantMessage("".join(pieces), "", ()))
    texts = [record.text for record in story.records if isinstance(record, AnswerRecord)]
    assert "".join(texts).strip() == "".join(pieces).strip()


def test_a_log_of_whole_messages_shows_the_same_records_as_the_stream() -> None:
    message = AssistantMessage("answer", "thought", ())
    streamed = told(
        TurnStarted("q"), ReasoningDelta("thought"), TextDelta("answer"), message, TurnFinished("done", "", 1)
    )
    logged = told(TurnStarted("q"), message, TurnFinished("done", "", 1))
    assert kinds(streamed) == kinds(logged) == ["User", "Thinking", "Answer"]
    assert [getattr(r, "text", "") for r in streamed.records] == [getattr(r, "text", "") for r in logged.records]


def test_a_call_goes_from_written_to_running_to_done() -> None:
    story = told(ToolCallDelta("c", "shell", '{"command": "py'), ToolCallDelta("c", "shell", 'test"}'))
    record = story.records[0]
    assert isinstance(record, ToolRecord)
    assert (record.state, record.title, record.written) == ("writing", "shell pytest", 21)
    story.apply(ToolStarted("c", "shell", {"command": "pytest"}, "shell: pytest"))
    story.apply(ToolProgress("c", "ok\n"))
    assert (record.state, record.output) == ("running", ["ok\n"])
    story.apply(ToolFinished("c", "shell", {"command": "pytest"}, "ok", False))
    assert (record.state, record.result, record.title) == ("done", "ok", "shell: pytest")
    assert len(story.records) == 1


def test_live_output_is_kept_in_bounds() -> None:
    story = told(ToolStarted("c", "shell", {}, "shell"), *(ToolProgress("c", "x" * 1000) for _ in range(2000)))
    record = story.records[0]
    assert isinstance(record, ToolRecord)
    assert sum(map(len, record.output)) <= 400_000


def test_the_end_of_a_turn_closes_what_is_open() -> None:
    ask = PermissionAsked("p", "shell", {}, "shell", "", "")
    story = told(TurnStarted("q"), TextDelta("half"), ToolStarted("c", "shell", {}, "shell"), ask)
    story.apply(TurnFinished("cancelled", "", 1))
    states = [record.state for record in story.records if isinstance(record, ToolRecord)]
    assert states == ["stopped", "stopped"] and story.asks == {}
    assert isinstance(story.records[-1], NoticeRecord)


def test_queue_steering_and_mode_follow_the_events() -> None:
    story = told(TurnStarted("a"), PromptQueued("b"), Steered("c"), ModeChanged("plan"))
    assert story.queued == ["b"] and story.mode == "plan"
    assert (
        story.records[-1] == story.records[1] and isinstance(story.records[1], UserRecord) and story.records[1].steered
    )
    story.apply(TurnFinished("done", "", 1))
    story.apply(TurnStarted("b"))
    assert story.queued == []


def test_an_error_is_said_once() -> None:
    story = told(
        TurnStarted("q"), ErrorRaised("out of memory", temporary=True), TurnFinished("error", "", 1, "out of memory")
    )
    assert kinds(story) == ["User", "Notice"]


def test_progress_of_the_prompt_ends_with_the_first_text() -> None:
    story = told(TurnStarted("q"), PrefillChanged(1, 10, 0))
    assert story.prefill is not None
    story.apply(TextDelta("x"))
    assert story.prefill is None
    story.apply(USAGE)
    assert story.usage == USAGE


def test_compaction_is_told_and_the_context_shrinks() -> None:
    story = told(CompactionStarted(30_000), CompactionFinished(8_000, "summary"))
    assert story.context_tokens == 8_000 and kinds(story) == ["Notice", "Notice"]


def test_a_denied_call_is_told_once() -> None:
    story = told(
        TurnStarted("go"),
        ToolStarted("c", "shell", {"command": "rm x"}, "shell: rm x"),
        ToolFinished("c", "shell", {"command": "rm x"}, "Denied: you said no.", True, denied="you said no"),
        TextDelta("Denied: you said no."),
        AssistantMessage("Denied: you said no.", "", ()),
        TurnFinished("denied", "Denied: you said no.", 1),
    )
    assert kinds(story) == ["User", "Tool"]


def test_a_call_written_into_the_text_leaves_the_words_before_it() -> None:
    story = told(
        TurnStarted("go"),
        TextDelta("I read it.\n\n<tool_"),
        TextDelta('call>{"name": "read"}</tool_call>'),
        ToolStarted("c", "read", {"path": "a"}, "read a"),
        AssistantMessage("I read it.", "", (("c", "read", "{}"),)),
        ToolFinished("c", "read", {"path": "a"}, "A", False),
    )
    assert kinds(story) == ["User", "Answer", "Tool"]
    answer = story.records[1]
    assert isinstance(answer, AnswerRecord) and answer.text == "I read it.\n"


def test_a_block_that_became_a_call_gives_way_to_the_call() -> None:
    call = ("c1", "write", '{"path": "a.py", "content": "x = 1\\n"}')
    begun = [
        TextDelta("a.py:\n```python\nx ="),
        TextDelta(" 1"),
        ToolStarted("c1", "write", {"path": "a.py"}, "write a.py"),
    ]
    story = told(*begun, AssistantMessage("a.py:\n```python\nx = 1\n```", "", (call,)), TextDelta("Created."))
    assert [r.is_call for r in story.records if isinstance(r, AnswerRecord)] == [True, False]
    given = ("c1", "shell", '{"command": "ls"}')
    story = told(
        AssistantMessage("```sh\nls\n```", "", (given,)), ToolStarted("c1", "shell", {"command": "ls"}, "shell: ls")
    )
    assert kinds(story) == ["Tool"]

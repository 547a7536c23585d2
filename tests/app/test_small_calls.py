"""A small model that changes files by calls: held to one until the change is made, and done when it repeats itself."""

from __future__ import annotations

from pathlib import Path

from pointcode_local.events import Steered
from pointcode_local.tools.base import FileChange, ToolResult
from tests.app.agents import Bench, end_of, of_type
from tests.fakes import FakeTool, ScriptedModel, Step, call, say

FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path"],
}


def small(folder: Path, *steps: Step) -> Bench:
    """A bench whose `write` changes a file; writing nothing fails."""

    def write(path: str, content: str) -> ToolResult:
        change = FileChange(folder / "ws" / path, None, content.encode())
        return ToolResult(f"Wrote {path}.", changes=(change,), is_error=not content)

    tools = [FakeTool("read", lambda path: f"text of {path}", parameters=FILE)]
    tools.append(FakeTool("write", write, access="write", parameters=FILE))
    return Bench(folder, ScriptedModel(*steps, is_small=True), tools)


def choices(bench: Bench) -> list[str]:
    return [request.tool_choice for request in bench.model.requests]


def test_an_order_is_held_to_its_call_and_then_to_an_answer(tmp_path: Path) -> None:
    bench = small(tmp_path, call("write", path="a.py", content="x = 1\n"), say("Made it."))
    assert end_of(bench.play("Create a.py that sets x.")).text == "Made it."
    assert choices(bench) == ["write", "none"]


def test_a_question_is_held_to_nothing(tmp_path: Path) -> None:
    bench = small(tmp_path, call("read", path="a.py"), say("It sets x."))
    assert end_of(bench.play("What does a.py do?")).text == "It sets x."
    assert choices(bench) == ["auto", "auto"]


def test_a_change_that_failed_is_still_wanted(tmp_path: Path) -> None:
    wrong, right = (call("write", path="a.py", content=text) for text in ("", "x = 1\n"))
    bench = small(tmp_path, wrong, wrong, right, say("Made it."))
    assert end_of(bench.play("Create a.py that sets x.")).text == "Made it."
    assert choices(bench) == ["write", "write", "write", "none"]


def test_the_same_change_again_ends_the_turn_with_what_it_did(tmp_path: Path) -> None:
    change = call("write", path="a.py", content="x = 1\n")
    bench = small(tmp_path, change, change)
    end = end_of(bench.play("Create a.py that sets x."))
    assert (end.outcome, end.text) == ("done", "Wrote a.py.")


def test_reading_a_file_again_ends_nothing(tmp_path: Path) -> None:
    read = call("read", path="a.py")
    bench = small(tmp_path, read, read, say("It sets x."))
    assert end_of(bench.play("What does a.py do?")).text == "It sets x."


def test_the_second_step_is_told_with_the_file_of_the_first(tmp_path: Path) -> None:
    first, second = (call("write", path="a.py", content=text) for text in ("x = 1\n", "x = 2\n"))
    bench = small(tmp_path, first, say("Made."), second, say("Changed."))
    events = bench.play("Create a.py that sets x. Then edit it so that x is 2.")
    assert [event.prompt for event in of_type(events, Steered)] == [
        "a.py now contains:\n```\nx = 1\n```\n\nEdit it so that x is 2."
    ]
    assert choices(bench) == ["write", "none", "required", "none"] and end_of(events).text == "Changed."

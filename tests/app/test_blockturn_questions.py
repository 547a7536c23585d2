"""A small model that is led by blocks: what it answers, and what it is shown for that."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from pointcode_local.commandlines import what_is_missing
from pointcode_local.events import AgentEvent
from tests.app.agents import end_of
from tests.app.blockturn_kit import play, play_events, streamed
from tests.fakes import say


@pytest.mark.parametrize(
    ("prompt", "files", "answer"),
    [
        ("Explain how this project is laid out", {}, "There are no files in this folder yet."),
        ("Run the tests and fix what fails", {}, "I found no tests in this folder."),
        ("Run the tests", {"a_py": "x = 1\n"}, "I found no tests in this folder."),
        ("Fix gone.py", {"a_py": "x = 1\n"}, "There is no file gone.py in this folder."),
        ("What does gone.py do?", {"a_py": "x = 1\n"}, "There is no file gone.py in this folder."),
        ("What does out.json say?", {"_gitignore": "out.json\n", "out_json": "{}\n"}, "Said."),
        ("What is a list?", {}, "Said."),
        ("What does this project do?", {"a_py": "x = 1\n"}, "Said."),
        ("What is wrong with this code?\nx = 1 +", {}, "Said."),
    ],
)
def test_a_question_about_what_is_not_there_gets_no_invented_answer(
    tmp_path: Path, prompt: str, files: dict[str, str], answer: str
):
    model, said, _ = play(tmp_path, prompt, say("Said."), **files)
    assert said == answer
    assert bool(model.requests) == (answer == "Said.")


def test_a_file_that_is_named_is_found_in_a_folder_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pointcode_local.shown_files.MAX_FILES", 2)
    files = {f"{name}_py": "def f(): ...\n" for name in "abcdef"}
    _, answer, _ = play(tmp_path, "In e.py rename f to g.", **files)
    assert answer == "Renamed f to g in 1 place: e.py."


def test_what_is_asked_about_a_file_without_text_is_answered_without_the_model(tmp_path: Path):
    root = tmp_path / "ws"
    root.mkdir()
    (root / "logo.png").write_bytes(b"\x89PNG\0")
    for prompt in ("What is on @logo.png?", "@logo.png", "Make logo.png brighter"):
        _, answer, _ = play(tmp_path, prompt)
        assert answer == "logo.png is an image (5 bytes); this model reads text only."
    (root / "a.bin").write_bytes(b"\0\1")
    _, answer, _ = play(tmp_path, "What is in a.bin?", say("Bytes."))
    assert answer == "a.bin is a binary file (2 bytes); this model reads text only." or answer == "Bytes."


def test_a_file_that_cannot_be_read_or_written_is_said_to_be_so_without_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.py").write_text("x = 1\n")
    (tmp_path / "ws" / "a.py").chmod(0o444)
    model, answer, _ = play(tmp_path, "Set x to 2 in a.py")
    assert answer == "Nothing was changed: a.py is read-only." and not model.requests

    def denied(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pointcode_local.shown_files.read_regular", denied)
    model, answer, _ = play(tmp_path, "What does a.py do?")
    assert answer == "a.py cannot be read: Permission denied." and not model.requests


def test_a_question_is_answered_from_the_files_that_hold_its_names(tmp_path: Path):
    model, answer, _ = play(
        tmp_path, "Where is parse_date defined?", say("<tool_response>In d.py."), d_py="def parse_date(): ...\n"
    )
    assert "d.py:1: def parse_date(): ..." in model.requests[0].messages[-1].content
    assert answer == "In d.py."


def test_what_was_done_before_is_not_said_to_have_been_done_again(tmp_path: Path):
    claim = "Edited a.py: 1 replacement, at line 1."
    _, answer, agent = play(tmp_path, "carry on", say(claim), a_py="x = 1\n")
    assert answer.startswith("Nothing was done now") and claim not in agent.conversation.messages[-1].content
    _, answer, _ = play(tmp_path, "What did you change?", say(claim), a_py="x = 1\n")
    assert answer == claim


def test_an_answer_is_streamed_once(tmp_path: Path):
    _, events, _ = play_events(tmp_path, "What is a list?", say("A list holds ", "items."))
    assert streamed(events) == end_of(events).text == "A list holds items."


def test_no_answer_is_streamed_as_such(tmp_path: Path):
    _, events, _ = play_events(tmp_path, "What is a list?", say(" "))
    assert streamed(events).strip() == end_of(events).text == "I have no answer."


def test_a_question_about_an_empty_folder_comes_with_the_news_that_it_is_empty(tmp_path: Path):
    model, _, _ = play(tmp_path, "What files are there?", say("Nothing."))
    assert "Files in this folder: none" in model.requests[0].messages[-1].content


def test_a_question_about_the_functions_comes_with_their_names_and_number(tmp_path: Path):
    text = "def other():\n    return 1\n\n\ndef total(items):\n    return sum(items)\n"
    model, _, _ = play(tmp_path, "How many functions are in sum.py?", say("Two."), sum_py=text)
    assert "sum.py has 2 functions: other, total." in model.requests[0].messages[-1].content


def test_a_review_of_what_was_piped_in_begins_with_a_word_and_not_with_the_text_again(tmp_path: Path):
    model, answer, _ = play(
        tmp_path, "Review this.", say("This adds a line."), attached="[standard input]\n```\n+x\n```"
    )
    assert model.requests[0].reply_prefix == "This" and answer == "This adds a line."
    model, _, _ = play(tmp_path, "Explain a.py", say("It sets x."), a_py="x = 1\n")
    assert model.requests[0].reply_prefix == ""


def test_a_greeting_is_answered_without_showing_files(tmp_path: Path):
    model, answer, _ = play(tmp_path, "hi", say("Hello!"), a_py="x = 1\n")
    assert answer == "Hello!" and "x = 1" not in str(model.requests[0].messages)


def test_a_question_below_pasted_code_is_not_about_the_folder(tmp_path: Path):
    prompt = "def f(x):\n    return x + 1\n\nWhat does f(2) return?"
    model, answer, _ = play(tmp_path, prompt, say("3"), a_py="x = 1\n")
    assert answer == "3" and "x = 1" not in model.requests[0].messages[-1].content


def test_a_second_question_shows_only_what_has_changed_since_the_first(tmp_path: Path):
    model, _, agent = play(tmp_path, "What is x?", say("1"), say("2"), a_py="x = 1\n", b_py="y = 1\n")
    (tmp_path / "ws" / "b.py").write_text("y = 2\n")

    async def run() -> list[AgentEvent]:
        return [event async for event in agent.run("And what is y?")]

    asyncio.run(run())
    assert "x = 1" in model.requests[0].messages[-1].content and "y = 1" in model.requests[0].messages[-1].content
    assert "x = 1" not in model.requests[1].messages[-1].content and "y = 2" in model.requests[1].messages[-1].content


def test_a_question_about_a_large_folder_comes_with_its_readme_and_what_lies_at_the_top(tmp_path: Path):
    (tmp_path / "ws" / "pkg").mkdir(parents=True)
    for i in range(70):
        (tmp_path / "ws" / "pkg" / f"m{i}.py").write_text("")
    model, _, _ = play(tmp_path, "What is this project?", say("A shop."), README_md="# A shop\n", main_py="")
    content = model.requests[0].messages[-1].content
    assert "Files in this folder: README.md, main.py, pkg/ (70 files)" in content and "# A shop" in content


@pytest.mark.parametrize(
    "order",
    [
        "Create the file hello.py that prints hello.",
        "In this folder, write a.txt",
        "Set up the project: a package with a test",
    ],
)
def test_an_order_to_make_something_misses_nothing_in_an_empty_folder(order: str) -> None:
    assert not what_is_missing(order, [])

"""A small model that is led by blocks: what it writes and runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pointcode_local import shown_files
from pointcode_local.events import AgentEvent
from tests.app.agents import end_of
from tests.app.blockturn_kit import play, play_events, streamed
from tests.fakes import Step, say


def test_a_file_is_created_and_then_edited_through_the_tools(tmp_path: Path):
    prompt = "Create hello.py that prints hello. Then edit it so that it prints goodbye."
    first, second = say('hello.py:\n```python\nprint("hello")'), say('hello.py:\n```python\nprint("goodbye")')
    model, answer, agent = play(tmp_path, prompt, first, second)
    assert (tmp_path / "ws" / "hello.py").read_text() == 'print("goodbye")\n'
    calls = [call.name for message in agent.conversation.messages for call in message.tool_calls]
    assert calls == ["write", "edit"]
    assert answer == "Created hello.py (1 line).\nEdited hello.py: 1 replacement, at line 1."
    assert [request.reply_prefix for request in model.requests] == ["hello.py:\n```python\n"] * 2
    assert all(not request.tools for request in model.requests)
    assert 'hello.py:\n```python\nprint("hello")\n```\n\nEdit it' in model.requests[1].messages[-1].content


def test_untouched_bytes_stay(tmp_path: Path):
    reply = say("s.ini:\n```ini\n[a]\nport = 2\n[b]")
    play(tmp_path, "In s.ini change the port to 2.", reply, s_ini="[a]\r\nport = 1\r\n\r\n[b]")
    assert (tmp_path / "ws" / "s.ini").read_bytes() == b"[a]\r\nport = 2\r\n\r\n[b]"


def test_a_reply_that_changes_nothing_gets_a_second_try(tmp_path: Path):
    model, answer, _ = play(
        tmp_path, "a.py must print 2.", say("```\nprint(1)"), say("```\nprint(2)"), a_py="print(1)\n"
    )
    assert (tmp_path / "ws" / "a.py").read_text() == "print(2)\n"
    assert "same text as before" in model.requests[1].messages[-1].content
    assert answer.startswith("Edited a.py")


def test_nothing_changed_is_said_so(tmp_path: Path):
    _, answer, _ = play(tmp_path, "Fix a.py.", *[say("```\nprint(1)")] * 3, a_py="print(1)\n")
    assert answer == "Nothing was changed: the new text was the same as before."


def test_a_syntax_error_is_mended_in_a_second_try(tmp_path: Path):
    model, _, _ = play(tmp_path, "Create a.py that prints 1.", say("```\nprint(1"), say("```\nprint(1)"))
    assert "has a syntax error" in model.requests[1].messages[-1].content
    assert (tmp_path / "ws" / "a.py").read_text() == "print(1)\n"


def test_a_fault_that_stays_is_told(tmp_path: Path):
    replies = [say("```\nprint(os.sep")] * 3
    _, answer, _ = play(tmp_path, "Create a.py that prints the separator.", *replies)
    assert answer == "Created a.py (1 line).\na.py has a syntax error in line 1: print(os.sep."


def test_a_class_of_the_project_that_a_new_file_forgot_to_import_is_found(tmp_path: Path):
    play(tmp_path, "Create b.py that makes a cart.", say("```\nprint(Cart())"), a_py="x = 1\n", cart_py=CART)
    assert (tmp_path / "ws/b.py").read_text() == "from cart import Cart\n\nprint(Cart())\n"


def test_an_import_that_was_forgotten_is_put_in(tmp_path: Path):
    model, answer, _ = play(tmp_path, "Create a.py that prints the separator.", say("```\nprint(os.sep)"))
    assert (tmp_path / "ws/a.py").read_text() == "import os\n\nprint(os.sep)\n"
    assert answer == "Created a.py (3 lines)." and len(model.requests) == 1


CUT = say("```\nprint(1)\nprint(", reason="length")


@pytest.mark.parametrize(
    ("prompt", "replies", "outcome", "why", "answer"),
    [
        ("Create a.py that prints 1.", [say("```\nprint(1)")], "done", None, "Created a.py (1 line)."),
        (
            "Create a.py that prints 1.",
            [CUT] * 2,
            "limit",
            "the text of a.py was cut at the token limit",
            "Nothing was changed: the text of a.py was cut at the token limit.",
        ),
        ("Create a.py that prints 1.", [say("```\nprint(1")] * 3, "limit", "a.py has a syntax error", "Created a.py"),
        ("Create a.py that prints 1.", [CUT, say("```\nprint(1)")], "done", None, "Created a.py (1 line)."),
        ("Fix b.py.", [say("```\nprint(1)")] * 3, "done", None, "Nothing was changed: the new text was the same"),
        ("In c.py set y to 2.", [say("```\ny = 2\nx = (")] * 3, "done", None, "Edited c.py"),  # the fault was there
        ("What is a list?", [say(" ")], "limit", "the model gave no answer", "I have no answer."),
        ("Create a.py that prints 1. Then tell me what a list is.", [*[CUT] * 2, say("A row.")], "limit", "cut", ""),
    ],
)
def test_a_turn_in_which_the_model_gave_up_is_not_done(
    tmp_path: Path, prompt: str, replies: list[Step], outcome: str, why: str | None, answer: str
):
    _, events, _ = play_events(tmp_path, prompt, *replies, b_py="print(1)\n", c_py="y = 1\nx = (\n")
    end = end_of(events)
    assert end.outcome == outcome, end
    assert end.error is None if why is None else why in (end.error or "")
    assert answer in end.text


def test_a_new_file_in_which_the_model_begins_to_count_without_end_is_kept_up_to_there(tmp_path: Path):
    lines = [f"    assert double({n}) == {2 * n}\n" for n in range(2000)]
    _, events, _ = play_events(tmp_path, "Create test_a.py for double.", say("```\ndef test_double():\n", *lines))
    text = (tmp_path / "ws/test_a.py").read_text()
    assert text.startswith("def test_double():\n    assert double(0) == 0\n") and text.count("\n") < 40
    assert text.splitlines()[-1] in "".join(lines)
    end = end_of(events)
    assert end.outcome == "limit" and "only repeated itself at the end of test_a.py" in (end.error or "")


def test_a_function_and_its_test_are_written_into_the_two_files_that_are_named(tmp_path: Path):
    function, test = "def f(a, b):\n    return a\n", "def test_f():\n    assert f(1, 2) == 1\n"
    prompt = "Add a function f(a, b) to m.py with a test in test_m.py"
    _, answer, _ = play(tmp_path, prompt, say(f"```\nx = 1\n\n\n{function}"), say(f"```\n{test}"), m_py="x = 1\n")
    assert (tmp_path / "ws/m.py").read_text() == f"x = 1\n\n\n{function}"
    assert (tmp_path / "ws/test_m.py").read_text() == f"from m import f\n\n{test}"
    assert answer == "- Edited m.py: 1 replacement, at line 1.\n- Created test_m.py (4 lines)."


def test_a_name_is_renamed_everywhere_without_the_model(tmp_path: Path):
    prompt = "Rename the function calc to area in a.py and b.py."
    model, answer, _ = play(
        tmp_path, prompt, a_py="def calc(): ...\n\ncalc()\n", b_py="from a import calc\ncalculator = 1\n"
    )
    assert not model.requests and answer == "Renamed calc to area in 3 places: a.py (2), b.py (1)."
    assert (tmp_path / "ws" / "b.py").read_text() == "from a import area\ncalculator = 1\n"


def test_to_run_it_is_to_run_the_file_that_was_changed(tmp_path: Path):
    model, answer, _ = play(tmp_path, "Create hello.py that prints hi, then run it.", say('```\nprint("hi")'))
    assert answer == "Created hello.py (1 line).\nRan `python3 hello.py`, which printed:\n```\nhi\n```"
    assert len(model.requests) == 1


def test_a_command_runs_and_its_output_stands_in_the_answer(tmp_path: Path):
    command, sentence = say("```sh\ncat a.txt"), say("It has 1 line.")
    model, answer, _ = play(tmp_path, "How many lines does a.txt have?", command, sentence, a_txt="one\n")
    assert answer == "It has 1 line.\n\nRan `cat a.txt`, which printed:\n```\none\n```"
    _, answer, _ = play(tmp_path, "Run something twice", say("```sh\ncat a.txt\ncat a.txt"))
    assert answer == "Ran these commands:\n```sh\ncat a.txt\ncat a.txt\n```\nIt printed:\n```\none\none\n```"
    assert "Files in this folder: a.txt" in model.requests[0].messages[-1].content
    assert model.requests[0].reply_pattern


def test_a_denied_command_ends_the_turn_as_denied(tmp_path: Path):
    _, answer, agent = play(tmp_path, "Delete a.txt", say("```sh\nrm a.txt"), mode="ask", a_txt="one\n")
    assert answer.startswith("Denied: ")
    assert "Do not try" not in answer  # that is said to the model
    assert (tmp_path / "ws" / "a.txt").exists()
    assert agent.conversation.messages[-1].role == "assistant"


def test_what_a_command_printed_is_streamed_after_the_sentence_about_it(tmp_path: Path):
    command, sentence = say("```sh\ncat a.txt"), say("It has 1 line.")
    _, events, _ = play_events(tmp_path, "How many lines does a.txt have?", command, sentence, a_txt="one\n")
    assert streamed(events).endswith("It has 1 line.\n\nIt printed:\n```\none\n```")
    assert streamed(events).count("It has 1 line.") == 1


def test_in_plan_mode_nothing_is_written(tmp_path: Path):
    model, answer, _ = play(tmp_path, "Create a.py that prints 1.", say("I would write it."), mode="plan")
    assert answer == "I would write it." and model.requests[0].reply_prefix == "I would"
    assert not (tmp_path / "ws" / "a.py").exists()


def test_the_next_prompt_begins_with_the_whole_earlier_one(tmp_path: Path):
    prompt = "Create a.txt with one and b.txt with two."
    model, _, _ = play(tmp_path, prompt, say("a.txt:\n```\none"), say("b.txt:\n```\ntwo"))
    first, second = (request.messages for request in model.requests)
    assert second[: len(first)] == first


def test_what_is_added_without_a_name_goes_into_the_file_that_was_changed_last_also_in_the_next_prompt(tmp_path: Path):
    one, two, three = (f"def f{n}():\n    return {n}" for n in (1, 2, 3))
    replies = (f"{one}", f"{one}\n\n\n{two}", f"{one}\n\n\n{two}\n\n\n{three}")
    prompt = "Create f.py with a function f1, then add a function f2"
    model, _, agent = play(tmp_path, prompt, *(say(f"f.py:\n```python\n{reply}") for reply in replies))
    assert (tmp_path / "ws" / "f.py").read_text() == replies[1] + "\n"

    async def run() -> list[AgentEvent]:
        return [event async for event in agent.run("Now add a method f3")]

    asyncio.run(run())
    assert (tmp_path / "ws" / "f.py").read_text() == replies[2] + "\n"
    assert [request.reply_prefix for request in model.requests] == ["f.py:\n```python\n"] * 3


CART = "class Cart:\n    def total(self):\n        return 1\n"
TEST_CART = "from cart import Cart\n\n\ndef test_total():\n    assert Cart().total() == 2\n"


def test_a_mentioned_file_is_changed_and_shown_once(tmp_path: Path):
    model, _, _ = play(tmp_path, "Add a docstring to @a.py", say('```python\n"""A."""\nx = 1'), a_py="x = 1\n")
    assert (tmp_path / "ws" / "a.py").read_text() == '"""A."""\nx = 1\n'
    assert not (tmp_path / "ws" / "@a.py").exists()
    assert model.requests[0].messages[-1].content.count("x = 1") == 1


def test_a_change_without_a_file_goes_where_the_name_is_defined_not_where_it_is_used(tmp_path: Path):
    files = {"a_py": "from cart import Cart\n\nCart().total()\n", "cart_py": CART}
    model, _, _ = play(tmp_path, "Let Cart.total return 2", say(f"```python\n{CART.replace('1', '2')}"), **files)
    assert model.requests[0].reply_prefix.startswith("cart.py:")


def test_an_order_to_mend_a_failing_test_changes_what_is_tested(tmp_path: Path):
    prompt = "The test test_total fails. Fix it."
    model, answer, _ = play(
        tmp_path, prompt, say(f"```python\n{CART.replace('1', '2')}"), cart_py=CART, cart_test_py=TEST_CART
    )
    assert answer.startswith("Edited cart.py")
    assert "assert Cart().total() == 2" in model.requests[0].messages[-1].content


def test_a_command_that_is_spelled_out_runs_as_it_is_without_the_model(tmp_path: Path):
    model, answer, _ = play(tmp_path, "Run `cat a.txt`", a_txt="one\n")
    assert answer == "Ran `cat a.txt`, which printed:\n```\none\n```" and not model.requests


def test_tests_are_run_what_failed_is_mended_and_they_are_run_again(tmp_path: Path):
    check = "grep -q 'return 2' cart.py || { echo FAILED cart.test.py::test_total; exit 1; }"
    files = {"Makefile": f"test:\n\t@{check}\n\t@echo passed\n", "cart_py": CART, "cart_test_py": TEST_CART}
    model, events, _ = play_events(
        tmp_path, "Run the tests and fix what fails", say(f"```python\n{CART.replace('1', '2')}"), **files
    )
    assert (tmp_path / "ws" / "cart.py").read_text() == CART.replace("1", "2")
    assert len(model.requests) == 1 and "FAILED cart.test.py::test_total" in str(model.requests[0].messages)
    assert end_of(events).text.splitlines()[-2:] == ["passed", "```"]


SUM = "import x\n\n\ndef other():\n    return 1\n\n\ndef total(items):\n    return sum(p for p, n in items)\n"


def test_only_the_function_that_the_failing_line_calls_is_written_anew_and_twice_if_need_be(tmp_path: Path):
    check = "grep -q 'p \\* n' sum.py || { echo 'assert total([]) == 2'; echo AssertionError: 0; exit 1; }"
    files = {"Makefile": f"test:\n\t@{check}\n", "sum_py": SUM}
    files["sum_test_py"] = "from sum import total\n\n\ndef test_total():\n    assert total([]) == 2\n"
    files["Makefile"] = files["Makefile"].replace("echo 'assert", "echo sum.test.py; echo 'assert")
    head = "sum.py:\n```python\ndef total(items):\n"
    replies = [
        say(f"{head}    return sum(n * p for p, n in items)"),
        say(f"{head}    return sum(p * n for p, n in items)"),
    ]
    model, events, _ = play_events(tmp_path, "Run the tests and fix what fails", *replies, **files)
    assert (tmp_path / "ws" / "sum.py").read_text() == SUM.replace("sum(p for", "sum(p * n for")
    assert [request.reply_prefix for request in model.requests] == [head, head]
    assert "Make use of n." in str(model.requests[0].messages)
    assert "`assert total([]) == 2` gives `AssertionError: 0`. I change sum.py." in end_of(events).text
    assert end_of(events).outcome == "done"


def test_a_docstring_goes_into_the_function_that_is_named_and_nothing_else_is_written(tmp_path: Path):
    head = "sum.py:\n```python\ndef total(items):\n"
    reply = say(f'{head}    """The sum."""\n    return sum(p for p, n in items)')
    model, _, _ = play(tmp_path, "Add a docstring to the function total", reply, sum_py=SUM)
    assert model.requests[0].reply_prefix == head
    assert (tmp_path / "ws/sum.py").read_text() == SUM.replace("(items):\n", '(items):\n    """The sum."""\n')


def test_a_parameter_with_its_default_begins_the_function(tmp_path: Path):
    head = "sum.py:\n```python\ndef total(items, start=0):\n"
    reply = say(f"{head}    return sum((p for p, n in items), start)")
    model, _, _ = play(tmp_path, "Add a parameter start with default 0 to total in sum.py", reply, sum_py=SUM)
    assert model.requests[0].reply_prefix == head
    assert "def total(items, start=0):\n    return sum((p" in (tmp_path / "ws/sum.py").read_text()


def test_what_still_fails_in_the_end_is_said_to_do_so(tmp_path: Path):
    files = {"Makefile": "test:\n\t@echo FAILED cart.test.py; exit 1\n", "cart_py": CART, "cart_test_py": TEST_CART}
    replies = [say(f"```python\n{CART.replace('1', n)}") for n in "23"]
    _, events, _ = play_events(tmp_path, "Run the tests and fix what fails", *replies, **files)
    end = end_of(events)
    assert (end.outcome, end.error) == ("limit", "`make test` still fails")


def test_when_the_tests_pass_nothing_is_mended(tmp_path: Path):
    model, answer, _ = play(tmp_path, "Run the tests and fix what fails", Makefile="test:\n\t@echo passed\n")
    assert not model.requests and "passed" in answer


def test_a_head_that_was_lost_on_the_way_stays(tmp_path: Path):
    before = '"""A."""\n\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    x: int = 1\n'
    play(tmp_path, "In a.py x must be 2.", say("```python\n@dataclass\nclass A:\n    x: int = 2"), a_py=before)
    assert (tmp_path / "ws" / "a.py").read_text() == before.replace("1", "2")


def test_tests_are_not_run_again_when_nothing_was_changed(tmp_path: Path):
    files = {"Makefile": "test:\n\t@echo FAILED cart.test.py; exit 1\n", "cart_py": CART, "cart_test_py": TEST_CART}
    same = [say(f"```python\n{CART}")] * 3
    _, events, agent = play_events(tmp_path, "Run the tests and fix what fails", *same, **files)
    assert end_of(events).text.endswith("Nothing was changed: the new text was the same as before.")
    assert [call.name for m in agent.conversation.messages for call in m.tool_calls] == ["shell"]


def test_a_line_with_bytes_that_are_no_characters_stays_as_it_is(tmp_path: Path):
    (tmp_path / "ws").mkdir()
    path = tmp_path / "ws" / "a.ini"
    path.write_bytes(b"; \xff\xfe\x81 title\nport = 1\n")
    reply = say("a.ini:\n```ini\n; \N{REPLACEMENT CHARACTER} title\nport = 2")
    model, _, _ = play(tmp_path, "In a.ini change the port to 2.", reply)
    assert path.read_bytes() == b"; \xff\xfe\x81 title\nport = 2\n"
    assert "\N{REPLACEMENT CHARACTER} title" in model.requests[0].messages[-1].content


def test_a_name_is_found_however_many_files_there_are_and_a_rename_tells_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = {f"m{i}_py": f"def fn{i}(): ...\n" for i in range(30)}
    monkeypatch.setattr(shown_files, "MAX_FILES", 30)
    _, answer, _ = play(tmp_path, "Rename fn29 to last everywhere", **files)
    assert (tmp_path / "ws" / "m29.py").read_text() == "def last(): ...\n"
    assert answer.endswith("Only the first 30 files were looked at.")

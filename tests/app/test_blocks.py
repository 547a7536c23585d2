"""Code blocks instead of tool calls: what a small model is shown, what it wrote, and the edit that comes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.blocks import as_blocks, block_body, fence_of, language, shown_file, without_markers
from pointcode_local.engine.types import Message, ToolCall
from pointcode_local.merge import as_edit, merged, with_stray_bytes
from pointcode_local.shown_files import MAX_SHOWN_CHARS, Files, fault_note, part_of

LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "x = 1"]), max_size=8).map(
    lambda x: "".join(f"{y}\n" for y in x)
)


def test_a_file_is_shown_in_a_fence_that_it_does_not_hold():
    assert shown_file("a.py", "x = 1\n") == "a.py:\n```python\nx = 1\n```"
    assert fence_of("```\n````\n") == "`````"
    assert fence_of("text", "a.md") == "````"
    assert [language(name) for name in ("a.js", "Makefile", "x/b.css", "c")] == ["javascript", "makefile", "css", ""]


def test_the_body_of_a_block_is_taken_whole_and_its_end_may_be_missing():
    assert block_body("a.py:\n```python\nx = 1") == "x = 1\n"
    assert block_body("a.md:\n````markdown\n```\nx\n```\n````\nmore") == "```\nx\n```\n"
    assert block_body("no block") is None


def test_the_history_holds_no_calls_and_results_are_the_users():
    messages = (
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "", tool_calls=(ToolCall("1", "read", "{}"),)),
        Message("tool", "text\n", tool_call_id="1"),
        Message("user", "go on"),
    )
    shown = as_blocks(messages)
    assert [m.role for m in shown] == ["system", "user", "assistant", "user"]
    assert shown[2].content == "[read {}]"
    assert shown[3].content == "Result: text\n\ngo on"


def test_an_answer_shows_no_markers_of_tools():
    assert without_markers("<tool_response>\nCreated a.py.\n</tool_response>") == "Created a.py."
    assert without_markers("a < b  and\n\n\n\nmore") == "a < b  and\n\n\n\nmore"


@given(LINES, LINES)
def test_the_edit_makes_the_new_text_and_its_old_text_is_unique(old: str, new: str):
    edit = as_edit(old, new)
    if edit is None:
        assert old == new
        return
    assert old.count(edit["old"]) == 1 or edit["old"] == old
    assert old.replace(edit["old"], edit["new"], 1) == new if old else edit == {"old": "", "new": new}


@given(LINES)
def test_a_text_that_was_copied_without_its_blank_lines_is_no_change(old: str):
    copied = "".join(line for line in old.splitlines(keepends=True) if line.strip())
    assert merged(old, copied, "change it") == old


def test_each_line_with_bytes_that_are_no_characters_comes_back_to_its_own_place():
    old = "\udccf\udcf0\n# \udcc1\n\n# \udcc2\udcc3\n#\nn = 1\n"
    shown = re.sub("[\ud800-\udfff]", "\ufffd", old)
    assert with_stray_bytes(old, shown) == old
    assert with_stray_bytes(old, shown.replace("n = 1", "n = 2\n")) == old.replace("n = 1", "n = 2\n")
    assert with_stray_bytes(old, shown.replace("# \ufffd\n", "")) == old.replace("# \udcc1\n", "")
    assert with_stray_bytes(old, shown.replace("\ufffd", "é")) == old


@pytest.mark.parametrize("char", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r")
def test_only_a_line_feed_ends_a_line(char: str, tmp_path: Path):
    for line in (f"s = 'a{char}b'", char):
        old, new = (f"{line}\nn = {n}\n\nm = 3\n" for n in (1, 2))
        assert merged(old, new, "set n to 2") == new
        assert merged(old, f"{line}\nn = 2\nm = 3\n", "set n to 2") == new
    stray = f"# \udce9{char}\nn = 1\n"
    assert with_stray_bytes(stray, f"# \ufffd{char}\nn = 2\n") == f"# \udce9{char}\nn = 2\n"
    (tmp_path / "a.py").write_bytes(f"s = 'a{char}b' # {'-' * 40}\nword = 1\n".encode())
    assert Files(tmp_path, lambda path: True).hits(["word"]) == [("a.py", 2, "word = 1")]
    assert fault_note("a.py", f"s = 'a{char}b'\ndef (:\n").endswith("in line 2: def (:")


def test_what_was_left_out_at_the_end_stays_unless_the_order_removes():
    old = "def a():\n    return 1\n\n\ndef b():\n    return 2\n"
    new = "def a():\n    return 3\n"
    assert merged(old, new, "a must return 3") == "def a():\n    return 3\n\n\ndef b():\n    return 2\n"
    assert merged(old, new, "remove b and return 3") == "def a():\n    return 3\n"
    assert merged("x\ny", "x\nz\n", "y is z") == "x\nz"


def test_a_long_file_is_shown_where_it_shares_words_with_the_order():
    text = "".join(f"def f{n}():\n    return {n}\n\n" for n in range(900))
    part = part_of(text, "let f700 return 7")
    assert not part.is_whole
    assert "def f700():" in part.text
    assert len(part.text) < MAX_SHOWN_CHARS
    assert "".join(text.splitlines(keepends=True)[part.first : part.last]) == part.text


def test_faults_and_missing_imports_are_told():
    assert fault_note("a.py", "for x in y\n    pass\n").startswith("a.py has a syntax error in line 1: for x in y")
    assert fault_note("a.py", "print(sys.argv)\n") == "a.py uses sys but does not import it"
    assert fault_note("a.py", "import sys\nprint(sys.argv)\n") == ""
    assert fault_note("a.txt", "for x in y") == ""

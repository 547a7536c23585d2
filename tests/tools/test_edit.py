"""Edits are byte-exact: what is asked for changes, nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointcode_local.tools.base import ToolError
from pointcode_local.tools.edit import Edit, apply_edits
from pointcode_local.tools.filetext import decode

from .tool_kit import Bench


def edited(before: bytes, *pairs: tuple[str, str], replace_all: bool = False) -> bytes:
    return apply_edits(decode(before), [Edit(old, new, replace_all) for old, new in pairs]).after


def refusal(before: bytes, *pairs: tuple[str, str]) -> str:
    with pytest.raises(ToolError) as caught:
        edited(before, *pairs)
    return str(caught.value)


@pytest.mark.parametrize("new", ["$& $1 ${x} $$", r"\1 \g<0> \n \\", "%s {0} `id`", "a\u2028b", "\x0c\x0b"])
def test_the_new_text_goes_in_literally(new: str) -> None:
    assert edited(b"let a = WORD;\n", ("WORD", new)) == b"let a = " + new.encode() + b";\n"


@pytest.mark.parametrize("old", ["a.b(c)", "x[0]", "^$", "(?i)q", "a|b", "\\d+"])
def test_the_old_text_is_no_pattern(old: str) -> None:
    assert edited(f"1 {old} 2\naxbc x0 Q 7\n".encode(), (old, "new")) == b"1 new 2\naxbc x0 Q 7\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\ny\n", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc", "c", "c\nd", b"a\r\nb\r\nc\r\nd"),
        (b"a\nb\r\nc\n", "b\nc", "b\nC", b"a\nb\r\nC\n"),
        (b"a\r\nb\nc\r\n", "a\nb\nc\n", "a\nB\nc\n", b"a\r\nB\nc\r\n"),
        (b"a\nb\n", "a", "a\r\nz", b"a\r\nz\nb\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"x\ry\rz\nold\n", "old", "n", b"x\ry\rz\nn\n"),
        (b"one\r\n\r\ntwo\r\n", "one\n\ntwo", "one\ntwo", b"one\r\ntwo\r\n"),
    ],
)
def test_every_line_keeps_its_ending_and_new_lines_take_the_ending_in_use(
    before: bytes, old: str, new: str, after: bytes
) -> None:
    assert edited(before, (old, new)) == after


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_and_its_encoding_are_kept(encoding: str) -> None:
    before = "\ufeffname = é\nvalue = 1\n".encode(encoding)
    assert edited(before, ("name = é\nvalue = 1", "name = ü\nvalue = 2")) == "\ufeffname = ü\nvalue = 2\n".encode(
        encoding
    )
    assert edited(before, ("\ufeffname", "\ufeffNAME")) == "\ufeffNAME = é\nvalue = 1\n".encode(encoding)


@pytest.mark.parametrize(
    "line", ["Größe über", "привет мир", "日本語", "żółć"], ids=["western", "cyrillic", "japanese", "polish"]
)
@pytest.mark.parametrize("encoding", ["latin-1", "cp1251", "shift_jis", "gbk", "euc-jp", "cp1250", "iso8859-2"])
def test_ascii_edits_leave_legacy_bytes_alone(line: str, encoding: str) -> None:
    raw = line.encode(encoding, "replace") + b"\nvalue = 1\n" + b"\xff\xfe\x80\n"
    assert edited(raw, ("value = 1", "value = 2")) == raw.replace(b"= 1", b"= 2")


def test_western_letters_go_into_a_western_file_in_its_own_encoding() -> None:
    raw = "Café über Grüße\nvalue = 1\n".encode("latin-1")
    assert edited(raw, ("value = 1", "value = é")) == raw.replace(b"= 1", b"= \xe9")
    assert edited(raw, ("Café", "Cafè")) == raw.replace(b"\xe9 ", b"\xe8 ")
    assert "encoding" in refusal(raw, ("value = 1", "value = я"))


@pytest.mark.parametrize("word", ["éàx", "ééé", "é«"])
def test_high_bytes_side_by_side_are_of_no_certain_encoding(word: str) -> None:
    assert "encoding" in refusal(f"{word}\nvalue = 1\n".encode("latin-1"), ("value = 1", "value = é"))


@pytest.mark.parametrize("encoding", ["cp1251", "shift_jis", "gbk", "koi8-r"])
def test_letters_are_not_put_into_a_file_of_unknown_encoding(encoding: str) -> None:
    raw = {"cp1251": "привет", "koi8-r": "привет", "shift_jis": "日本語テキスト", "gbk": "你好世界"}[encoding].encode(
        encoding
    )
    assert "encoding" in refusal(raw + b"\nvalue = 1\n", ("value = 1", "value = é"))


@pytest.mark.parametrize(
    "old",
    [
        "def f():\n    return 9\n",
        "def f():\n    x = 2\n    return 1\n",
        "def f():\n    ...\n    return 1\n",
        "Def f():\n    return 1",
        "def f():\n\n    return 1\n",
        "def f(): return 1",
    ],
)
def test_a_match_whose_interior_differs_is_refused(old: str) -> None:
    assert "not found" in refusal(b"# top\ndef f():\n    return 1\n# end\n", (old, "pass\n"))


def test_trailing_white_space_and_a_shifted_block_match_and_are_told(bench: Bench) -> None:
    bench.put("a.py", "class A:\n    def f(self):\n        x = 1   \n\t\n        return x\n")
    result = bench.edit(
        "a.py", ("def f(self):\n    x = 1\n\n    return x\n", "def f(self):\n    x = 2\n\n    return x\n")
    )
    assert not result.is_error and "indentation" in result.text
    assert bench.get("a.py") == b"class A:\n    def f(self):\n        x = 2\n\t\n        return x\n"


def test_tabs_written_as_spaces_and_the_reverse_match_and_the_file_keeps_its_own() -> None:
    tabs = b"if x:\n\tfoo()\n\t\tbar()\n"
    assert edited(tabs, ("if x:\n    foo()\n        bar()\n", "if x:\n    foo()\n        baz()\n")) == tabs.replace(
        b"bar", b"baz"
    )
    assert edited(tabs, ("  foo()\n    bar()", "  foo()\n    baz()")) == tabs.replace(b"bar", b"baz")
    spaces = b"if x:\n  foo()\n    bar()\n"
    assert edited(spaces, ("\tfoo()\n\t\tbar()\n", "\tfoo()\n\t\tbaz()\n")) == spaces.replace(b"bar", b"baz")
    assert "not found" in refusal(tabs, ("if x:\n    foo()\n    bar()\n", "pass\n"))


def test_an_uneven_shift_is_refused() -> None:
    assert "not found" in refusal(b"  if a:\n      b\n", ("if a:\n  b\n", "c\n"))


def test_typographic_characters_match_and_stay() -> None:
    raw = "say “hi” — now\n".encode()
    assert edited(raw, ('say "hi" -', 'tell "hi" -')) == "tell “hi” — now\n".encode()


def test_the_final_newline_stays_as_it_is() -> None:
    assert edited(b"a\nlast", ("last", "LAST")) == b"a\nLAST"
    assert edited(b"a\nlast", ("last\n", "LAST\n")) == b"a\nLAST"
    assert edited(b"a\nb\nc\n", ("b\n", "")) == b"a\nc\n"
    assert edited(b"a\n\n\n", ("a", "b")) == b"b\n\n\n"


def test_an_ambiguous_text_is_refused_with_every_line_number() -> None:
    said = refusal(b"x = 1\n" + b"-\n" * 8 + b"x = 1\ny\nx = 1\n", ("x = 1", "x = 2"))
    assert "3 times" in said and "1, 10, 12" in said
    assert "2 times" in refusal(b"aaa", ("aa", "b"))
    assert edited(b"aXbXc", ("X", "--"), replace_all=True) == b"a--b--c"
    assert edited(b"aaa", ("aa", "b"), replace_all=True) == b"ba"


def test_the_work_on_a_long_or_repetitive_file_is_bounded(bench: Bench) -> None:
    """Each of these took from seconds to minutes, all on one core and with nothing else going on."""
    lines = ["".join(f"function f{i}(a,b){{return a+b*{i}}}" for i in range(40)) + f"//{n}" for n in range(2000)]
    bench.put("min.js", "\n".join(lines))
    told = bench.edit("min.js", (lines[700].replace("return", "retrun") + "x", "y")).text
    assert "nearest" in told and "function f0" in told
    bench.put("same.txt", "    x\n" * 20_000)
    assert "not found" in bench.edit("same.txt", ("  x\n" * 2000 + "y\n", "z")).text
    bench.put("braces.txt", "}\n{\n" * 2000)
    assert "100 times or more" in bench.edit("braces.txt", ("}\n{\n" * 500, "{\n}\n}\n" * 300)).text
    bench.put("spaces.txt", "a b c d\n" * 20_000)
    assert "occurs 100 times or more, at lines 1, 2," in bench.edit("spaces.txt", (" ", "_")).text
    assert not bench.edit("spaces.txt", (" ", "_"), replace_all=True).is_error
    assert bench.get("spaces.txt") == b"a_b_c_d\n" * 20_000


def test_a_missing_text_shows_the_nearest_lines_with_visible_blanks() -> None:
    said = refusal(
        b"def total(items):\n    result = sum(items)\n\treturn result  \n", ("    result = 0\n\treturn result\n", "x")
    )
    assert "2\t····result = sum(items)" in said and "3\t→return result··" in said


def test_a_list_of_edits_is_all_or_nothing_and_the_order_of_place_is_free() -> None:
    assert edited(b"one\r\ntwo\r\n", ("two", "2"), ("one", "1")) == b"1\r\n2\r\n"
    assert "edit 2 of 2" in refusal(b"one\ntwo\n", ("one", "1"), ("nowhere", "x"))
    assert edited(b"a b", ("a", "b"), ("b", "c")) == b"b c"
    assert edited(b"one two", ("one two", "1 two"), ("two", "2")) == b"1 2"
    assert edited(b"a\n", ("a", "b"), ("b", "c")) == b"c\n"


@pytest.mark.parametrize(
    "placeholder",
    [
        "// ... existing code ...",
        "# ... rest of the class ...",
        "<!-- ... -->",
        "/* ... */",
        "  # rest of the code remains unchanged",
        "// … other methods …",
        "... existing code ...",
        "# (rest of implementation ...)",
        "    // remaining methods unchanged",
        "{/* ... rest of the component */}",
        "-- ... same as before ...",
    ],
)
def test_a_placeholder_for_left_out_code_is_refused(placeholder: str) -> None:
    assert "placeholder" in refusal(b"a\nb\nc\n", ("a\nb\nc", f"a\n{placeholder}\nc"))
    assert edited(f"a\n{placeholder}\nc\n".encode(), (f"a\n{placeholder}", f"A\n{placeholder}")).startswith(b"A\n")


@pytest.mark.parametrize(
    "line",
    [
        "def f(self): ...",
        "x[..., 0]",
        "f(...rest)",
        "print('loading...')",
        "# Waits for the rest to finish, then goes on.",
        "const {a, ...other} = b;",
        "// see the existing tests in test_a.py",
        "#",
        "rest = 1",
        "...",
        "# TODO: the remaining budget is 3.",
    ],
)
def test_ordinary_text_with_dots_or_such_words_is_no_placeholder(line: str) -> None:
    assert line.encode() in edited(b"old\n", ("old", line))


def test_new_syntax_errors_are_told_with_their_place_and_old_ones_are_not(bench: Bench) -> None:
    bench.put("m.py", "a = 1\nb = 2\nc = (\n")
    assert "syntax" not in bench.edit("m.py", ("a = 1", "a = 3")).text.lower()
    said = bench.edit("m.py", ("b = 2", "b = = 2")).text
    assert "syntax error" in said and "line 2" in said
    bench.put("d.json", '{"a": 1}\n')
    assert "line 1" in bench.edit("d.json", ("1", "1,,")).text
    bench.put("n.txt", "((\n")
    assert "syntax" not in bench.edit("n.txt", ("((", "(((")).text


def test_an_empty_old_text_creates_and_never_overwrites(bench: Bench) -> None:
    assert not bench.edit("x/new.txt", ("", "one\n")).is_error
    assert bench.edit("x/new.txt", ("", "two\n")).is_error
    assert bench.get("x/new.txt") == b"one\n"


def test_mode_symlink_and_read_only_files_are_respected(bench: Bench) -> None:
    bench.put("real/run.sh", "echo old\n", 0o751)
    (bench.root / "link").symlink_to("real/run.sh")
    assert not bench.edit("link", ("old", "new")).is_error
    assert (bench.root / "link").readlink() == Path("real/run.sh")
    assert (bench.root / "real/run.sh").stat().st_mode & 0o7777 == 0o751
    assert bench.get("real/run.sh") == b"echo new\n"
    bench.put("fixed.txt", "old\n", 0o444)
    assert "read-only" in bench.edit("fixed.txt", ("old", "new")).text
    assert bench.get("fixed.txt") == b"old\n"
    assert [p.name for p in bench.root.iterdir() if "tmp" in p.name] == []


def test_a_hard_link_outside_is_not_written_through(bench: Bench, tmp_path: Path) -> None:
    store = tmp_path / "store.txt"
    store.write_bytes(b"old\n")
    os.link(store, bench.root / "here.txt")
    assert not bench.edit("here.txt", ("old", "new")).is_error
    assert store.read_bytes() == b"old\n" and bench.get("here.txt") == b"new\n"


def test_lone_surrogates_binary_files_folders_and_no_change_are_error_results(bench: Bench) -> None:
    bench.put("a.txt", "a\n")
    bench.put("b.bin", b"\x00\x01old")
    assert "surrogate" in bench.edit("a.txt", ("a", "\ud800")).text
    assert "surrogate" in bench.edit("a.txt", ("a", "\udc80")).text
    assert "not a text file" in bench.edit("b.bin", ("old", "new")).text
    assert bench.edit(".", ("a", "b")).is_error and bench.edit("nope", ("a", "b")).is_error
    assert "nothing" in bench.edit("a.txt", ("a", "a")).text
    assert bench.edit("a\x00b", ("a", "b")).is_error


def test_calls_of_one_message_on_one_file_are_all_applied(bench: Bench) -> None:
    import asyncio

    bench.put("f.txt", "".join(f"slot {i}: -\n" for i in range(12)))

    async def together() -> None:
        await asyncio.gather(
            *(
                bench.acall("edit", path="f.txt", edits=[{"old": f"slot {i}: -", "new": f"slot {i}: +"}])
                for i in range(12)
            )
        )

    asyncio.run(together())
    assert bench.get("f.txt").count(b"+") == 12


# ------------------------------------------------------------------------------------------------- properties
PIECES = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\r",
        b"a",
        b" ",
        b"\t",
        b"\xc3\xa9",
        b"\xe9",
        b"\xff",
        b"\xe2\x80\xa8",
        b"\x0c",
        b"b c",
        b"\xc2\x85",
    ]
)
TEXT = st.lists(PIECES, max_size=12).map(b"".join)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXT, TEXT, st.sampled_from([b"", b"\xef\xbb\xbf"]), st.text("xyz\n$\\ ", max_size=8))
def test_bytes_outside_the_edit_never_change(head: bytes, tail: bytes, mark: bytes, new: str) -> None:
    raw = mark + head + b"<UNIQUE>" + tail
    after = edited(raw, ("<UNIQUE>", "<" + new + ">"))
    assert after.startswith(mark + head + b"<") and after.endswith(b">" + tail)
    inside = after[len(mark + head) : len(after) - len(tail)]
    assert inside.replace(b"\r\n", b"\n") == f"<{new}>".encode()


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=60))
def test_every_file_that_counts_as_text_decodes_reversibly(raw: bytes) -> None:
    try:
        file = decode(raw)
    except ToolError:
        return
    assert file.spliced([]) == raw
    assert file.bom + file.text.encode(file.encoding, file.errors) == raw


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.text("ab {}", max_size=5), st.sampled_from(["\n", "\r\n"])), min_size=2, max_size=8),
    st.data(),
)
def test_an_edit_of_whole_lines_keeps_every_other_line(lines: list[tuple[str, str]], data: st.DataObject) -> None:
    raw = "".join(f"{n}:{text}{ending}" for n, (text, ending) in enumerate(lines)).encode()
    at = data.draw(st.integers(0, len(lines) - 2))
    old = f"{at}:{lines[at][0]}\n{at + 1}:{lines[at + 1][0]}\n"
    after = edited(raw, (old, old.replace(f"{at}:", "new:", 1)))
    want = [f"{'new' if n == at else n}:{text}{ending}" for n, (text, ending) in enumerate(lines)]
    assert after == "".join(want).encode()


def test_a_new_file_in_the_place_of_a_pipe_is_refused_and_nothing_waits(bench: Bench) -> None:
    os.mkfifo(bench.root / "pipe")
    assert "not a regular file" in bench.edit("pipe", ("", "x")).text

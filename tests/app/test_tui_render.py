"""Text for people: inert, short, and the same however it was cut; diffs with their words marked."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.theme import Theme

from pointcode_local.diff import change_counts, diff_rows, side_by_side
from pointcode_local.events import FileDiff
from pointcode_local.render import (
    LineLimit,
    PlainStream,
    added_to_prompt,
    clip,
    count_lines,
    one_line,
    plain,
    result_summary,
    short_bytes,
    short_count,
    short_seconds,
    shortened,
    tail_lines,
)
from pointcode_local.tui.diffview import DiffView
from pointcode_local.tui.theme import DARK, LIGHT, choose_theme

NASTY = st.text(st.sampled_from("ab \n\t\r\x1b\x07\x9b\u202e\u200b\u200d\ufe0f\u2028é漢👩💻\ud800\u0301"), max_size=30)


@given(st.lists(NASTY, max_size=6))
def test_inert_text_does_not_depend_on_where_it_was_cut(pieces: list[str]) -> None:
    stream = PlainStream()
    streamed = "".join(map(stream.feed, pieces)) + stream.finish()
    assert streamed == plain("".join(pieces))


@given(st.text(st.characters(codec=None, categories=None), max_size=60) | NASTY)
def test_inert_text_has_no_control_or_bidi_characters_and_can_be_encoded(text: str) -> None:
    shown = plain(text)
    shown.encode("utf-8")
    hidden = [
        c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t\u200c\u200d"
    ]
    assert [c for c in hidden if unicodedata.bidirectional(c) not in ("AN", "AL", "NSM", "ON", "L")] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("a\u202eb", "a<U+202E>b"),
        ("a\u200db", "a<U+200D>b"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("❤\ufe0f\u200d🔥", "❤\ufe0f\u200d🔥"),
        ("x\r\ny\rz", "x\ny␍z"),
        ("[/dim][@click=app.quit]", "[/dim][@click=app.quit]"),
        ("\ud83d", "<U+D83D>"),
        ("a\U0001d173b\U0001bca0\u180f", "a<U+1D173>b<U+1BCA0><U+180F>"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_hidden_characters_become_visible_marks(text: str, shown: str) -> None:
    assert plain(text) == shown


@settings(max_examples=60)
@given(st.text(max_size=40), st.integers(1, 20))
def test_a_clipped_line_is_never_wider_than_asked(text: str, width: int) -> None:
    assert cell_len(clip(one_line(text), width)) <= width


@given(st.lists(st.text(st.sampled_from("ab\n"), max_size=9), max_size=9), st.integers(1, 12))
def test_long_lines_are_cut_at_the_same_place_however_they_arrive(pieces: list[str], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pointcode_local.render.MAX_LINE", limit)
        streamed = LineLimit()
        assert "".join(map(streamed.feed, pieces)) == LineLimit().feed("".join(pieces))
        shown = LineLimit().feed("".join(pieces)).replace(" … (the rest of this line is not shown)", "")
        assert [len(line) for line in shown.split("\n")] == [
            min(limit, len(line)) for line in "".join(pieces).split("\n")
        ]


def test_what_is_left_out_of_a_long_text_is_said() -> None:
    assert shortened("a" * 10 + "b" * 90, 20) == "a" * 10 + "b" * 5 + " … 80 characters not shown … " + "b" * 5
    assert shortened("short", 20) == "short"


def test_counts_and_durations_are_short() -> None:
    assert [short_count(n) for n in (0, 999, 1000, 12_400, 131_072, 1_200_000)] == [
        "0",
        "999",
        "1k",
        "12.4k",
        "131k",
        "1.2M",
    ]
    assert [short_seconds(s) for s in (0.314, 4.21, 10, 75, 120, 200)] == [
        "0.31 s",
        "4.2 s",
        "10 s",
        "75 s",
        "2 min 0 s",
        "3 min 20 s",
    ]
    assert [short_bytes(n) for n in (512, 3400, 491_000_000)] == ["512 B", "3.4 kB", "491 MB"]


def test_results_are_summed_up_in_a_few_words() -> None:
    assert result_summary("a\nb\n", False, "", (), (0, 0)) == "2 lines"
    assert result_summary("one", False, "", (), (0, 0)) == "one"
    assert result_summary("....F\nexit code 1", True, "", (), (0, 0)) == "exit code 1"
    assert result_summary("no such file", True, "", (), (0, 0)) == "no such file"
    assert result_summary("", True, "rule shell(rm *)", (), (0, 0)) == "not allowed: rule shell(rm *)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[project rules from /p/AGENTS.md]\nOne.\nTwo.", "X added to the prompt, 2 lines"),
        ("[contents of @a.py]\nx = 1\n", "X added to the prompt, 1 line"),
        (
            "[contents of @a.py]\nx\ny\n[cut after 2 bytes; use read for the rest]",
            "X added to the prompt, its first 2 lines",
        ),
        ("[@a.png is an image; this model reads text only]", "@a.png is an image; this model reads text only"),
        ("a.py:\n```python\nx = 1\n\ny = 2\n```\nline 3: invalid", "X added to the prompt, 3 lines"),
        ("one\ntwo", "X added to the prompt, 2 lines"),
    ],
)
def test_what_was_added_to_the_prompt_is_counted_without_its_wrapping(text: str, told: str) -> None:
    assert added_to_prompt("X", text) == told


@given(st.text(st.sampled_from("a\n"), max_size=12), st.integers(1, 5))
def test_the_last_lines_are_the_last_lines(text: str, n: int) -> None:
    expected = text.removesuffix("\n").split("\n")[-n:] if text.removesuffix("\n") or text.count("\n") > 1 else []
    assert tail_lines(text, n) == expected
    assert count_lines(text) == len(text.splitlines())


TEXTS = st.text(st.sampled_from("ab\n"), max_size=30)


@given(TEXTS, TEXTS)
def test_a_diff_with_all_its_context_contains_both_texts(before: str, after: str) -> None:
    assume(before != after)
    rows = diff_rows(FileDiff("f", before, after), context=1000)

    def text(kinds: tuple[str, ...]) -> list[str]:
        return [row.text.removesuffix(" (no newline at end)") for row in rows if row.kind in kinds]

    assert text(("same", "del")) == before.splitlines()
    assert text(("same", "add")) == after.splitlines()
    assert change_counts((FileDiff("f", before, after),)) == (len(text(("add",))), len(text(("del",))))


@given(TEXTS, TEXTS)
def test_both_columns_together_show_every_row_once(before: str, after: str) -> None:
    rows = diff_rows(FileDiff("f", before, after))
    pairs = side_by_side(rows)
    assert [old for old, _ in pairs if old and old.kind != "add"] == [row for row in rows if row.kind != "add"]
    assert [new for _, new in pairs if new and new.kind != "del"] == [row for row in rows if row.kind != "del"]


def test_changed_words_are_marked_and_unchanged_lines_left_out() -> None:
    lines = [f"line {n}\n" for n in range(30)]
    after = [*lines[:15], "line fifteen\n", *lines[16:]]
    rows = diff_rows(FileDiff("f", "".join(lines), "".join(after)))
    assert [(row.kind, row.text) for row in rows if row.kind != "same"] == [("del", "line 15"), ("add", "line fifteen")]
    assert [row.text[start:end] for row in rows for start, end in row.marks] == ["15", "fifteen"]
    assert len(rows) == 8


def test_a_missing_final_newline_is_said() -> None:
    rows = diff_rows(FileDiff("f", "a\nb", "a\nb\n"))
    assert [(row.kind, row.text) for row in rows] == [
        ("same", "a"),
        ("del", "b (no newline at end)"),
        ("add", "b"),
    ]


def test_a_large_rewrite_is_shown_without_comparing_every_line() -> None:
    before = "".join(f"old {n}\n" for n in range(9000))
    after = "".join(f"new {n}\n" for n in range(9000))
    assert change_counts((FileDiff("f", before, after),)) == (9000, 9000)


@pytest.mark.parametrize("before", [None, "b = 2\n"])
async def test_a_wide_screen_shows_a_new_file_in_one_column_and_a_changed_one_in_two(before: str | None) -> None:
    class Shown(App[None]):
        def compose(self) -> ComposeResult:
            yield DiffView(FileDiff("a.py", before, "a = 1\n"))

    app = Shown()
    async with app.run_test(size=(160, 10)):
        line = app.query_one(DiffView).render_line(0).text
        assert line.index("a = 1") < 20 if before is None else line.index("b = 2") < 20 < 80 < line.index("a = 1")


@pytest.mark.parametrize(
    ("colours", "theme"), [("0;15", LIGHT), ("0;default;7", LIGHT), ("15;0", DARK), ("", DARK), ("7", LIGHT)]
)
def test_the_theme_follows_the_terminals_background(
    monkeypatch: pytest.MonkeyPatch, colours: str, theme: Theme
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLORFGBG", colours)
    assert choose_theme() == theme.name
    assert choose_theme("dark") == DARK.name
    monkeypatch.setenv("NO_COLOR", "1")
    assert choose_theme() == choose_theme("light") == "ansi-dark"

"""Markdown on the screen: streaming changes nothing, and nothing in the text can act."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App

from pointcode_local.render import PlainStream, plain
from pointcode_local.tui.answer import AnswerView
from pointcode_local.tui.lines import Line, copied
from pointcode_local.tui.markdown import MarkdownText
from pointcode_local.tui.story import AnswerRecord

PIECES = [
    "A paragraph with `code`, **bold**, *italics* and ~~gone~~.\n\n",
    "Two lines\nof one paragraph.\n\n",
    "A setext heading\n===\n\n",
    "# Heading *one*\n\n## Two\n",
    "- one\n- two\n  - nested\n    more of it\n- three\n\n",
    "1. first\n2. second\n\n   ```python\n   print('x')\n   ```\n3. third\n\n",
    "- with a quote\n  > inside\n- after\n\n",
    "* loose\n\n* items\n\n",
    "9. nine\n10. ten\n\n",
    "```python\ndef f():\n    return 1\n```\n\n",
    "```\nno language\n```\n",
    "~~~unknown-language\nx\n~~~\n\n",
    "    indented code\n\n",
    "| a | b |\n|---|--:|\n| 1 | 2 |\n| 3 | 4 |\n\n",
    "> a quote\n> of two lines\n\n",
    "---\n\n",
    "<div onclick='x'>\n\nraw html\n\n</div>\n\n",
    "[ref]: https://example.org 'title'\n\n",
    "A [link](https://example.org), <https://example.org> and https://example.org.\n\n",
    "Entities &amp; &#x202E; &lt;b&gt; and `&amp;`.\r\n\r\n",
    "Emoji 👩‍💻 and 漢字, e\u0301, \u202eright to left\u202c.\n",
    "[/dim] [@click=app.quit]x[/] \x1b[31mred\x1b[0m \x1b]52;c;AAAA\x07\n\n",
    "![image](http://example.org/x.png)\n\n",
    "unfinished **bold and `code\n",
    "```js\nnever closed\n",
]


WIDTHS = st.sampled_from((4, 13, 40, 80))
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)


def whole(text: str, width: int = 60) -> list[Line]:
    """The lines of a text that is there at once."""
    markdown = MarkdownText("colour")
    markdown.feed(plain(text))
    markdown.finish()
    return markdown.lines_at(width)


def shown(lines: list[Line]) -> list[object]:
    """Everything that can be seen of lines, and what a copy gets."""
    return [
        (line.lead.plain, line.body.plain, line.joint, line.fill, list(line.lead.spans), list(line.body.spans))
        for line in lines
    ]


def texts(lines: list[Line]) -> list[str]:
    return [(line.lead.plain + line.body.plain).rstrip() for line in lines]


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(st.sampled_from((1, 2, 3, 7, 40, 200)), min_size=1, max_size=20), WIDTHS, WIDTHS)
def test_a_streamed_text_looks_like_the_same_text_in_one_piece(
    text: str, sizes: list[int], first_width: int, last_width: int
) -> None:
    streamed = MarkdownText("colour")
    inert = PlainStream()
    at = n = 0
    while at < len(text):
        size = sizes[n % len(sizes)]
        streamed.feed(inert.feed(text[at : at + size]))
        streamed.lines_at(first_width if at < len(text) // 2 else last_width)
        at, n = at + size, n + 1
    streamed.feed(inert.finish())
    streamed.finish()
    assert streamed.source == plain(text)
    assert shown(streamed.lines_at(last_width)) == shown(whole(text, last_width))


def test_every_piece_alone_streams_character_by_character_to_the_same_lines() -> None:
    for piece in PIECES:
        streamed = MarkdownText("colour")
        inert = PlainStream()
        for character in piece:
            streamed.feed(inert.feed(character))
            streamed.lines_at(60)
        streamed.feed(inert.finish())
        streamed.finish()
        assert shown(streamed.lines_at(60)) == shown(whole(piece)), piece


async def test_lines_that_were_drawn_while_they_grew_are_drawn_like_those_of_the_whole() -> None:
    pieces = [
        'A text.\n\n```python\n"""one\ntwo\n',
        'three"""\n```\n\nThe end\nof it.\n\n',
        "- one\n- two",
        "\n  - three",
    ]
    app = App[None]()
    async with app.run_test(size=(60, 40)) as pilot:
        streamed = AnswerRecord()
        view, whole_view = AnswerView(streamed), AnswerView(AnswerRecord(["".join(pieces)], done=True))
        await app.screen.mount(view, whole_view)
        for piece in pieces:
            streamed.parts.append(piece)
            await view.sync()
            await pilot.pause()
            view.render_lines(view.size.region)
        streamed.done = True
        await view.sync()
        await pilot.pause()
        assert view.size == whole_view.size and view.markdown == whole_view.markdown
        assert view.render_lines(view.size.region) == whole_view.render_lines(whole_view.size.region)


def test_what_is_settled_is_laid_out_once() -> None:
    text = "".join(PIECES[:16]) * 4
    markdown = MarkdownText("colour")
    kept: list[Line] = []
    for at in range(0, len(text), 50):
        markdown.feed(text[at : at + 50])
        lines = markdown.lines_at(60)
        assert all(before is now for before, now in zip(kept, lines, strict=False))
        kept = lines[: markdown.n_settled_lines]
    assert len(kept) > len(whole(text)) - 20


def test_an_open_code_block_is_laid_out_line_by_line_and_coloured_at_its_end() -> None:
    code = "".join(f"value_{n} = 'text {n}'\n" for n in range(300))
    markdown = MarkdownText("colour")
    markdown.feed("```python\n")
    for line in code.splitlines(keepends=True):
        markdown.feed(line)
        assert texts(markdown.lines_at(60))[-1] == " " + line.rstrip()
    markdown.feed("```\n")
    assert shown(markdown.lines_at(60)) == shown(whole(f"```python\n{code}```\n"))


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(24, 80))
def test_lines_fit_the_width(text: str, width: int) -> None:
    assert all(line.lead.cell_length + line.body.cell_length <= width for line in whole(text, width))


def test_a_copy_has_neither_decoration_nor_the_line_ends_of_the_wrapping() -> None:
    text = (
        "One two three four five six.\n\n> quoted words here too\n\n"
        "- item one is long enough\n\n```\nlong_name = 12345\n```\n"
    )
    lines = whole(text, 12)
    assert any(line.joint == " " for line in lines) and any(line.joint == "" for line in lines)
    everything = copied(lines, (0, 0), (len(lines) - 1, -1))
    assert everything == (
        "One two three four five six.\n\nquoted words here too\n\nitem one is long enough\n\nlong_name = 12345"
    )
    assert texts(lines)[:2] == ["One two", "three four"] and copied(lines, (0, 4), (1, 3)) == "two thr"


def test_a_long_code_line_is_folded_instead_of_hidden() -> None:
    assert texts(whole("```\nabcdefghijklmnopqrst\n```\n", 12)) == [" abcdefghij", " klmnopqrst"]


def test_lists_hang_and_nest_and_number_on() -> None:
    text = "- one two three\n  - nested\n\n9. nine\n10. ten\n"
    assert texts(whole(text, 14)) == [" • one two", "   three", "    ◦ nested", "", "  9. nine", " 10. ten"]


def test_without_colours_code_stands_behind_a_bar() -> None:
    markdown = MarkdownText("plain")
    markdown.feed("```\ncode\n```\n")
    assert texts(markdown.lines_at(20)) == ["│ code"]


def test_raw_html_and_link_definitions_are_shown_as_text() -> None:
    lines = whole("<script>x</script>\n\n[a]: https://example.org\n")
    assert texts(lines) == ["<script>x</script>", "", "[a]: https://example.org"]


def test_entities_cannot_bring_hidden_characters_back() -> None:
    text = "a&#x202E;b&#x200B;c&#27;[31m <https://example.org/%E2%80%AE> ![&#x202E;](x)\n\n- x&#x202E;y\n"
    seen = "\n".join(texts(whole(text)))
    assert "\u202e" not in seen and "\u200b" not in seen and "\x1b" not in seen
    assert "<U+202E>" in seen


def test_file_names_are_not_turned_into_links() -> None:
    assert list(whole("Look at main.py and README.md.")[0].body.spans) == []

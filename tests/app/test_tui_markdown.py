"""Markdown on the screen: streaming changes nothing, and nothing in the text can act."""

from __future__ import annotations

import random

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets._markdown import MarkdownBlock

from pointcode_local.render import PlainStream, plain
from pointcode_local.tui.flat import FlatBlock
from pointcode_local.tui.markdown import InertMarkdown
from pointcode_local.tui.story import AnswerRecord
from pointcode_local.tui.views import AnswerView

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


class TwoDocuments(App[None]):
    """One widget to stream into, one to fill at once."""

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield InertMarkdown(classes="streamed")
            yield InertMarkdown(classes="whole")


def shown(widget: Widget) -> list[object]:
    """What a Markdown widget shows: the tree of blocks with their text, and lists as laid out."""
    rows: list[object] = []
    for child in widget.children:
        content = getattr(child, "_content", "")
        if isinstance(child, FlatBlock):
            content = child.text_at(60)[1]
        spans = sorted(map(str, getattr(content, "spans", [])))
        rows.append(
            (type(child).__name__, str(content) if isinstance(child, MarkdownBlock) else "", spans, shown(child))
        )
    return rows


async def stream(widget: InertMarkdown, text: str, rng: random.Random) -> None:
    """Append `text` in random pieces, as a turn does."""
    inert = PlainStream()
    at = 0
    while at < len(text):
        size = rng.choice((1, 2, 3, 7, 40, 200))
        if new := inert.feed(text[at : at + size]):
            await widget.append(new)
        at += size
    if rest := inert.finish():
        await widget.append(rest)


async def test_a_streamed_text_looks_like_the_same_text_in_one_piece() -> None:
    rng = random.Random(7)
    app = TwoDocuments()
    async with app.run_test(size=(80, 30)) as pilot:
        streamed = app.query_one(".streamed", InertMarkdown)
        whole = app.query_one(".whole", InertMarkdown)
        for _ in range(20):
            text = "".join(rng.choices(PIECES, k=rng.randint(1, 7)))
            with app.batch_update():
                await streamed.update("")
                await stream(streamed, text, rng)
                await whole.update(plain(text))
            await pilot.pause(0)
            assert shown(streamed) == shown(whole), text


async def test_every_piece_alone_streams_character_by_character_to_the_same_blocks() -> None:
    app = TwoDocuments()
    async with app.run_test(size=(80, 30)) as pilot:
        streamed = app.query_one(".streamed", InertMarkdown)
        whole = app.query_one(".whole", InertMarkdown)
        for piece in PIECES:
            await streamed.update("")
            inert = PlainStream()
            with app.batch_update():
                for character in piece:
                    if new := inert.feed(character):
                        await streamed.append(new)
                await whole.update(plain(piece))
            await pilot.pause(0)
            assert shown(streamed) == shown(whole), piece


async def test_a_long_answer_in_pages_shows_the_blocks_of_one_page() -> None:
    text = "".join(PIECES[:16]) * 8
    app = TwoDocuments()
    async with app.run_test(size=(80, 30)) as pilot:
        record = AnswerRecord()
        view = AnswerView(record)
        await app.screen.mount(view)
        with app.batch_update():
            for at in range(0, len(text), 300):
                record.parts.append(text[at : at + 300])
                await view.sync()
            record.done = True
            await view.sync()
            whole = app.query_one(".whole", InertMarkdown)
            await whole.update(plain(text))
        await pilot.pause(0)
        pages = list(view.query_children(InertMarkdown))
        assert len(pages) > 3 and view.markdown == plain(text)
        assert [row for page in pages for row in shown(page)] == shown(whole)


async def test_raw_html_and_link_definitions_are_shown_as_text() -> None:
    app = TwoDocuments()
    async with app.run_test() as pilot:
        whole = app.query_one(".whole", InertMarkdown)
        await whole.update("<script>x</script>\n\n[a]: https://example.org\n")
        await pilot.pause(0)
        texts = [row[1] for row in shown(whole)]  # type: ignore[index]
        assert texts == ["<script>x</script>", "[a]: https://example.org"]


async def test_entities_cannot_bring_hidden_characters_back() -> None:
    app = TwoDocuments()
    async with app.run_test() as pilot:
        whole = app.query_one(".whole", InertMarkdown)
        await whole.update("a&#x202E;b&#x200B;c&#27;[31m <https://example.org/%E2%80%AE>\n\n- x&#x202E;y\n")
        await pilot.pause(0)
        text = str(shown(whole))
        assert "\u202e" not in text and "\u200b" not in text and "\x1b" not in text
        assert "<U+202E>" in text


async def test_file_names_are_not_turned_into_links() -> None:
    app = TwoDocuments()
    async with app.run_test() as pilot:
        whole = app.query_one(".whole", InertMarkdown)
        await whole.update("Look at main.py and README.md.")
        await pilot.pause(0)
        assert shown(whole)[0][2] == []  # type: ignore[index]

"""One widget per record of the story. `sync` brings a widget up to date; it looks only at what is new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, assert_never

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from pointcode_local.diff import change_counts, diff_title
from pointcode_local.render import (
    clip,
    count_lines,
    error_tail,
    one_line,
    plain,
    plural,
    result_summary,
    shortened,
    shown_lines,
    tail_lines,
)
from pointcode_local.tui.answer import AnswerView
from pointcode_local.tui.diffview import DiffView
from pointcode_local.tui.story import AnswerRecord, NoticeRecord, Record, ThinkingRecord, ToolRecord, UserRecord

LIVE_LINES = 8  # of a running command's output
LIVE_THOUGHT_LINES = 30  # of thinking that goes on, unfolded
MAX_LIVE_PARTS, MAX_LIVE_CHARS = 2000, 8000
ERROR_LINES = 6  # of a failed call's result, shown without unfolding
OWN_LINES = 20  # of what a command of the person printed: it was run to be looked at
UNFOLDED_LINES = 400
MAX_OUTPUT_LINE = 2000
MAX_THOUGHT_CHARS = 200_000
MAX_NOTICE_CHARS = 100_000
CHANGED_CELLS = 70  # of the names of files that a command changed; at least one is shown
USER_LINES, USER_LAST_LINES, MAX_USER_CHARS = 40, 10, 8000  # a huge paste is sent in full and shown in part


def _said(text: str) -> Content:
    """A message; of a long one the beginning and the end, where the question to a pasted text stands."""
    lines = text.split("\n")
    n_left = len(lines) - USER_LINES
    if n_left <= 0:
        return Content(plain(shortened(text, MAX_USER_CHARS)))
    first, last = "\n".join(lines[: USER_LINES - USER_LAST_LINES]), "\n".join(lines[-USER_LAST_LINES:])
    first, last = (plain(shortened(part, MAX_USER_CHARS // 2)) for part in (first, last))
    return Content.assemble(first, (f"\n… {plural(n_left, 'line')} not shown …\n", "$foreground 60%"), last)


class UserView(Static):
    """What the person said, exactly as typed."""

    def __init__(self, record: UserRecord) -> None:
        content = _said(record.text)
        if record.steered:
            content = Content.assemble(content, ("  (in the same turn)", "$foreground 60%"))
        super().__init__(content, classes="entry user")

    async def sync(self) -> None:
        """Never changes."""


class Foldable(Vertical, can_focus=True):
    """A header line over a body that unfolds on a click, Enter or Space."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter,space", "fold", "fold")]

    def __init__(self, classes: str) -> None:
        super().__init__(classes=f"entry {classes}")
        self.header = Static(Content(""), classes="header", markup=False)
        self.unfolded = False

    def compose(self) -> ComposeResult:
        yield self.header

    def on_click(self, event: Click) -> None:
        """A click on the header unfolds; a click in the body may be a selection."""
        if event.widget is self.header:
            self.action_fold()

    def action_fold(self) -> None:
        """Unfold or fold."""
        self.set_unfolded(not self.unfolded)

    def set_unfolded(self, unfolded: bool) -> None:
        """Show or hide the body."""
        self.unfolded = unfolded
        self.set_class(unfolded, "unfolded")
        self.call_next(self.sync)

    async def sync(self) -> None:
        """Bring header and body up to date."""
        raise NotImplementedError

    async def _set_body(self, body: list[Widget]) -> None:
        with self.app.batch_update():
            await self.query_children(".body").remove()
            if body:
                await self.mount(*body)


class ThinkingView(Foldable):
    """The model's thinking: one line, with the last words while it goes on; all of it when unfolded."""

    def __init__(self, record: ThinkingRecord) -> None:
        super().__init__("thinking")
        self._record = record
        self._body = Static(Content(""), classes="body", markup=False)
        self._shown: tuple[int, bool] = (-1, False)

    def compose(self) -> ComposeResult:
        yield self.header
        yield self._body

    async def on_mount(self) -> None:
        """First look."""
        await self.sync()

    async def sync(self) -> None:
        """Header always; the text only when it is to be seen."""
        record = self._record
        self._body.display = self.unfolded
        shown = (len(record.parts), record.done)
        if self.unfolded and self._shown != shown:
            self._shown = shown
            self._body.update(Content("\n".join(shown_lines(self._body_text()))))
        self.header.update(self._header_text())

    def _body_text(self) -> str:
        """All of it, once it is whole; while it grows only its end, for it is laid out with each frame."""
        if self._record.done:
            return shortened(self._record.text.strip("\n"), MAX_THOUGHT_CHARS)
        end = "".join(self._record.parts[-MAX_LIVE_PARTS:])[-MAX_LIVE_CHARS:]
        return "\n".join(tail_lines(end, LIVE_THOUGHT_LINES))

    def _header_text(self) -> Content:
        fold = "▾" if self.unfolded else "▸"
        if self._record.done:
            words = len(self._record.text.split())
            return Content.assemble(
                (f"{fold} Thought", "$foreground 60%"), (f"  {plural(words, 'word')}", "$foreground 42%")
            )
        tail = one_line("".join(self._record.parts[-24:])[-400:])[-60:]
        return Content.assemble(
            (f"{fold} Thinking", "$secondary"), ("" if self.unfolded else f"  …{tail}", "$foreground 42%")
        )


_GLYPHS = {
    "writing": ("○", "$foreground 60%"),
    "waiting": ("?", "$accent"),
    "running": ("●", "$accent"),
    "done": ("✓", "$success"),
    "error": ("✗", "$error"),
    "denied": ("⊘", "$warning"),
    "stopped": ("■", "$foreground 60%"),
}


class ToolView(Foldable):
    """A tool call: its title and outcome on one line, live output while it runs, diffs, the rest folded."""

    def __init__(self, record: ToolRecord) -> None:
        super().__init__("tool")
        self._record = record
        self._drawn: tuple[object, ...] = ()
        self._live: Static | None = None  # the output of a running command

    async def on_mount(self) -> None:
        """First look."""
        await self.sync()

    async def sync(self) -> None:
        """Header always; the body only when its look changes."""
        record = self._record
        self.header.update(self._header_text())
        drawn = (record.state, self.unfolded, record.output_size)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        if record.state == "running" and self._live is not None:
            self._live.update(_text(self._live_lines(), 0))
        else:
            await self._set_body(self._body_widgets())

    def _header_text(self) -> Content:
        record = self._record
        glyph, color = _GLYPHS[record.state]
        title = one_line(record.title)
        name, rest = (record.name, title.removeprefix(record.name)) if title.startswith(record.name) else ("", title)
        return Content.assemble(
            (f"{glyph} ", color), (plain(name), "bold"), clip(rest, 400), (f"  {self._summary()}", "$foreground 60%")
        )

    def _summary(self) -> str:
        record = self._record
        match record.state:
            case "writing":
                return f"writing… {plural(record.written, 'character')}" if record.written else "writing…"
            case "waiting":
                return "waiting for you"
            case "running":
                return "running…"
            case "stopped":
                return "stopped"
            case "done" | "error" | "denied":
                summary = result_summary(
                    record.result, record.state == "error", record.denied, record.diffs, change_counts(record.diffs)
                )
                return clip(summary, 160) + ("" if self.unfolded or not self._is_foldable() else "  ▸")
            case _:
                assert_never(record.state)

    def _is_foldable(self) -> bool:
        return not self._record.diffs and count_lines(self._record.result) > (OWN_LINES if self._is_own else 1)

    @property
    def _is_own(self) -> bool:
        return self._record.title.startswith("!")

    def _live_lines(self) -> list[str]:
        return tail_lines("".join(self._record.output), LIVE_LINES)

    def _body_widgets(self) -> list[Widget]:
        record = self._record
        if record.state == "running":
            lines = self._live_lines()
            self._live = _text_body(lines, 0) if lines else None
            return [self._live] if self._live is not None else []
        self._live = None
        body: list[Widget] = []
        if record.diffs and record.state in ("done", "stopped"):
            body += _diff_widgets(record, 2000 if self.unfolded else 60)
        if self.unfolded and record.result:
            lines = record.result.removesuffix("\n").split("\n")
            body.append(_text_body(lines[:UNFOLDED_LINES], len(lines) - UNFOLDED_LINES))
        elif self._is_own and count_lines(record.result) > 1:
            body.append(_text_body(tail_lines(record.result, OWN_LINES), 0))
        elif record.state == "error" and count_lines(record.result) > 1:
            body.append(_text_body(error_tail(record.result, ERROR_LINES), 0))
        if record.changed:
            body.append(Static(Content(changed_line(record.changed)), classes="body changed", markup=False))
        return body


def changed_line(names: Sequence[str]) -> str:
    """`changed: a.py, b.txt (+2 more)`: as many of the names as fit, not fewer than one."""
    shown = one_line(names[0], CHANGED_CELLS)
    n_shown = 1
    while n_shown < len(names) and cell_len(longer := f"{shown}, {one_line(names[n_shown])}") <= CHANGED_CELLS:
        shown = longer
        n_shown += 1
    return f"changed: {shown}" + (f" (+{len(names) - n_shown} more)" if n_shown < len(names) else "")


def _text_body(lines: list[str], n_hidden: int) -> Static:
    return Static(_text(lines, n_hidden), classes="body output", markup=False)


def _text(lines: list[str], n_hidden: int) -> Content:
    text = "\n".join(line for raw in lines for line in shown_lines(shortened(raw, MAX_OUTPUT_LINE)))
    content = Content(text)
    if n_hidden > 0:
        content = Content.assemble(content, (f"\n… {plural(n_hidden, 'more line')}", "$foreground 42%"))
    return content


def _diff_widgets(record: ToolRecord, max_rows: int) -> list[Widget]:
    widgets: list[Widget] = []
    for diff in record.diffs:
        if len(record.diffs) > 1 or diff.before is None or diff.after is None:
            widgets.append(Static(Content(diff_title(diff)), classes="body path", markup=False))
        view = DiffView(diff, max_rows=max_rows)
        view.add_class("body")
        widgets.append(view)
    return widgets


_NOTICE_GLYPHS = {"info": "·", "warning": "!", "error": "✗"}


class NoticeView(Static):
    """A line from the program itself."""

    def __init__(self, record: NoticeRecord) -> None:
        lines = "\n".join(shown_lines(shortened(record.text, MAX_NOTICE_CHARS)))
        super().__init__(Content(f"{_NOTICE_GLYPHS[record.kind]} {lines}"), classes=f"entry notice {record.kind}")

    async def sync(self) -> None:
        """Never changes."""


View = UserView | AnswerView | ThinkingView | ToolView | NoticeView


def make_view(record: Record) -> View:
    """The widget for a record as it is now."""
    match record:
        case UserRecord():
            return UserView(record)
        case AnswerRecord():
            return AnswerView(record)
        case ThinkingRecord():
            return ThinkingView(record)
        case ToolRecord():
            return ToolView(record)
        case NoticeRecord():
            return NoticeView(record)
        case _:
            assert_never(record)

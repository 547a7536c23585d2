"""The very first screen: what was found on this machine, what will be fetched, one key to go."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import Screen
from textual.widgets import Static

from pointcode_local.frontend import Finding, FirstLook
from pointcode_local.render import one_line
from pointcode_local.tui.dialogs import ARM_AFTER_S, EarlyKey

_TOPIC_CELLS = 11
_FRAME_CELLS = 5  # padding and scroll bar
_ABOUT = "A coding assistant whose model runs on this machine. Nothing you write leaves it."


class FirstRun(Screen[bool]):
    """Returns True to go on, False to leave. What is typed meanwhile goes to the composer.

    An Enter that was typed before the screen could be read agrees to nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "go", "go on"), ("escape,ctrl+d", "leave", "leave")]
    DEFAULT_CSS = """
    FirstRun { align: center middle; }
    FirstRun > VerticalScroll {
        width: 100; max-width: 100%; height: auto; max-height: 100%; padding: 1 2 1 2;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    FirstRun #keys { dock: bottom; height: 2; padding: 0 2; }
    FirstRun Static { height: auto; width: 1fr; }
    """

    def __init__(self, look: FirstLook, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._shown_at = float("inf")
        self._look = look
        self._text = Static("", markup=False)

    def compose(self) -> ComposeResult:
        """The findings, which scroll where the screen is small, and the keys, which are always there."""
        with VerticalScroll():
            yield self._text
        yield Static(_keys(self._look.download), id="keys", markup=False)

    def on_mount(self) -> None:
        """Enter counts a moment after the first frame."""
        self.call_after_refresh(self._first_frame)

    def _first_frame(self) -> None:
        self._shown_at = self._clock()

    def on_resize(self) -> None:
        """Lay out for the width."""
        width = max(20, min(100, self.app.size.width) - _FRAME_CELLS)
        lines = [Content.assemble(("Welcome to pointcode", "bold $primary")), *Content(_ABOUT).wrap(width), Content("")]
        lines.append(Content.assemble(("What was found", "bold")))
        for finding in self._look.findings:
            lines += _found(finding, width)
        if self._look.download:
            text = Content.assemble(("To be fetched, once: ", "bold"), one_line(self._look.download))
            lines += [Content(""), *text.wrap(width)]
        self._text.update(Content("\n").join(lines))

    def on_key(self, event: Key) -> None:
        """A letter belongs to the first message."""
        if event.is_printable and event.character:
            self.post_message(EarlyKey(event.character))

    def on_paste(self, event: Paste) -> None:
        """So does a paste."""
        self.post_message(EarlyKey(event.text))

    def action_go(self) -> None:
        """Enter."""
        if self._clock() - self._shown_at >= ARM_AFTER_S:
            self.dismiss(True)

    def action_leave(self) -> None:
        """Escape."""
        self.dismiss(False)


def _found(finding: Finding, width: int) -> list[Content]:
    """One finding, wrapped beside its topic."""
    glyph, color = ("✓", "$success") if finding.good else ("!", "$warning")
    indent = _TOPIC_CELLS + 4
    wrapped = Content(one_line(finding.text)).wrap(max(10, width - indent))
    head = Content.assemble(
        (f"  {glyph} ", color), (f"{one_line(finding.topic):<{_TOPIC_CELLS}}", "$foreground 60%"), wrapped[0]
    )
    return [head, *(Content.assemble(" " * indent, line) for line in wrapped[1:])]


def _keys(download: str) -> Content:
    go, leave = ("fetch it and start", "leave") if download else ("start", "leave")
    key = "bold $accent"
    return Content.assemble(("enter", key), f" {go}   ", ("esc", key), f" {leave}")

"""A text over the conversation: help, the engine."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class Panel(ModalScreen[None]):
    """A screen over the conversation that any of Escape, q and Enter closes."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "leave", "close")]
    DEFAULT_CSS = """
    Panel { align: center middle; background: $background 60%; }
    Panel > VerticalScroll {
        width: 100; max-width: 96%; height: auto; max-height: 94%;
        border: round $primary 70%; background: $background; padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    Panel Static { height: auto; width: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._text = Static("", markup=False)
        self._scroll = VerticalScroll(self._text)

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        yield self._scroll

    def on_mount(self) -> None:
        """Draw, and again with every other width."""
        self._scroll.focus()
        self.redraw()

    def on_resize(self) -> None:
        """Another width, other lines."""
        self.redraw()

    def redraw(self) -> None:
        """Show the lines of the present width."""
        frame = 5  # border, padding, scroll bar
        width = min(100, self.app.size.width * 96 // 100) - frame
        self._text.update(Content("\n").join(self.lines(width)))

    def lines(self, width: int) -> list[Content]:
        """What to show in `width` cells."""
        raise NotImplementedError

    def title_line(self, title: str, hint: str) -> Content:
        """The first line."""
        return Content.assemble((title, "bold $primary"), (f"  {hint}", "$foreground 42%"))

    def action_leave(self) -> None:
        """Back to the conversation."""
        self.dismiss()

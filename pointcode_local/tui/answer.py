"""A piece of the answer as one widget that draws only its lines in view."""

from __future__ import annotations

from textual.geometry import Offset, Region, Size
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from pointcode_local.render import LineLimit, PlainStream, one_line
from pointcode_local.tui.blocks import Look
from pointcode_local.tui.lines import Line, copied
from pointcode_local.tui.markdown import MarkdownText
from pointcode_local.tui.scrolling import filtered
from pointcode_local.tui.story import AnswerRecord


class AnswerView(Widget):
    """Rendered while it streams: each line becomes a strip once, when it is first in view."""

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)  # known from a layout: no reason for another

    def __init__(self, record: AnswerRecord) -> None:
        super().__init__(classes="entry answer")
        self._record = record
        self._stream = PlainStream()
        self._limit = LineLimit()
        self._n_parts = 0
        self._text = MarkdownText(self._look())
        self._strips: dict[int, Strip] = {}
        self._strips_width = 0
        self._n_lines = 0
        self._is_finished = False
        self.display = not record.is_call
        self._grow()

    def _look(self) -> Look:
        return "plain" if self.app.no_color else "ansi" if self.app.native_ansi_color else "colour"

    @property
    def markdown(self) -> str:
        """The text that is shown."""
        return self._text.source

    def _grow(self) -> bool:
        """Take what is new; False when nothing is."""
        new = "".join(self._record.parts[self._n_parts :])
        self._n_parts = len(self._record.parts)
        if self._is_finished or not (new or self._record.done):
            return False
        text = self._stream.feed(self._limit.feed(new))
        if not self._record.done:
            self._text.feed(text)
            return True
        self._is_finished = True
        self._text.feed(text + self._stream.finish())
        self._text.finish()
        return True

    async def sync(self) -> None:
        """Append what came since the last call; what has become a call is no longer shown."""
        if self._record.is_call:
            self.display = False
            return
        n_unchanged = self._text.n_settled_lines
        if not self._grow():
            return
        width = self.size.width
        lines = self._text.lines_at(width) if width else []
        first = self._forget_strips(n_unchanged)
        if len(lines) != self._n_lines:
            self.refresh(layout=True)
        else:
            self.refresh(Region(0, first, width, len(lines) - first))

    def _forget_strips(self, n_unchanged: int) -> int:
        """Forget the strips of the lines that may have changed; returns the first of them."""
        first = min(n_unchanged, self._n_lines)
        for y in [y for y in self._strips if y >= first]:
            del self._strips[y]
        return first

    # ---------------------------------------------------------------- drawing
    def _lines_at(self, width: int) -> list[Line]:
        lines = self._text.lines_at(width)
        self._n_lines = len(lines)
        return lines

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """All the width there is."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines at `width`."""
        return len(self._lines_at(width)) if width else 0

    def notify_style_update(self) -> None:
        """Other colours."""
        self._strips.clear()
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines in view. (The usual way through the widget's box costs three times as much; there is no box.)"""
        if self._strips_width != self.size.width:
            self._strips_width = self.size.width
            self._strips.clear()
        missing = [y for y in crop.line_range if y not in self._strips]
        self._strips.update(zip(missing, filtered(self, [self._drawn(y) for y in missing]), strict=True))
        strips = [self._strips[y] for y in crop.line_range]
        return strips if crop.column_span == (0, self.size.width) else [s.crop(*crop.column_span) for s in strips]

    def _drawn(self, y: int) -> Strip:
        width = self.size.width
        lines = self._lines_at(width)
        if y >= len(lines):
            return Strip.blank(width, self.visual_style.rich_style)
        line = lines[y]
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            line = self._selected(line, span)
        return line.to_strip(width, self.visual_style)

    def render_line(self, y: int) -> Strip:
        """One line that knows its place in the text, for the mouse."""
        return self._drawn(y).apply_offsets(0, y)

    def _selected(self, line: Line, span: tuple[int, int]) -> Line:
        style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        n_lead = len(line.lead.plain)
        start, end = span
        end = len(line.body.plain) if end < 0 else max(0, end - n_lead)
        return Line(line.body.stylize(style, max(0, start - n_lead), end), line.lead, line.joint, line.fill)

    # ---------------------------------------------------------------- the mouse
    def selection_updated(self, selection: Selection | None) -> None:
        """Draw the selection."""
        self._strips.clear()
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, as it was written: without bars, bullets and the line ends of the wrapping."""
        lines = self._lines_at(self.size.width)
        start = selection.start or Offset(0, 0)
        end = selection.end or Offset(-1, len(lines) - 1)
        return copied(lines, (start.y, start.x), (end.y, end.x)), "\n"

    def action_link(self, href: str) -> None:
        """A link in model text is shown and copied, never opened: its text may lie about its target."""
        self.app.copy_to_clipboard(href)
        self.app.notify(one_line(href, 300), title="Link copied", markup=False)

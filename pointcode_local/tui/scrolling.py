"""A scroll container whose content may grow thirty times a second.

Textual lays the screen out a second time whenever the size of a container's content has changed, and draws the whole
scroll bar through Rich each time; together that is more work than the new text itself.
"""

from __future__ import annotations

from math import ceil
from typing import ClassVar

from rich.color import Color
from rich.style import Style
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget

_Look = tuple[int, int, int, Color | None, Color | None]  # cells, beginning and end of the thumb (1/8 cell), colours


def filtered(widget: Widget, strips: list[Strip]) -> list[Strip]:
    """`strips` of `widget` for terminals without colours, or with their own."""
    filters = widget.get_line_filters()
    background = widget.background_colors[1] if filters else None
    for line_filter in filters:
        assert background is not None
        strips = [strip.apply_filter(line_filter, background) for strip in strips]
    return strips


class QuietScrollBar(ScrollBar):
    """A vertical scroll bar that is drawn only when its thumb is to look different."""

    _shown: _Look | None = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> QuietScrollBar:
        """Ask for drawing, unless nothing would change."""
        if layout or recompose or self._look() != self._shown:
            super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        return self

    def _look(self) -> _Look | None:
        if not self.is_attached or not self.size.height:
            return None
        cells, window, virtual = self.size.height, self.window_size, self.window_virtual_size
        style = self._style()
        if not 0 < window < virtual or cells == virtual:
            return cells, 0, 0, style.color, style.bgcolor
        thumb = max(1.0, window * cells / virtual)
        start = int((cells - thumb) * self.position / (virtual - window) * 8)
        return cells, start, start + ceil(thumb * 8), style.color, style.bgcolor

    def _style(self) -> Style:
        bar = self.render()
        assert isinstance(bar, ScrollBarRender)
        assert isinstance(bar.style, Style)
        return bar.style

    def render_lines(self, crop: Region) -> list[Strip]:
        """The cells in view, one strip for each kind of cell."""
        self._shown = self._look()
        bar = self.render()
        assert isinstance(bar, ScrollBarRender)
        assert isinstance(bar.style, Style)
        cells = bar.render_bar(
            size=self.size.height,
            virtual_size=bar.virtual_size,
            window_size=bar.window_size,
            position=bar.position,
            back_color=bar.style.bgcolor or Color.default(),
            bar_color=bar.style.color or Color.default(),
        ).segments
        kinds = {id(cell): cell for cell in cells}
        strips = dict(zip(kinds, filtered(self, [Strip([cell], 1) for cell in kinds.values()]), strict=True))
        return [strips[id(cell)] for cell in cells[crop.y : crop.bottom]]


class GrowingScroll(VerticalScroll):
    """A vertical scroll container for content that grows. Its scroll bar is one cell wide."""

    BLANK: ClassVar[bool] = True  # behind the content there is nothing to draw
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), repaint=False)  # known from a layout: no reason for another

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The bar, made when it is first asked for."""
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = QuietScrollBar(vertical=True, name="vertical")
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)  # pyright: ignore[reportPrivateUsage]
        return self._vertical_scrollbar


class MainScreen(Screen[None]):
    """The screen below all others."""

    BLANK: ClassVar[bool] = True  # behind the widgets there is nothing to draw

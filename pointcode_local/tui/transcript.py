"""The scrolling conversation. Only a window of records is mounted, so its cost does not grow with the conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import Static

from pointcode_local.tui.scrolling import GrowingScroll
from pointcode_local.tui.status import Changing
from pointcode_local.tui.story import NoticeRecord, Record, ToolRecord
from pointcode_local.tui.views import Foldable, View, make_view

MOUNTED_AT_OPEN = 30
MOUNTED_AT_MOST = 160  # while following the end
MORE = 20  # records mounted per step when reading back


class Earlier(Static):
    """Stands for the records above the window; a click brings some back."""

    def on_click(self, event: Click) -> None:
        """Mount more."""
        event.stop()
        self.query_ancestor(Transcript).load_earlier()


class Below(Changing):
    """The empty line under the conversation. While the person reads back it tells of new text; a click goes there."""

    def __init__(self, go: Callable[[], None]) -> None:
        super().__init__("below")
        self._go = go

    def tell(self, has_news: bool) -> None:
        """Say that there is new text, or nothing."""
        self.set_text(Content("↓ new text below (ctrl+end)" if has_news else ""))

    def on_click(self, event: Click) -> None:
        """Show it."""
        event.stop()
        self._go()


class Transcript(GrowingScroll, can_focus=False):
    """Shows `records[first:]`. The end is followed until the person scrolls up, and again once they are back."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, welcome: Widget) -> None:
        super().__init__(id="transcript")
        self._records: list[Record] = []
        self._first = 0
        self._views: dict[int, View] = {}  # by id(record); records live as long as the story
        self._welcome = welcome
        self._earlier = Earlier(Content(""), classes="earlier", markup=False)
        self._loading = False
        self._all_unfolded = False
        self.below = Below(self.anchor)  # its place is under this widget

    def compose(self) -> ComposeResult:
        """The first screen, then the entries."""
        yield self._welcome
        yield self._earlier

    def on_mount(self) -> None:
        """Follow the end."""
        self.anchor()
        self._show_earlier()

    def anchor(self, anchor: bool = True) -> None:
        """Follow the end."""
        super().anchor(anchor)
        self.below.tell(False)

    @property
    def is_following(self) -> bool:
        """Whether new text keeps the end in view."""
        return self.scroll_y >= self.max_scroll_y - 1

    async def show(self, records: list[Record]) -> None:
        """Show another conversation (kept by reference: records appended to the list appear with `sync`)."""
        self._loading = True  # the scroll position passes the top
        with self.app.batch_update():
            await self.query_children(".entry").remove()
            self._views.clear()
            self._records = records
            self._first = max(0, len(records) - MOUNTED_AT_OPEN)
            await self._mount_range(self._first, len(records))
        self._show_earlier()
        self.anchor()
        self.call_after_refresh(self._loaded)

    def _loaded(self) -> None:
        self._loading = False

    async def sync(self, touched: Sequence[Record]) -> None:
        """Mount new records at the end and bring changed ones up to date."""
        n_mounted_end = self._first + len(self._views)
        if self.is_following:
            self.below.tell(False)
        elif self._anchor_released and (n_mounted_end < len(self._records) or any(map(self._is_below, touched))):
            self.below.tell(True)  # without having scrolled back one is only between two layouts
        await self._mount_range(n_mounted_end, len(self._records))
        for record in dict.fromkeys(touched):
            if (view := self._views.get(id(record))) is not None:
                await view.sync()
        if len(self._views) > MOUNTED_AT_MOST and self.is_following:
            await self._drop_oldest(len(self._views) - MOUNTED_AT_MOST // 2)

    def _is_below(self, record: Record) -> bool:
        """Whether its end is further down than what is in view."""
        view = self._views.get(id(record))
        return view is not None and view.virtual_region.bottom > self.scroll_y + self.size.height

    def page(self, direction: int) -> None:
        """Scroll by a screen. What reaches the end follows it; where nothing lies above one cannot read back."""
        if direction < 0 and self.max_scroll_y > 0:
            self.scroll_page_up(animate=False)
        elif direction > 0 and self.max_scroll_y - self.scroll_y > self.size.height:
            self.scroll_page_down(animate=False)
        elif direction > 0:
            self.anchor()

    async def _mount_range(self, start: int, end: int, before: Widget | None = None) -> None:
        if start >= end:
            return
        views: list[View] = []
        for at in range(start, end):
            record = self._records[at]
            view = make_view(record)
            before_it = self._records[at - 1] if at else None
            is_joined = type(record) is type(before_it) and isinstance(record, ToolRecord | NoticeRecord)
            view.set_class(is_joined, "joined")
            if self._all_unfolded and isinstance(view, Foldable):
                view.set_unfolded(True)
            self._views[id(record)] = view
            views.append(view)
        self._welcome.display = False
        await self.mount_all(views, before=before)

    async def _drop_oldest(self, n: int) -> None:
        dropped = [self._views.pop(id(record)) for record in self._records[self._first : self._first + n]]
        self._first += n
        with self.app.batch_update():
            await self.remove_children(dropped)
        self._show_earlier()

    def _show_earlier(self) -> None:
        self._earlier.display = self._first > 0
        self._earlier.update(Content(f"↑ {self._first:,} earlier entries"))
        self._welcome.display = not self._records

    def load_earlier(self) -> None:
        """Mount the next older records above, keeping what is in view where it is."""
        if self._first and not self._loading:
            self._loading = True
            self.run_worker(self._load_earlier())

    async def _load_earlier(self) -> None:
        top = self._views[id(self._records[self._first])]
        offset = top.virtual_region.y - self.scroll_y
        end, self._first = self._first, max(0, self._first - MORE)
        with self.app.batch_update():
            await self._mount_range(self._first, end, before=top)
        self._show_earlier()

        def restore() -> None:
            self.scroll_to(y=top.virtual_region.y - offset, animate=False, force=True)
            self._loading = False

        self.call_after_refresh(restore)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Reaching the top while reading back loads more; at the end there is nothing below."""
        super().watch_scroll_y(old_value, new_value)
        if self.is_following:
            self.below.tell(False)
        if new_value < 1 and old_value > new_value:
            self.load_earlier()

    def toggle_details(self) -> bool:
        """Unfold (or fold again) everything; returns the new state."""
        self._all_unfolded = not self._all_unfolded
        for view in self._views.values():
            if isinstance(view, Foldable):
                view.set_unfolded(self._all_unfolded)
        return self._all_unfolded

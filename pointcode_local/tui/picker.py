"""A list to pick one thing from: sessions, models, modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from pointcode_local.render import clip, one_line

_HINT = "type to narrow, enter takes, esc leaves"
_FRAME_CELLS = 5  # border, padding, scroll bar
_NARROW_BELOW = 50


@dataclass(frozen=True, slots=True)
class Pick:
    """One line of the list; `value` is what the picker returns."""

    value: str
    label: str
    detail: str = ""


class Picker(ModalScreen[str]):
    """Type to narrow, arrows to move, Enter to take, Escape to leave; returns "" when nothing was taken."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "leave", "leave"),
        ("up", "move(-1)", "up"),
        ("down", "move(1)", "down"),
    ]
    DEFAULT_CSS = """
    Picker { align: center middle; background: $background 60%; }
    Picker > Vertical {
        width: 80; max-width: 96%; height: auto; max-height: 80%;
        border: round $primary 70%; background: $background; padding: 0 1;
    }
    Picker Input, Picker Input:focus {
        border: none; height: 1; padding: 0; margin: 0 0 1 0; background: $background;
    }
    Picker OptionList { border: none; background: $background; height: auto; max-height: 20; padding: 0; }
    Picker Static { height: auto; }
    """

    def __init__(
        self, title: str, picks: list[Pick], *, current: str = "", on_mark: Callable[[str], None] | None = None
    ) -> None:
        """`current` is marked at first; `on_mark` hears of every other mark, to show what it would mean."""
        super().__init__()
        self._title = title
        self._picks = picks
        self._current = current
        self._on_mark = on_mark
        self._found = picks
        self._list = OptionList(markup=False)
        self._input = Input(placeholder=_HINT, select_on_focus=False)
        self._input.cursor_blink = False

    def compose(self) -> ComposeResult:
        """Title, filter, list."""
        with Vertical():
            yield Static(Content.assemble((self._title, "bold $primary")), markup=False)
            yield self._input
            yield self._list

    def on_mount(self) -> None:
        """Everything at first."""
        self._list.can_focus = False
        self._fill("")

    def _fill(self, needle: str) -> None:
        lowered = needle.lower()
        found = [pick for pick in self._picks if lowered in f"{pick.label} {pick.detail}".lower()]
        self._list.clear_options()
        self._list.add_options(Option(self._line(pick), id=f"p{n}") for n, pick in enumerate(found))
        self._found = found
        at = next((n for n, pick in enumerate(found) if pick.value == self._current), 0)
        self._list.highlighted = at if found else None

    def _line(self, pick: Pick) -> Content:
        """Label and detail on one line; on a narrow screen the detail has its own."""
        room = min(80, self.app.size.width * 96 // 100) - _FRAME_CELLS
        detail = one_line(pick.detail, room)
        if room < _NARROW_BELOW:
            below = f"\n  {clip(detail, room - 2)}" if detail else ""
            return Content.assemble(one_line(pick.label, room), (below, "$foreground 60%"))
        label = one_line(pick.label, max(10, room - cell_len(detail) - 2))
        return Content.assemble(label, (f"  {detail}" if detail else "", "$foreground 60%"))

    def on_resize(self) -> None:
        """Another width, other lines; the mark stays where it was."""
        at = self._list.highlighted
        self._fill(self._input.value)
        self._list.highlighted = at

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show what the marked one would mean."""
        if self._on_mark is not None and event.option_index < len(self._found):
            self._on_mark(self._found[event.option_index].value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow."""
        self._fill(event.value)

    def on_input_submitted(self) -> None:
        """Take the marked one."""
        at = self._list.highlighted
        self.dismiss(self._found[at].value if at is not None else "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the clicked one."""
        self.dismiss(self._found[event.option_index].value)

    def action_move(self, by: int) -> None:
        """Move the mark."""
        if by < 0:
            self._list.action_cursor_up()
        else:
            self._list.action_cursor_down()

    def action_leave(self) -> None:
        """Take nothing."""
        self.dismiss("")

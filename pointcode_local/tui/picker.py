"""A list to pick one thing from: sessions, models, modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from pointcode_local.render import one_line


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
    Picker Input { border: none; height: 1; padding: 0; margin: 0 0 1 0; background: $background; }
    Picker OptionList { border: none; background: $background; height: auto; max-height: 20; padding: 0; }
    Picker Static { height: auto; }
    """

    def __init__(self, title: str, picks: list[Pick]) -> None:
        super().__init__()
        self._title = title
        self._picks = picks
        self._list = OptionList(markup=False)

    def compose(self) -> ComposeResult:
        """Title, filter, list."""
        with Vertical():
            yield Static(Content.assemble((self._title, "bold")), markup=False)
            yield Input(placeholder="type to narrow the list", select_on_focus=False)
            yield self._list

    def on_mount(self) -> None:
        """Everything at first."""
        self._list.can_focus = False
        self._fill("")

    def _fill(self, needle: str) -> None:
        lowered = needle.lower()
        found = [pick for pick in self._picks if lowered in f"{pick.label} {pick.detail}".lower()]
        self._list.clear_options()
        self._list.add_options(
            Option(
                Content.assemble(one_line(pick.label, 60), (f"  {one_line(pick.detail)}", "$foreground 60%")),
                id=f"p{n}",
            )
            for n, pick in enumerate(found)
        )
        self._found = found
        self._list.highlighted = 0 if found else None

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

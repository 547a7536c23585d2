"""A small vi for the message field: motions, insertions, and the operators d and c."""

from __future__ import annotations

from collections.abc import Callable

from textual.widgets import TextArea

_OPERATORS = ("d", "c", "g")


class ViKeys:
    """Keys of the normal and the insert mode over a TextArea. `arrow` moves up or down and knows the history."""

    def __init__(self, area: TextArea, arrow: Callable[[str], None]) -> None:
        self._area = area
        self._pending = ""
        self.inserting = True
        self._commands: dict[str, Callable[[], object]] = {
            "h": area.action_cursor_left,
            "l": area.action_cursor_right,
            "j": lambda: arrow("down"),
            "k": lambda: arrow("up"),
            "w": area.action_cursor_word_right,
            "e": area.action_cursor_word_right,
            "b": area.action_cursor_word_left,
            "0": lambda: area.move_cursor((area.cursor_location[0], 0)),
            "^": area.action_cursor_line_start,
            "$": area.action_cursor_line_end,
            "G": lambda: area.move_cursor(area.document.end),
            "gg": lambda: area.move_cursor((0, 0)),
            "x": area.action_delete_right,
            "X": area.action_delete_left,
            "D": area.action_delete_to_end_of_line,
            "dd": area.action_delete_line,
            "dw": area.action_delete_word_right,
            "db": area.action_delete_word_left,
            "d$": area.action_delete_to_end_of_line,
            "d0": area.action_delete_to_start_of_line,
            "u": area.action_undo,
            "p": area.action_paste,
            "i": self._insert,
            "a": lambda: self._insert(area.action_cursor_right),
            "I": lambda: self._insert(area.action_cursor_line_start),
            "A": lambda: self._insert(area.action_cursor_line_end),
            "o": lambda: self._open_line(below=True),
            "O": lambda: self._open_line(below=False),
            "C": lambda: self._insert(area.action_delete_to_end_of_line),
            "S": self._change_line,
            "cc": self._change_line,
            "cw": lambda: self._insert(area.action_delete_word_right),
            "cb": lambda: self._insert(area.action_delete_word_left),
            "c$": lambda: self._insert(area.action_delete_to_end_of_line),
        }

    @property
    def mode(self) -> str:
        """For the frame of the field."""
        return "insert" if self.inserting else "normal"

    def handle(self, key: str, character: str | None) -> bool:
        """Do what the key means; False for keys that keep their meaning (Enter, control keys, a second Escape)."""
        if self.inserting:
            if key != "escape":
                return False
            self.inserting = False
            if self._area.cursor_location[1]:
                self._area.action_cursor_left()
            return True
        if key == "escape" and self._pending:
            self._pending = ""
            return True
        if character is None or not character.isprintable():
            return False
        command = self._pending + character
        self._pending = command if command in _OPERATORS else ""
        if not self._pending and (action := self._commands.get(command)) is not None:
            action()
        return True

    def _insert(self, first: Callable[[], object] | None = None) -> None:
        if first is not None:
            first()
        self.inserting = True

    def _change_line(self) -> None:
        row = self._area.cursor_location[0]
        self._area.delete((row, 0), (row, len(self._area.document.get_line(row))))
        self.inserting = True

    def _open_line(self, *, below: bool) -> None:
        row = self._area.cursor_location[0]
        if below:
            self._area.insert("\n", (row, len(self._area.document.get_line(row))))
            self._area.move_cursor((row + 1, 0))
        else:
            self._area.insert("\n", (row, 0))
            self._area.move_cursor((row, 0))
        self.inserting = True

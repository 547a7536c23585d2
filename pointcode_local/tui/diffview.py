"""The diff widget: unified on narrow screens, two columns on wide ones for changed lines; changed words are marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Offset, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style as VisualStyle
from textual.widget import Widget

from pointcode_local.diff import DiffRow, diff_rows, side_by_side
from pointcode_local.events import FileDiff

TWO_COLUMNS_FROM = 120  # cells
_SIGNS = {"add": "+", "del": "-", "same": " ", "gap": " "}


@dataclass(frozen=True, slots=True)
class _Line:
    """One screen line, and what a copy takes of it: `text`, which begins at `lead` cells; `goes_on`: a wrapped row."""

    segments: list[Segment]
    lead: int
    text: str
    goes_on: bool = False
    is_change: bool = False


@dataclass(frozen=True, slots=True)
class _Look:
    """The styles of one row kind: its text, its changed words, its line number."""

    text: Style
    word: Style
    number: Style


class DiffView(Widget):
    """One file's diff. At most `max_rows` rows are shown; the last line says how many are left out."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "diff--same",
        "diff--add",
        "diff--del",
        "diff--add-word",
        "diff--del-word",
        "diff--number",
        "diff--gap",
    }
    DEFAULT_CSS = """
    DiffView {
        height: auto;
        width: 1fr;
        & > .diff--same { color: $foreground 75%; }
        & > .diff--add { background: $success 14%; color: $foreground; }
        & > .diff--del { background: $error 14%; color: $foreground; }
        & > .diff--add-word { background: $success 38%; color: $foreground; text-style: bold; }
        & > .diff--del-word { background: $error 38%; color: $foreground; text-style: bold; }
        & > .diff--number { color: $foreground 40%; }
        & > .diff--gap { color: $foreground 45%; text-style: italic; }
        &:nocolor > .diff--add-word { text-style: bold underline; }
        &:nocolor > .diff--del-word { text-style: bold underline; }
    }
    """

    def __init__(self, diff: FileDiff, *, max_rows: int = 400) -> None:
        super().__init__()
        rows = diff_rows(diff)
        self._rows = rows[:max_rows]
        self._n_hidden = len(rows) - len(self._rows)
        self._has_two_sides = diff.before is not None and diff.after is not None
        numbers = [n for row in self._rows for n in (row.old_no, row.new_no) if n is not None]
        self._digits = max(2, len(str(max(numbers, default=0))))
        self._laid_out: tuple[int, list[Strip], list[_Line]] = (0, [], [])
        self._first_change = 0

    def first_change(self, width: int) -> int:
        """The screen line of the first changed row, laid out at `width`."""
        self._strips(width)
        return self._first_change

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """All the width there is."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The rows after wrapping at `width`."""
        return len(self._strips(width))

    def notify_style_update(self) -> None:
        """Colours changed: lay out again."""
        self._laid_out = (0, [], [])
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """One screen line of the diff."""
        strips = self._strips(self.size.width)
        if y >= len(strips):
            return Strip.blank(self.size.width, self.rich_style)
        strip = strips[y]
        if (selection := self.text_selection) is not None and (span := selection.get_span(y)) is not None:
            start, end = (cell_len(strip.text[:n]) if n >= 0 else strip.cell_length for n in span)
            style = VisualStyle.from_styles(self.screen.get_component_styles("screen--selection")).rich_style
            marked = strip.crop(start, end).apply_style(style)
            strip = Strip.join([strip.crop(0, start), marked, strip.crop(end, strip.cell_length)])
        return strip.apply_offsets(0, y)

    def selection_updated(self, selection: Selection | None) -> None:
        """Draw the selection."""
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text as it stands in the file: without numbers, signs and the line ends of the wrapping."""
        self._strips(self.size.width)
        lines = self._laid_out[2]
        first, last = selection.start or Offset(0, 0), selection.end or Offset(-1, len(lines) - 1)
        copied = ""
        for y in range(first.y, min(last.y, len(lines) - 1) + 1):
            line = lines[y]
            start = max(0, first.x - line.lead) if y == first.y else 0
            end = max(0, last.x - line.lead) if y == last.y and last.x >= 0 else len(line.text)
            copied += ("" if line.goes_on or y == first.y else "\n") + line.text[start:end]
        return copied, "\n"

    def _strips(self, width: int) -> list[Strip]:
        if self._laid_out[0] != width:
            lines = self._lay_out(width)
            self._first_change = next((y for y, line in enumerate(lines) if line.is_change), 0)
            self._laid_out = (width, [Strip(line.segments, width) for line in lines], lines)
        return self._laid_out[1]

    def _look(self, kind: str) -> _Look:
        def style(name: str) -> Style:
            return self.get_component_rich_style(f"diff--{name}")

        number = style("number")
        if kind in ("add", "del"):
            text = style(kind)
            return _Look(text, style(f"{kind}-word"), text + Style(color=number.color))
        text = style(kind)
        return _Look(text, text, number)

    def _lay_out(self, width: int) -> list[_Line]:
        if width <= 0:
            return []
        looks = {kind: self._look(kind) for kind in _SIGNS}
        if width >= TWO_COLUMNS_FROM and self._has_two_sides:
            lines = [line for old, new in side_by_side(self._rows) for line in self._facing(old, new, width, looks)]
        else:
            side = "both" if width >= 60 else "one"
            lines = [line for row in self._rows for line in self._row(row, side, width, looks)]
        if self._n_hidden:
            text = f" … {self._n_hidden:,} more rows"
            lines.append(_Line([Segment(set_cell_size(text, width), looks["gap"].text)], 0, ""))
        return lines

    def _gutter(self, row: DiffRow, side: str) -> str:
        def number(n: int | None) -> str:
            return f"{'' if n is None else n:>{self._digits}} "

        if side == "old":
            return number(row.old_no)
        if side == "new":
            return number(row.new_no)
        if side == "one":
            return number(row.new_no if row.new_no is not None else row.old_no)
        return number(row.old_no) + number(row.new_no)

    def _facing(self, old: DiffRow | None, new: DiffRow | None, width: int, looks: dict[str, _Look]) -> Iterator[_Line]:
        """The lines of an old and a new row beside each other; a copy takes the new text where there is one."""
        left_width = (width - 1) // 2
        right_width = width - 1 - left_width
        divider = Segment("│", looks["same"].number)
        blanks = [_Line([Segment(" " * n, looks["same"].text)], 0, "", goes_on=True) for n in (left_width, right_width)]
        left, right = self._row(old, "old", left_width, looks), self._row(new, "new", right_width, looks)
        for a, b in zip_longest(left, right):
            one, other = a or blanks[0], b or blanks[1]
            segments, is_change = [*one.segments, divider, *other.segments], one.is_change or other.is_change
            if new is None:
                yield _Line(segments, one.lead, one.text, one.goes_on, is_change)
            else:
                lead = sum(len(segment.text) for segment in one.segments) + 1 + other.lead
                yield _Line(segments, lead, other.text, other.goes_on, is_change)

    def _row(self, row: DiffRow | None, side: str, width: int, looks: dict[str, _Look]) -> list[_Line]:
        """The screen lines of one row, each exactly `width` cells."""
        if row is None:
            return [_Line([Segment(" " * width, looks["same"].text)], 0, "")]
        look = looks[row.kind]
        gutter = self._gutter(row, side)
        if row.kind == "gap":
            shown = set_cell_size(" " * len(gutter) + "  ⋯ " + row.text, width)
            return [_Line([Segment(shown, look.text)], 0, "")]
        room = max(2, width - len(gutter) - 2)
        lines: list[_Line] = []
        for n, pieces in enumerate(_wrapped(row, room)):
            head = f"{gutter}{_SIGNS[row.kind]} " if n == 0 else " " * (len(gutter) + 2)
            body = [Segment(text, look.word if marked else look.text) for text, marked in pieces]
            used = sum(cell_len(text) for text, _ in pieces)
            line = [Segment(head, look.number), *body]
            line.append(Segment(" " * (room - used), look.text))
            line = Segment.adjust_line_length(line, width, look.text)
            lines.append(_Line(line, len(head), "".join(text for text, _ in pieces), n > 0, row.kind != "same"))
        return lines


def _wrapped(row: DiffRow, room: int) -> list[list[tuple[str, bool]]]:
    """The row's text as lines of at most `room` cells, each a list of (text, is a changed word)."""
    lines: list[list[tuple[str, bool]]] = [[]]
    used = 0
    for text, marked in _pieces(row):
        run = ""
        for character in text:
            cells = cell_len(character)
            if used + cells > room:
                lines[-1].append((run, marked))
                lines.append([])
                run, used = "", 0
            run += character
            used += cells
        if run:
            lines[-1].append((run, marked))
    return lines


def _pieces(row: DiffRow) -> list[tuple[str, bool]]:
    pieces: list[tuple[str, bool]] = []
    at = 0
    for start, end in row.marks:
        pieces += [(row.text[at:start], False), (row.text[start:end], True)]
        at = end
    return [*pieces, (row.text[at:], False)]

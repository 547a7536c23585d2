"""Lines of laid-out text: what a block of Markdown is on the screen, drawn without any widget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from textual.content import Content
from textual.strip import Strip
from textual.style import Style

NOTHING = Content("")


@dataclass(frozen=True, slots=True)
class Line:
    """One screen line.

    `lead` is decoration (bullets, bars, indents), which is not copied; `joint` is what stands between the line before
    and this one in a copy: "\\n" where a line of the text begins, else what the wrapping took away; `fill` is the
    style of the row from the end of `lead` to the edge.
    """

    body: Content
    lead: Content = NOTHING
    joint: str = "\n"
    fill: str = ""

    def to_strip(self, width: int, base: Style) -> Strip:
        """The line as `width` cells over `base`; needs the running app for the colours."""
        under = base + Style.parse(self.fill) if self.fill else base
        segments = [*_segments(self.lead, base), *_segments(self.body, under)]
        used = self.lead.cell_length + self.body.cell_length
        if used < width:
            segments.append(Segment(" " * (width - used), under.rich_style))
        strip = Strip(segments, max(used, width))
        return strip if used <= width else strip.crop(0, width)


def _segments(content: Content, base: Style) -> list[Segment]:
    return [
        Segment(text, (base + style).rich_style) for text, style in content.render(base, end="", parse_style=_parse)
    ]


def _parse(style: str | Style) -> Style:
    return style if isinstance(style, Style) else Style.parse(style)


BLANK = Line(NOTHING)


def wrapped(content: Content, width: int) -> list[Line]:
    """`content` at `width` cells, broken between words; a word that is too long is cut."""
    lines: list[Line] = []
    for paragraph in content.split(allow_blank=True):
        text, at = paragraph.plain, 0
        for n, piece in enumerate(paragraph.wrap(max(1, width))):
            begin = at
            while n and text[begin : begin + 1] == " " and not text.startswith(piece.plain, begin):
                begin += 1
            lines.append(Line(piece, joint="\n" if n == 0 else text[at:begin]))
            at = begin + len(piece.plain)
    return lines


def folded(content: Content, width: int) -> list[Line]:
    """`content` at `width` cells, cut where a line is full, as code must be."""
    lines: list[Line] = []
    for row in content.split(allow_blank=True):
        pieces = [row] if row.cell_length <= width else row.fold(width)
        lines += [Line(piece, joint="\n" if n == 0 else "") for n, piece in enumerate(pieces)]
    return lines


def behind(lead: Content, lines: Iterable[Line], first: Content | None = None) -> list[Line]:
    """`lines` with `lead` before each, `first` before the first of them."""
    result: list[Line] = []
    for n, line in enumerate(lines):
        mark = first if n == 0 and first is not None else lead
        result.append(Line(line.body, mark + line.lead if line.lead else mark, line.joint, line.fill))
    return result


def copied(lines: Sequence[Line], first: tuple[int, int], last: tuple[int, int]) -> str:
    """The text from (line, character) `first` to `last`, without decoration and soft line ends.

    Characters are counted from the start of the line, its lead included; a `last` character of -1 is the line's end.
    """
    parts: list[str] = []
    for y in range(max(0, first[0]), min(last[0], len(lines) - 1) + 1):
        line = lines[y]
        n_lead, text = len(line.lead.plain), line.body.plain
        start = max(0, first[1] - n_lead) if y == first[0] else 0
        end = max(0, last[1] - n_lead) if y == last[0] and last[1] >= 0 else len(text)
        ends_here = end >= len(text) and (y + 1 >= len(lines) or lines[y + 1].joint == "\n")
        parts += [line.joint if parts else "", text[start:end].rstrip() if ends_here else text[start:end]]
    return "".join(parts)

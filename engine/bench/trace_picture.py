"""A trace as an SVG picture: one row per processor, time from left to right, one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from .trace import Slice

_WIDTH, _ROW, _LEFT, _TOP = 1000, 26, 70, 28
_COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d", "#ff9da6", "#79706e",
    "#439894", "#83bcb6",
)  # fmt: skip
_WAIT = "#dddddd"


def write_picture(path: Path, slices: Sequence[Slice], processor: str) -> None:
    """Draws the slices of the last step among them; colours are given to kinds of tasks by the time they take."""
    last = max(s.details.get("step", 0) for s in slices)
    shown = [s for s in slices if s.details.get("step", 0) == last]
    begin, end = min(s.begin_ns for s in shown), max(s.end_ns for s in shown)
    n = max(s.processor for s in shown) + 1
    colours = _legend(shown)
    height = _TOP + n * _ROW + 22 * -(-len(colours) // 5) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + _LEFT + 10}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18">one step, {(end - begin) / 1e6:.3f} ms</text>',
    ]
    for p in range(n):
        parts.append(f'<text x="4" y="{_TOP + p * _ROW + 17}">{escape(processor)} {p}</text>')
    scale = _WIDTH / max(1, end - begin)
    for s in shown:
        x, width = _LEFT + (s.begin_ns - begin) * scale, max(0.3, (s.end_ns - s.begin_ns) * scale)
        y = _TOP + s.processor * _ROW + 2
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 4}" fill="{colours[_kind(s)]}">'
            f"<title>{escape(s.name)}: {(s.end_ns - s.begin_ns) / 1e3:.1f} us</title></rect>"
        )
    for i, (kind, colour) in enumerate(colours.items()):
        x, y = _LEFT + i % 5 * 200, _TOP + n * _ROW + 14 + i // 5 * 22
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{y + 12}">{escape(kind)}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def _kind(s: Slice) -> str:
    return "waiting" if s.category == "wait" else s.name.partition(" ")[2]


def _legend(slices: Sequence[Slice]) -> dict[str, str]:
    totals: dict[str, int] = {}
    for s in slices:
        totals[_kind(s)] = totals.get(_kind(s), 0) + s.end_ns - s.begin_ns
    kinds = [kind for kind in sorted(totals, key=lambda k: -totals[k]) if kind != "waiting"]
    legend = {kind: _COLOURS[i % len(_COLOURS)] for i, kind in enumerate(kinds)}
    return legend | {"waiting": _WAIT} if "waiting" in totals else legend

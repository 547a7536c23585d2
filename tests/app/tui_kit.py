"""Driving the full-screen app in tests: a hand-moved clock, settling without waiting, screens as text and styles."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import textual
from rich.color import Color
from rich.style import Style
from textual.pilot import Pilot

from pointcode_local.tui.app import PointcodeApp
from pointcode_local.tui.dialogs import AskPanel
from pointcode_local.tui.theme import DARK, LIGHT
from tests.app.fakes_tui import ScriptedAgent, ScriptedHost

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "POINTCODE_UPDATE_SNAPSHOTS"
WIDTHS = (40, 80, 160)


class Clock:
    """A monotonic clock that only tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_app(*scripts: list[object], host: ScriptedHost | None = None, **options: Any) -> PointcodeApp:
    """A deterministic app over a scripted agent (or over `host`)."""
    host = host or ScriptedHost(ScriptedAgent(list(scripts)))
    defaults: dict[str, Any] = {"frame_s": 0, "animate": False, "theme": "dark", "clock": Clock()}
    return PointcodeApp(host, **(defaults | options))


def agent_of(app: PointcodeApp) -> ScriptedAgent:
    """The scripted agent behind `app`."""
    assert isinstance(app.agent, ScriptedAgent)
    return app.agent


async def settle(app: PointcodeApp, pilot: Pilot[Any]) -> None:
    """Until everything that arrived is on the screen and laid out."""
    for _ in range(2):
        await pilot.pause()
        while not app.is_settled:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    await pilot.pause()


async def wait_for(app: PointcodeApp, pilot: Pilot[Any], done: Any) -> None:
    """Settle until `done()`; the test's own time-out ends a wait in vain."""
    while not done():
        await settle(app, pilot)
    await settle(app, pilot)


def composer_text(app: PointcodeApp) -> str:
    return app._composer.text


async def type_text(pilot: Pilot[Any], text: str) -> None:
    await pilot.press(*("space" if c == " " else "slash" if c == "/" else "at" if c == "@" else c for c in text))


async def idle(app: PointcodeApp, pilot: Pilot[Any]) -> None:
    await wait_for(app, pilot, lambda: app.agent is not None and not app.is_busy)


async def asked(app: PointcodeApp, pilot: Pilot[Any]) -> None:
    await wait_for(app, pilot, lambda: app._question.panel is not None)


def panel_of(app: PointcodeApp) -> AskPanel:
    """The question that `app` shows."""
    assert app._question.panel is not None
    return app._question.panel


async def arm(app: PointcodeApp, pilot: Pilot[Any]) -> None:
    """Let the time pass that a panel ignores keys for."""
    await settle(app, pilot)
    clock = app._clock
    assert isinstance(clock, Clock)
    clock.now += 1.0


def screen_lines(app: PointcodeApp) -> list[str]:
    """The visible screen as text, one string per row, right-stripped."""
    width, _ = app.size
    strips = app.screen._compositor.render_strips(app.size)
    return ["".join(segment.text for segment in strip).rstrip()[:width] for strip in strips]


def screen_text(app: PointcodeApp) -> str:
    """The visible screen as one string."""
    return "\n".join(screen_lines(app))


Cell = tuple[str, str]  # a character and its style


def screen_cells(app: PointcodeApp) -> list[list[Cell]]:
    """The visible screen, one list per row."""
    strips = app.screen._compositor.render_strips(app.size)
    return [[(c, _style_name(segment.style)) for segment in strip for c in segment.text] for strip in strips]


@cache
def _style_name(style: Style | None) -> str:
    if style is None:
        return ""

    def color(value: Color | None) -> str:
        return "-" if value is None else value.triplet.hex if value.triplet else value.name

    flags = [name for name in ("bold", "italic", "underline", "reverse", "dim", "strike") if getattr(style, name)]
    return " ".join([color(style.color), "on", color(style.bgcolor), *flags])


async def dump_screens(app: PointcodeApp, pilot: Pilot[Any], heights: tuple[int, int, int]) -> str:
    """The screen at 40, 80 and 160 columns, dark and light: text, then a letter for each character's style."""
    pages: list[str] = []
    letters: dict[tuple[str, str], str] = {}
    for width, height in zip(WIDTHS, heights, strict=True):
        await pilot.resize_terminal(width, height)
        looks: dict[str, list[list[Cell]]] = {}
        for theme in (DARK, LIGHT) if app.theme == DARK.name else (LIGHT, DARK):  # a change of it is what takes longest
            app.theme = theme.name
            await settle(app, pilot)
            looks[theme.name] = screen_cells(app)
        dark, light = looks[DARK.name], looks[LIGHT.name]
        text = ["".join(c for c, _ in row).rstrip() for row in dark]
        assert text == ["".join(c for c, _ in row).rstrip() for row in light]
        pages += [f"{'=' * width} {width} columns", *text, "-" * width]
        for row, other in zip(dark, light, strict=True):
            pairs = [(a, b) for (_, a), (_, b) in zip(row, other, strict=True)]
            pages.append(_run_lengths([letters.setdefault(pair, chr(0x61 + len(letters))) for pair in pairs]))
    pages.append("styles: dark | light")
    pages += [f"{letter} {dark} | {light}" for (dark, light), letter in letters.items()]
    return "\n".join(pages) + "\n"


async def _at_rest(app: PointcodeApp, pilot: Pilot[Any]) -> list[list[Cell]]:
    """The screen once it no longer changes: a new size is passed on from widget to widget."""
    before: list[list[Cell]] = []
    while True:
        await settle(app, pilot)
        now = screen_cells(app)
        if now == before:
            return now
        before = now


def _run_lengths(letters: list[str]) -> str:
    """`3a1b` for `aaab`."""
    return "".join(f"{len(list(group))}{letter}" for letter, group in groupby(letters))


async def check_screens(
    app: PointcodeApp, pilot: Pilot[Any], name: str, heights: tuple[int, int, int] = (24, 24, 24)
) -> None:
    """Compare with tests/app/snapshots/NAME.txt; the styles only where Textual is the version of the snapshot.

    POINTCODE_UPDATE_SNAPSHOTS=1 writes the file anew, POINTCODE_SVG_DIR=FOLDER also puts SVGs there to look at.
    """
    path = SNAPSHOTS / f"{name}.txt"
    shown = f"textual {textual.__version__}\n" + await dump_screens(app, pilot, heights)
    if os.environ.get(UPDATE):
        path.write_text(shown, encoding="utf-8")
        await _save_svgs(app, pilot, name, heights)
        return
    kept = path.read_text(encoding="utf-8")
    assert _text_part(shown) == _text_part(kept)
    if kept.splitlines()[0] == shown.splitlines()[0]:
        assert shown == kept


def _text_part(dump: str) -> list[str]:
    """The lines of text of a dump, without its style grids."""
    lines: list[str] = []
    in_text = False
    for line in dump.splitlines()[1:]:
        in_text = line.startswith("=" * 40) or (in_text and not line.startswith("-" * 40))
        if in_text:
            lines.append(line)
    return lines


async def _save_svgs(app: PointcodeApp, pilot: Pilot[Any], name: str, heights: tuple[int, int, int]) -> None:
    folder = os.environ.get("POINTCODE_SVG_DIR")
    if not folder:
        return
    for width, height in zip(WIDTHS, heights, strict=True):
        await pilot.resize_terminal(width, height)
        for label, theme in (("dark", DARK), ("light", LIGHT)):
            app.theme = theme.name
            await _at_rest(app, pilot)
            svg = app.export_screenshot(title="pointcode")
            (Path(folder) / f"{name}-{width}-{label}.svg").write_text(svg, encoding="utf-8")

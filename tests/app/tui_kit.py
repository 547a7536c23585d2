"""Driving the full-screen app in tests: a hand-moved clock, settling without waiting, screens as text and SVG."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import textual
from textual.pilot import Pilot

from pointcode_local.tui.app import PointcodeApp
from tests.app.fakes_tui import ScriptedAgent, ScriptedHost

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "POINTCODE_UPDATE_SNAPSHOTS"


class Clock:
    """A monotonic clock that only tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_app(*scripts: list[object], host: ScriptedHost | None = None, **options: Any) -> PointcodeApp:
    """A deterministic app over a scripted agent (or over `host`)."""
    host = host or ScriptedHost(ScriptedAgent(list(scripts)))
    return PointcodeApp(host, **{"frame_s": 0, "animate": False, "theme": "dark", "clock": Clock(), **options})


def agent_of(app: PointcodeApp) -> ScriptedAgent:
    """The scripted agent behind `app`."""
    assert isinstance(app.agent, ScriptedAgent)
    return app.agent


async def settle(app: PointcodeApp, pilot: Pilot[Any]) -> None:
    """Until everything that arrived is on the screen and laid out."""
    for _ in range(2):
        await pilot.pause()
        while not app.is_settled:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await pilot.pause()


async def wait_for(app: PointcodeApp, pilot: Pilot[Any], done: Any) -> None:
    """Settle until `done()`; the test's own time-out ends a wait in vain."""
    while not done():
        await settle(app, pilot)
    await settle(app, pilot)


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


def _svg(app: PointcodeApp) -> str:
    svg = app.export_screenshot(title="pointcode")
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"terminal-\d+-", "t-", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def check_snapshot(app: PointcodeApp, name: str) -> None:
    """Compare the screen with tests/app/snapshots/NAME.txt, and with NAME.svg where Textual's version is the same.

    POINTCODE_UPDATE_SNAPSHOTS=1 writes both anew; look at the SVG before committing it.
    """
    text_path, svg_path = SNAPSHOTS / f"{name}.txt", SNAPSHOTS / f"{name}.svg"
    stamp = f"<!-- textual {textual.__version__} -->\n"
    text, svg = screen_text(app) + "\n", stamp + _svg(app)
    if os.environ.get(UPDATE):
        SNAPSHOTS.mkdir(exist_ok=True)
        text_path.write_text(text, encoding="utf-8")
        svg_path.write_text(svg, encoding="utf-8")
        return
    assert text == text_path.read_text(encoding="utf-8")
    kept = svg_path.read_text(encoding="utf-8")
    if kept.startswith(stamp):
        assert svg == kept

"""Takes the README's pictures from the real program with the real embedded model.

python -P -m tests.bench.screenshots FOLDER      (FOLDER gets permission.svg, turn.svg, engine.svg)
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from pointcode_local.compose import Setup
from pointcode_local.config import Places, Settings
from pointcode_local.host import AppHost
from pointcode_local.tui.app import PointcodeApp

SIZE = (96, 30)
EDIT = "Create hello.py that prints hello. Then edit it so that it prints goodbye."
EXPLAIN = "Explain in ten sentences what a compiler does."


async def until(pilot: Pilot[Any], done: Any) -> None:
    """Let the program work until `done()`."""
    while not done():
        await pilot.pause(0.1)


def save(app: PointcodeApp, path: Path) -> None:
    """The screen as SVG, without the web font (the viewer's own monospace font does)."""
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", app.export_screenshot(title="pointcode"), flags=re.DOTALL)
    path.write_text(svg.replace("Fira Code", "ui-monospace, DejaVu Sans Mono"), encoding="utf-8")


async def take(folder: Path, ws: Path, places: Places) -> None:
    """One session: an edit that asks, the turn after it, the engine while it writes."""
    host = AppHost(Setup(Settings(backend="cpu"), places, ws), interactive=True)
    host.note_first_look_seen()
    app = PointcodeApp(host, theme="dark")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.agent is not None)
        app.submit(EDIT)
        while app.is_busy:
            if (panel := app._question.panel) is not None and panel.is_armed:
                await pilot.pause(0.5)
                save(app, folder / "permission.svg")  # the last question stays: the edit's
                await pilot.press("y")
            await pilot.pause(0.1)
        await pilot.pause(0.5)
        save(app, folder / "turn.svg")
        await host.measure_memory()
        app.submit(EXPLAIN)
        await until(pilot, lambda: app.story.doing == "Writing")
        app.show_engine()
        await pilot.pause(3.0)
        save(app, folder / "engine.svg")
        await pilot.press("escape")
        await app.end_turn()
    await host.close()


def main() -> int:
    """Command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        ws, home = Path(temporary) / "demo", Path(temporary) / "home"
        ws.mkdir()
        asyncio.run(take(folder, ws, Places(home, home, home / "cache")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

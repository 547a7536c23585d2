"""The Textual front end. Importing this package does not import Textual."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pointcode_local.frontend import Host

if TYPE_CHECKING:
    from pointcode_local.tui.app import PointcodeApp

FPS = "TEXTUAL_FPS"


def run_tui(
    host: Host,
    *,
    prompt: str = "",
    theme: str = "auto",
    bell: bool = True,
    history_path: Path | None = None,
    vi_keys: bool = False,
) -> int:
    """Run the full-screen interface until the person quits; `prompt` is sent as the first message.

    `theme` is as in the settings; `history_path` keeps the prompts between runs. Returns the process's exit
    code; the terminal is restored on every way out, SIGTERM and SIGHUP included.
    """
    if theme == "none":
        os.environ["NO_COLOR"] = "1"
    make = partial(app_class(), host, prompt=prompt, theme=theme, bell=bell, history_path=history_path, vi_keys=vi_keys)
    return asyncio.run(_run(make, host))


def app_class() -> type[PointcodeApp]:
    """The app, with Textual loaded for it.

    Textual draws at its next tick, 60 a second; at 120 a key is on the screen 8 ms earlier, and no more is drawn.
    It reads the number while it is imported; children of this process do not get to see it.
    """
    is_chosen = FPS in os.environ
    os.environ.setdefault(FPS, "120")
    try:
        from pointcode_local.tui.app import PointcodeApp
    finally:
        if not is_chosen:
            del os.environ[FPS]
    return PointcodeApp


async def _run(make: Callable[[], PointcodeApp], host: Host) -> int:
    app = make()
    from pointcode_local.tui.driver import TerminalDriver, forget_stops

    if issubclass(TerminalDriver, app.driver_class):  # nobody chose another
        app.driver_class = TerminalDriver
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT: a key once the terminal is restored
        with contextlib.suppress(NotImplementedError, ValueError):
            loop.add_signal_handler(number, app.exit, 128 + number)
    try:
        result = await app.run_async()
    finally:
        forget_stops()
        session_id = host.info.session_id
        await app.end_turn()
        await host.close()
    if session_id and app.story.records:
        print(f"The session is kept. Go on with: pointcode --resume {session_id}")
    return result if result is not None else (app.return_code or 0)

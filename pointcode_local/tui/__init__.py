"""The Textual front end. Importing this package does not import Textual."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from pointcode_local.frontend import Host


def run_tui(
    host: Host, *, prompt: str = "", theme: str = "auto", history_path: Path | None = None, vi_keys: bool = False
) -> int:
    """Run the full-screen interface until the person quits; `prompt` is sent as the first message.

    `theme` is as in the settings; `history_path` keeps the prompts between runs. Returns the process's exit
    code; the terminal is restored on every way out, SIGTERM and SIGHUP included.
    """
    if theme == "none":
        os.environ["NO_COLOR"] = "1"
    return asyncio.run(_run(host, prompt, theme, history_path, vi_keys))


async def _run(host: Host, prompt: str, theme: str, history_path: Path | None, vi_keys: bool) -> int:
    from pointcode_local.tui.app import PointcodeApp

    app = PointcodeApp(host, prompt=prompt, theme=theme, history_path=history_path, vi_keys=vi_keys)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGINT: a key once the terminal is restored
        with contextlib.suppress(NotImplementedError, ValueError):
            loop.add_signal_handler(number, app.exit, 128 + number)
    try:
        result = await app.run_async()
    finally:
        session_id = host.info.session_id
        await app.end_turn()
        await host.close()
    if session_id and app.story.records:
        print(f"The session is kept. Go on with: pointcode --resume {session_id}")
    return result if result is not None else (app.return_code or 0)

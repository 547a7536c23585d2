"""The Textual front end. Importing this package does not import Textual."""

from __future__ import annotations

from pointcode_local.frontend import Host


def run_tui(host: Host, *, prompt: str = "") -> int:
    """Run the full-screen interface until the person quits; `prompt` is sent as the first message.

    Returns the process's exit code; the terminal is restored on every way out.
    """
    from pointcode_local.tui.app import PointcodeApp

    app = PointcodeApp(host, prompt=prompt)
    app.run()
    return app.return_code or 0

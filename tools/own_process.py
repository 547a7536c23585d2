"""Processes of our own: a module's `main` in a fresh interpreter that the user's folder and settings cannot change."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE_PARENT = str(Path(__file__).absolute().parent.parent.parent)


def own_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main` of `pointcode_local.tools.<module>`; sys.argv[1:] are the arguments."""
    start = (
        f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r}); from pointcode_local.tools.{module} import main; main()"
    )
    return [sys.executable, "-I", "-c", start, *arguments]

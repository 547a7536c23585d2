"""The person's own editor for a long message."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path


def edit_text(text: str) -> str | None:
    """Let the person edit `text` in $VISUAL, $EDITOR or vi; None when that failed. The terminal must be free."""
    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="pointcode-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run([*command, str(path)], check=False)
        except OSError:
            return None
        if done.returncode != 0:
            return None
        return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")

"""Stopping the program with ctrl+z, where a shell with job control can continue it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

NO_SHELL = "No shell could continue it: it was started by a window or a script."


def stop_for_shell() -> bool:
    """Stop as every program does at ctrl+z, with all of its group (`pointcode | tee`); False where nobody could
    continue it."""
    if can_be_continued():
        os.killpg(0, signal.SIGTSTP)
        return True
    return False


def can_be_continued() -> bool:
    """Whether the process group was made by a shell of this session, whose `fg` continues it. What a window, an editor
    or `sh -c` has started would stand still for good."""
    group = os.getpgrp()
    try:
        stat = Path(f"/proc/{group}/stat").read_text(encoding="utf-8", errors="replace")
        parent = int(stat.rpartition(")")[2].split()[1])
        return parent > 0 and os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != group
    except (OSError, ValueError, IndexError):  # the one who began the group has ended
        return False

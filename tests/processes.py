"""What became of processes that tests start."""

from __future__ import annotations

import os
import select

_LONGEST_S = 60.0  # only what went wrong takes as long


def ends(pid: int) -> bool:
    """Waits until the process has ended, whoever is its parent; False when it still runs after a long time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], _LONGEST_S)[0])
    finally:
        os.close(process)

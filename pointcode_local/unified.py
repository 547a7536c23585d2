"""A file's change as a unified diff, for `/diff`."""

from __future__ import annotations

import difflib
from pathlib import Path

MAX_BYTES = 1 << 20


def unified_diff(name: str, before: bytes | None, path: Path) -> str:
    """From `before` (None: there was no file) to what is at `path` now; "" when they are equal."""
    try:
        after: bytes | None = path.read_bytes()
    except OSError:
        after = None
    if before == after:
        return ""
    if any(data is not None and (len(data) > MAX_BYTES or b"\0" in data) for data in (before, after)):
        return f"{name}: changed (binary or large)\n"
    old, new = _lines(before), _lines(after)
    source = "/dev/null" if before is None else f"a/{name}"
    target = "/dev/null" if after is None else f"b/{name}"
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, source, target)
    )


def _lines(data: bytes | None) -> list[str]:
    return [line.decode("utf-8", "replace") for line in (data or b"").splitlines(keepends=True)]

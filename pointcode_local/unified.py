"""What became of a file, as a `FileDiff` and that as a unified diff: for `/diff`, and of one call."""

from __future__ import annotations

import difflib
from pathlib import Path

from pointcode_local.events import FileDiff
from pointcode_local.tools.regular import MAX_CHANGED_BYTES, read_regular

MAX_BYTES = 1 << 20
MAX_CALL_BYTES = 256 << 10


def file_change(name: str, before: bytes | None, path: Path) -> FileDiff | None:
    """From `before` (None: there was no file) to what is at `path` now; None when they are equal."""
    try:
        after: bytes | None = read_regular(path, MAX_CHANGED_BYTES + 1)
    except OSError:
        after = None
    if before == after:
        return None
    if any(data is not None and (len(data) > MAX_BYTES or b"\0" in data) for data in (before, after)):
        return FileDiff(name, _size(before), _size(after))
    return FileDiff(name, _text(before), _text(after))


def call_change(name: str, before: bytes | None, after: bytes | None) -> FileDiff:
    """What one call made of a file; of a large one only its size."""
    shown = [
        f"({len(data):,} bytes)" if data and len(data) > MAX_CALL_BYTES else _text(data) for data in (before, after)
    ]
    return FileDiff(name, *shown)


def _size(data: bytes | None) -> str | None:
    return None if data is None else f"(binary or large: {len(data):,} bytes)"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def unified_diff(diff: FileDiff) -> str:
    """The change as text."""
    source = "/dev/null" if diff.before is None else f"a/{diff.path}"
    target = "/dev/null" if diff.after is None else f"b/{diff.path}"
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(*diff.lines, source, target)
    )

"""The last trace of the decode kernel that `pointcode bench decode --trace FILE` drew, for the engine screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pointcode_local.frontend import Timeline, TimelineSpan

MAX_BYTES = 64 << 20
_NOTE = "last-trace"  # in the state folder: the path of the file


def note_trace(arguments: Sequence[str], state: Path) -> None:
    """Remember the trace that a run of `bench decode` with these arguments wrote, if it did."""
    for n, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        path = Path(value or next(iter(arguments[n + 1 :]), "")).absolute()
        if name == "--trace" and path.suffix == ".json" and path.is_file():
            state.mkdir(parents=True, exist_ok=True)
            (state / _NOTE).write_text(str(path), encoding="utf-8", errors="surrogateescape")


def last_trace(state: Path) -> Timeline | None:
    """The last step of the trace that was noted; None when there is none, or its file is gone or no trace."""
    try:
        path = Path((state / _NOTE).read_text(encoding="utf-8", errors="surrogateescape"))
        if path.stat().st_size > MAX_BYTES:
            return None
        return _timeline(path, json.loads(path.read_bytes())["traceEvents"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _timeline(path: Path, events: list[dict[str, Any]]) -> Timeline | None:
    spans = [event for event in events if event.get("ph") == "X"]
    last = max((_step(event) for event in spans), default=0)
    shown = tuple(_span(event) for event in spans if _step(event) == last)
    named = next((e["args"]["name"] for e in events if e.get("name") == "thread_name"), "worker 0")
    return Timeline(path, str(named).rpartition(" ")[0], shown) if shown else None


def _step(event: dict[str, Any]) -> int:
    return int(cast(dict[str, Any], event.get("args") or {}).get("step", 0))


def _span(event: dict[str, Any]) -> TimelineSpan:
    """Names are "L12 gate/up": the layer, then the kind of work."""
    kind = "" if event.get("cat") == "wait" else str(event["name"]).partition(" ")[2]
    begin_us = float(event["ts"])
    return TimelineSpan(int(event["tid"]), kind, begin_us, begin_us + float(event["dur"]))

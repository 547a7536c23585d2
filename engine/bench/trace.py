"""Where the time of decode steps goes, per processor, as a trace that ui.perfetto.dev and chrome://tracing open.

The CPU backend stamps every task (taken up, begun, ended). The GPU's lean kernel stamps the ends of its phases, per
layer and SM, in a build with -DPOINTCODE_TRACE=ON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..tasks import Opcode

SHORTEST_WAIT_NS = 1000  # shorter waits are not drawn
GPU_LAYERS, GPU_EVENTS = 256, 16  # the kernel's stamps: (SMs, layers, events) int64
# Phases of the consumer warps: name, event at the begin, event at the end (csrc/mk_consumer.cuh).
_PHASES = (("norm", 0, 1), ("qkv", 1, 2), ("attention", 2, 3), ("gate/up", 3, 4), ("o", 4, 6), ("down", 6, 7))
_MARKS = {8: "qkv stored", 9: "gate/up stored", 10: "down stored", 12: "merged", 13: "routed", 15: "route made"}


@dataclass(frozen=True, slots=True)
class Slice:
    """What a processor did from `begin_ns` to `end_ns` (equal: a mark). `details` are shown when it is selected."""

    processor: int
    name: str
    category: str
    begin_ns: int
    end_ns: int
    details: dict[str, int]


def cpu_slices(stamps: Sequence[NDArray[np.void]]) -> list[Slice]:
    """Tasks and the waits before them, from `CpuBackend.stamps()`."""
    slices: list[Slice] = []
    for processor, tasks in enumerate(stamps):
        for task in tasks:
            taken, begun, ended = (int(task[name]) for name in ("taken", "begun", "ended"))
            name = f"L{int(task['layer'])} {Opcode(int(task['opcode'])).name}"
            details = {key: int(task[key]) for key in ("step", "ordinal", "tile_begin", "tile_count")}
            if begun - taken >= SHORTEST_WAIT_NS:
                slices.append(Slice(processor, f"wait for {name}", "wait", taken, begun, details))
            slices.append(Slice(processor, name, "task", begun, ended, details))
    return slices


def gpu_slices(stamps: NDArray[np.int64]) -> list[Slice]:
    """Phases and marks of one step from stamps (SMs, GPU_LAYERS, GPU_EVENTS) in ns; 0: the event did not occur."""
    slices: list[Slice] = []
    for sm, layers in enumerate(stamps):
        for layer in np.flatnonzero(layers.any(axis=1)):
            at = layers[layer]
            for name, first, last in _PHASES:
                if 0 < at[first] <= at[last]:
                    slices.append(Slice(sm, f"L{layer} {name}", "task", int(at[first]), int(at[last]), {}))
            for event, name in _MARKS.items():
                if at[event]:
                    slices.append(Slice(sm, f"L{layer} {name}", "mark", int(at[event]), int(at[event]), {}))
    return slices


def write_trace(path: Path, slices: Sequence[Slice], processor: str) -> None:
    """Writes the Chrome trace format; `processor` names a row of the picture ("worker", "SM")."""
    origin = min((s.begin_ns for s in slices), default=0)
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": p, "args": {"name": f"{processor} {p}"}}
        for p in sorted({s.processor for s in slices})
    ]
    events = [_event(s, origin) for s in sorted(slices, key=lambda s: (s.begin_ns, -s.end_ns))]
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": names + events}), encoding="utf-8")


def _event(s: Slice, origin: int) -> dict[str, object]:
    event: dict[str, object] = {
        "name": s.name, "cat": s.category, "pid": 0, "tid": s.processor, "ts": (s.begin_ns - origin) / 1e3,
        "args": s.details,
    }  # fmt: skip
    if s.category == "mark":
        return event | {"ph": "i", "s": "t"}
    return event | {"ph": "X", "dur": (s.end_ns - s.begin_ns) / 1e3}


def summary(slices: Iterable[Slice]) -> str:
    """One line per category of time and per kind of task, the longest first."""
    totals: dict[str, int] = {}
    for s in slices:
        kind = "waiting" if s.category == "wait" else s.name.partition(" ")[2]
        totals[kind] = totals.get(kind, 0) + s.end_ns - s.begin_ns
    everything = sum(totals.values()) or 1
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return "\n".join(f"  {kind:<22} {ns / 1e6:9.3f} ms  {ns / everything:6.1%}" for kind, ns in ranked if ns)

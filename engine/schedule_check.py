"""Proves that a schedule may run: no cycle, right wait targets, every read after all its writes, no early overwrite.

A counter does not know who arrived, so every wait must equal the number of tasks that signal the counter; then a wait
means "all of them are done". The lists are executed symbolically once with vector clocks (one entry per processor),
which finds cycles; then each access is compared with the writers and readers of its cells.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .errors import ScheduleError
from .scheduler import Schedule
from .task_access import Access, accesses
from .tasks import ModelPlan, describe

Clock = NDArray[np.int32]


def check(plan: ModelPlan, schedule: Schedule) -> None:
    """Returns if the schedule is sound; raises ScheduleError that names the task and the fault otherwise."""
    _check_targets(schedule)
    clocks = _clocks(schedule)
    owner, index = _places(schedule)
    touched = _collect(plan, schedule)
    for (buffer, version), use in touched.items():
        _check_writers(schedule, buffer, version, use)
        if version > 0 or buffer != "residual":
            _check_reads(schedule, buffer, version, use, clocks, owner, index)
        older = [v for b, v in touched if b == buffer and v < version]
        if older:
            _check_overwrite(schedule, buffer, version, use, touched[buffer, max(older)], clocks, owner, index)


# ------------------------------------------------------------------------------------------------ counters, order
def _check_targets(schedule: Schedule) -> None:
    signals = schedule.tasks["signal"]
    producers = np.bincount(signals[signals >= 0], minlength=schedule.n_counters)
    for slot in range(schedule.tasks["wait_counter"].shape[1]):
        counters, targets = schedule.tasks["wait_counter"][:, slot], schedule.tasks["wait_target"][:, slot]
        used = np.flatnonzero(counters >= 0)
        wrong = used[targets[used] != producers[counters[used]]]
        if wrong.size:
            at = int(wrong[0])
            counter = int(counters[at])
            raise ScheduleError(
                f"{_name(schedule, at)} waits for {int(targets[at])} on counter {counter} "
                f"({schedule.wave_names[counter]}), which {int(producers[counter])} tasks signal"
            )


def _places(schedule: Schedule) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Processor of each task, and its position in that processor's list counted from 1."""
    counts = np.diff(schedule.offsets)
    owner = np.repeat(np.arange(schedule.n_processors, dtype=np.int32), counts)
    index = np.arange(len(schedule.tasks), dtype=np.int32) - schedule.offsets[owner] + 1
    return owner, index


def _clocks(schedule: Schedule) -> NDArray[np.int32]:
    """(n_tasks, n_processors): how far into each processor's list the work is done when a task ends."""
    n = schedule.n_processors
    clocks = np.zeros((len(schedule.tasks), n), np.int32)
    reached = np.zeros((schedule.n_counters, n), np.int32)
    arrived = [0] * schedule.n_counters
    waits = schedule.tasks["wait_counter"].tolist()
    targets = schedule.tasks["wait_target"].tolist()
    signals = schedule.tasks["signal"].tolist()
    at = schedule.offsets[:-1].tolist()
    ends = schedule.offsets[1:].tolist()
    moved = True
    while moved:
        moved = False
        for p in range(n):
            while at[p] < ends[p]:
                task = at[p]
                wanted = [(c, t) for c, t in zip(waits[task], targets[task], strict=True) if c >= 0]
                if any(arrived[c] < t for c, t in wanted):
                    break
                clock = clocks[task]
                if task > schedule.offsets[p]:
                    clock[:] = clocks[task - 1]
                for c, _ in wanted:
                    np.maximum(clock, reached[c], out=clock)
                clock[p] = task - int(schedule.offsets[p]) + 1
                if signals[task] >= 0:
                    arrived[signals[task]] += 1
                    np.maximum(reached[signals[task]], clock, out=reached[signals[task]])
                at[p] += 1
                moved = True
    stuck = [p for p in range(n) if at[p] < ends[p]]
    if stuck:
        task = at[stuck[0]]
        counter, target = next(
            (c, t) for c, t in zip(waits[task], targets[task], strict=True) if c >= 0 and arrived[c] < t
        )
        raise ScheduleError(
            f"cycle: {_name(schedule, task)} on processor {stuck[0]} waits for {target} on counter {counter} "
            f"({schedule.wave_names[counter]}), which can only reach {arrived[counter]}"
        )
    return clocks


# ------------------------------------------------------------------------------------------------ data
@dataclass(slots=True)
class _Use:
    """Who touches one version of a buffer."""

    writers: list[tuple[int, Access]] = field(default_factory=list[tuple[int, Access]])
    readers: list[tuple[int, Access]] = field(default_factory=list[tuple[int, Access]])


def _collect(plan: ModelPlan, schedule: Schedule) -> dict[tuple[str, int], _Use]:
    touched: dict[tuple[str, int], _Use] = defaultdict(_Use)
    seen: dict[tuple[Access, ...], int] = {}
    for i, task in enumerate(schedule.tasks):
        reads, writes = accesses(plan, task)
        exclusive = tuple(w for w in writes if not w.shared and w.hi > w.lo)
        if exclusive and exclusive in seen:
            raise ScheduleError(
                f"{_name(schedule, i)} repeats {_name(schedule, seen[exclusive])}: "
                f"counter {int(task['signal'])} is signalled twice for one piece of work"
            )
        seen[exclusive] = i
        for access in reads:
            touched[access.buffer, access.version].readers.append((i, access))
        for access in writes:
            touched[access.buffer, access.version].writers.append((i, access))
    return touched


def _check_writers(schedule: Schedule, buffer: str, version: int, use: _Use) -> None:
    spans = sorted((a.lo, a.hi, i) for i, a in use.writers if not a.shared and a.hi > a.lo)
    for (_, end, first), (start, _, second) in zip(spans, spans[1:], strict=False):
        if start < end:
            raise ScheduleError(
                f"{_name(schedule, first)} and {_name(schedule, second)} both write {buffer} v{version} at cell {start}"
            )


def _arrays(entries: list[tuple[int, Access]]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    tasks = np.array([i for i, _ in entries], np.int64)
    return tasks, np.array([a.lo for _, a in entries], np.int64), np.array([a.hi for _, a in entries], np.int64)


def _check_reads(
    schedule: Schedule,
    buffer: str,
    version: int,
    use: _Use,
    clocks: NDArray[np.int32],
    owner: NDArray[np.int32],
    index: NDArray[np.int32],
) -> None:
    if not use.readers:
        return
    writers, lo, hi = _arrays(use.writers)
    covered: set[tuple[int, int]] = set()
    for task, read in use.readers:
        over = (lo < read.hi) & (hi > read.lo)
        if (read.lo, read.hi) not in covered:
            _check_cover(schedule, buffer, version, task, read, lo[over], hi[over])
            covered.add((read.lo, read.hi))
        mine = writers[over]
        late = mine[(clocks[task, owner[mine]] < index[mine]) & (mine != task)]
        if late.size:
            raise ScheduleError(
                f"{_name(schedule, task)} reads {buffer} v{version} without waiting for "
                f"{_name(schedule, int(late[0]))}, which writes it"
            )


def _check_cover(
    schedule: Schedule, buffer: str, version: int, task: int, read: Access, lo: NDArray[np.int64], hi: NDArray[np.int64]
) -> None:
    reach = read.lo
    for start, end in sorted(zip(lo.tolist(), hi.tolist(), strict=True)):
        if start > reach:
            break
        reach = max(reach, end)
    if reach < read.hi:
        raise ScheduleError(f"{_name(schedule, task)} reads {buffer} v{version} at cell {reach}, which no task writes")


def _check_overwrite(
    schedule: Schedule,
    buffer: str,
    version: int,
    use: _Use,
    older: _Use,
    clocks: NDArray[np.int32],
    owner: NDArray[np.int32],
    index: NDArray[np.int32],
) -> None:
    before = older.readers + older.writers
    if not before or not use.writers:
        return
    tasks, lo, hi = _arrays(before)
    for task, write in use.writers:
        mine = tasks[(lo < write.hi) & (hi > write.lo)]
        early = mine[(clocks[task, owner[mine]] < index[mine]) & (mine != task)]
        if early.size:
            raise ScheduleError(
                f"{_name(schedule, task)} overwrites {buffer} with v{version} while "
                f"{_name(schedule, int(early[0]))} may still use the version before"
            )


def _name(schedule: Schedule, at: int) -> str:
    return describe(schedule.tasks[at], schedule.wave_names)

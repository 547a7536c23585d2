"""Proves that a schedule may run: sensible fields, no cycle, right wait targets, every read after all its writes, no
early overwrite, all logits in the end.

A counter does not know who arrived, so every wait must equal the number of tasks that signal the counter; then a wait
means "all of them are done". The lists are executed symbolically once with vector clocks (one entry per processor),
which finds cycles; then each access is compared with the writers and readers of its cells.

Whoever must come after several tasks must come after the last of them on each processor; so what an access has to wait
for is one number a processor, and all accesses of the same cells are compared at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ScheduleError
from .schedule_fields import check_fields
from .scheduler import Schedule
from .task_access import Access, accesses, alike
from .tasks import TILE_ROWS, ModelPlan


def check(plan: ModelPlan, schedule: Schedule) -> None:
    """Returns if the schedule is sound; raises ScheduleError that names the task and the fault otherwise."""
    check_fields(plan, schedule)
    _check_targets(schedule)
    clocks = _clocks(schedule)
    touched = _collect(plan, schedule)
    _check_repeats(plan, schedule, touched)
    places = _places(schedule)
    for (buffer, version), use in touched.items():
        what = f"{buffer} v{version}"
        _check_writers(schedule, what, use.writes)
        if version > 0 or buffer != "residual":
            _check_reads(schedule, what, use, clocks, places)
        older = [v for b, v in touched if b == buffer and v < version]
        if older:
            before = touched[buffer, max(older)]
            _check_overwrite(schedule, buffer, version, use.writes, before, clocks, places)
    _check_result(plan, touched)


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
                f"{schedule.task_name(at)} waits for {int(targets[at])} on counter {counter} "
                f"({schedule.wave_names[counter]}), which {int(producers[counter])} tasks signal"
            )


def _places(schedule: Schedule) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Processor of each task, and its position in that processor's list counted from 1."""
    counts = np.diff(schedule.offsets)
    owner = np.repeat(np.arange(schedule.n_processors, dtype=np.int32), counts)
    index = np.arange(len(schedule.tasks), dtype=np.int32) - schedule.offsets[owner] + 1
    return owner, index


def _clocks(schedule: Schedule) -> NDArray[np.int32]:
    """(n_tasks, n_processors): how far into each processor's list the work is done when a task ends.

    Every processor runs its next task if it can, all together, until none can.
    """
    n, begins, ends = schedule.n_processors, schedule.offsets[:-1], schedule.offsets[1:]
    clocks = np.zeros((len(schedule.tasks), n), np.int32)
    reached = np.zeros((schedule.n_counters + 2, n), np.int32)  # the last two: of tasks that wait for or signal none
    arrived = np.zeros(schedule.n_counters + 2, np.int64)
    waits, targets = schedule.tasks["wait_counter"], schedule.tasks["wait_target"]
    waits = np.where(waits < 0, schedule.n_counters, waits)
    targets = np.where(waits == schedule.n_counters, 0, targets)
    signals = np.where(schedule.tasks["signal"] < 0, schedule.n_counters + 1, schedule.tasks["signal"])
    at = begins.astype(np.int64)
    while True:
        live = (at < ends).nonzero()[0]
        ready = live[(arrived[waits[at[live]]] >= targets[at[live]]).all(1)]
        if not ready.size:
            break
        tasks = at[ready]
        made = reached[waits[tasks]].max(1)
        later = (tasks > begins[ready]).nonzero()[0]
        made[later] = np.maximum(made[later], clocks[tasks[later] - 1])
        made[np.arange(len(ready)), ready] = tasks - begins[ready] + 1
        clocks[tasks] = made
        np.add.at(arrived, signals[tasks], 1)
        np.maximum.at(reached, signals[tasks], made)
        at[ready] += 1
    if live.size:
        p, task = int(live[0]), int(at[live[0]])
        slot = int(np.flatnonzero(arrived[waits[task]] < targets[task])[0])
        counter, target = int(waits[task, slot]), int(targets[task, slot])
        raise ScheduleError(
            f"cycle: {schedule.task_name(task)} on processor {p} waits for {target} on counter {counter} "
            f"({schedule.wave_names[counter]}), which can only reach {int(arrived[counter])}"
        )
    return clocks


# ------------------------------------------------------------------------------------------------ data
class _Spans:
    """Who touches which cells of one version of a buffer: tasks and cells [lo, hi), (n,) each, in order of tasks."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.int64]] = []

    def add(self, tasks: NDArray[np.int64], access: Access) -> None:
        part = np.empty((4, len(tasks)), np.int64)
        part[0], part[1], part[2], part[3] = tasks, access.lo, access.hi, access.shared
        self._parts.append(part)

    def table(self) -> NDArray[np.int64]:
        """(4, n): task, lo, hi, shared."""
        if not self._parts:
            return np.zeros((4, 0), np.int64)
        table = np.concatenate(self._parts, 1)
        return table[:, np.argsort(table[0], kind="stable")]


@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    """Who touches one version of a buffer: (4, n) int64 each, rows task, lo, hi, shared."""

    reads: NDArray[np.int64]
    writes: NDArray[np.int64]


Touched = dict[tuple[str, int], _Use]


def _collect(plan: ModelPlan, schedule: Schedule) -> Touched:
    spans: dict[tuple[str, int], tuple[_Spans, _Spans]] = defaultdict(lambda: (_Spans(), _Spans()))
    for group in alike(schedule.tasks):
        for side, found in enumerate(accesses(plan, schedule.tasks[group])):
            for access in found:
                spans[access.buffer, access.version][side].add(group, access)
    return {key: _Use(reads.table(), writes.table()) for key, (reads, writes) in spans.items()}


def _exclusive(writes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(4, n): the writes that are somebody's alone, by cell."""
    mine = writes[:, (writes[3] == 0) & (writes[2] > writes[1])]
    return mine[:, np.lexsort((mine[0], mine[2], mine[1]))]


def _check_repeats(plan: ModelPlan, schedule: Schedule, touched: Touched) -> None:
    for use in touched.values():
        tasks, lo, hi, _ = _exclusive(use.writes)
        for i in ((lo[1:] == lo[:-1]) & (hi[1:] == hi[:-1])).nonzero()[0]:
            first, second = int(tasks[i]), int(tasks[i + 1])
            if _own(plan, schedule, first) == _own(plan, schedule, second):
                raise ScheduleError(
                    f"{schedule.task_name(second)} repeats {schedule.task_name(first)}: "
                    f"counter {int(schedule.tasks['signal'][second])} is signalled twice for one piece of work"
                )


def _own(plan: ModelPlan, schedule: Schedule, task: int) -> set[tuple[str, int, int, int]]:
    """The cells that nobody else may write."""
    writes = accesses(plan, schedule.tasks[task : task + 1])[1]
    cells = [(w.buffer, w.version, int(np.max(w.lo)), int(np.max(w.hi))) for w in writes if not w.shared]
    return {cell for cell in cells if cell[3] > cell[2]}


def _check_writers(schedule: Schedule, what: str, writes: NDArray[np.int64]) -> None:
    tasks, lo, hi, _ = _exclusive(writes)
    for i in (lo[1:] < hi[:-1]).nonzero()[0]:
        raise ScheduleError(
            f"{schedule.task_name(int(tasks[i]))} and {schedule.task_name(int(tasks[i + 1]))} both write {what} "
            f"at cell {int(lo[i + 1])}"
        )


Places = tuple[NDArray[np.int32], NDArray[np.int32]]  # processor of a task, and its position there from 1


def _check_reads(schedule: Schedule, what: str, use: _Use, clocks: NDArray[np.int32], places: Places) -> None:
    if not use.reads.size:
        return
    _check_cover(schedule, what, use)
    for task, writer in _unawaited(use.reads, use.writes, clocks, places):
        raise ScheduleError(
            f"{schedule.task_name(task)} reads {what} without waiting for {schedule.task_name(writer)}, which writes it"
        )


def _check_cover(schedule: Schedule, what: str, use: _Use) -> None:
    """Every cell that is read is written by somebody."""
    order = np.argsort(use.writes[1], kind="stable")
    lo, reach = use.writes[1][order], np.maximum.accumulate(use.writes[2][order])
    if not lo.size:
        lo, reach = np.full(1, -1), np.full(1, -1)
    starts = np.flatnonzero(np.concatenate([[True], lo[1:] > reach[:-1]]))  # of runs of cells without a gap
    run = np.maximum(np.searchsorted(lo[starts], use.reads[1], "right") - 1, 0)
    end = np.append(starts[1:], len(lo))[run] - 1
    covered_to = np.where(lo[starts[run]] <= use.reads[1], np.maximum(reach[end], use.reads[1]), use.reads[1])
    for i in ((covered_to < use.reads[2]) & (use.reads[2] > use.reads[1])).nonzero()[0]:
        task, cell = int(use.reads[0, i]), int(covered_to[i])
        raise ScheduleError(f"{schedule.task_name(task)} reads {what} at cell {cell}, which no task writes")


def _check_result(plan: ModelPlan, touched: Touched) -> None:
    """All logits are written: the sampler reads them behind the lists. No two tasks write one of them, see above."""
    use, n_tiles = touched.get(("logits", plan.n_layers)), -(-plan.vocab // TILE_ROWS)
    n_written = int((use.writes[2] - use.writes[1]).sum()) if use is not None else 0
    if n_written != n_tiles:
        raise ScheduleError(f"{n_written} of {n_tiles} tiles of the logits are written")


def _check_overwrite(
    schedule: Schedule,
    buffer: str,
    version: int,
    writes: NDArray[np.int64],
    older: _Use,
    clocks: NDArray[np.int32],
    places: Places,
) -> None:
    before = np.concatenate([older.reads, older.writes], 1)
    for task, user in _unawaited(writes, before, clocks, places):
        raise ScheduleError(
            f"{schedule.task_name(task)} overwrites {buffer} with v{version} while "
            f"{schedule.task_name(user)} may still use the version before"
        )


def _unawaited(
    later: NDArray[np.int64], earlier: NDArray[np.int64], clocks: NDArray[np.int32], places: Places
) -> Iterator[tuple[int, int]]:
    """(task, other) where `task` touches cells that `other` touches and does not come after it. Both (4, n)."""
    if not later.size or not earlier.size:
        return
    owner, index = places
    theirs, whose = _unique_cells(earlier)
    last = np.zeros((theirs.shape[1], clocks.shape[1]), np.int32)  # (their cells, processors): to be waited for
    np.maximum.at(last, (whose, owner[earlier[0]]), index[earlier[0]])
    cells, which = _unique_cells(later)
    at, other = np.nonzero((theirs[0] < cells[1][:, None]) & (theirs[1] > cells[0][:, None]))
    wanted = np.zeros((cells.shape[1], clocks.shape[1]), np.int32)
    if at.size:
        starts = _is_new(at[None]).nonzero()[0]
        wanted[at[starts]] = np.maximum.reduceat(last[other], starts)
    for i in np.flatnonzero((clocks[later[0]] < wanted[which]).any(1)):
        task, at = int(later[0, i]), np.flatnonzero((earlier[1] < later[2, i]) & (earlier[2] > later[1, i]))
        others = earlier[0, at]
        yield task, int(others[clocks[task, owner[others]] < index[others]][0])


def _unique_cells(spans: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(2, m) different [lo, hi), and which of them each span has."""
    order = np.lexsort((spans[2], spans[1]))
    cells = spans[1:3, order]
    is_new = _is_new(cells)
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(is_new) - 1
    return cells[:, is_new], which


def _is_new(columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,): which columns of (m, n) differ from the one before."""
    new = np.ones(columns.shape[1], np.bool_)
    np.any(columns[:, 1:] != columns[:, :-1], axis=0, out=new[1:])
    return new

"""Whether every field of every task is one that its opcode can have in this model.

This comes before everything else that is proved: what a task reads and writes is computed from its fields, and a tile
or a layer that the model does not have would be read from, or written to, memory of somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ScheduleError
from .scheduler import Schedule
from .task_access import TaskView, alike
from .tasks import (
    NONE,
    SLICE_ONE,
    TILE_ROWS,
    UNITS_PER_UPGATE_TILE,
    LayerPlan,
    ModelPlan,
    Opcode,
    TaskFlag,
)

_MAX_ROWS = 8
_DENSE = (Opcode.FFN_UPGATE_ACT, Opcode.FFN_DOWN)
_MOE = (
    Opcode.ROUTER_GEMM, Opcode.ROUTER_TOPK, Opcode.ROUTE_FINALIZE, Opcode.MOE_GATHER, Opcode.MOE_UPGATE_ACT_DRAIN,
    Opcode.MOE_DOWN_DRAIN, Opcode.MOE_COMBINE,
)  # fmt: skip
_OF_NORMED = (
    Opcode.QKV_PROJ, Opcode.FFN_UPGATE_ACT, Opcode.ROUTER_GEMM, Opcode.MOE_GATHER, Opcode.MOE_UPGATE_ACT_DRAIN,
)  # fmt: skip
_OF_ROUTE = (Opcode.MOE_GATHER, Opcode.MOE_UPGATE_ACT_DRAIN, Opcode.MOE_DOWN_DRAIN)
_ONE_ITEM = (Opcode.ATTN_DECODE, Opcode.MOE_COMBINE)  # and one split of it
_OF_QUEUE = ("opcode", "layer", "flags", "n_splits", "claim_begin")


def check_fields(plan: ModelPlan, schedule: Schedule) -> None:
    """Returns if a task can be what it says; raises ScheduleError that names it and the field otherwise."""
    _check_lists(schedule)
    _check_names(schedule)
    for group in alike(schedule.tasks):
        _check_alike(plan, schedule, group)
    _check_queues(schedule)


def _check_lists(schedule: Schedule) -> None:
    offsets = schedule.offsets
    if schedule.n_processors < 1 or offsets.shape != (schedule.n_processors + 1,):
        raise ScheduleError(f"{offsets.shape} offsets do not fit {schedule.n_processors} processors")
    if offsets[0] != 0 or offsets[-1] != len(schedule.tasks) or (np.diff(offsets) < 0).any():
        raise ScheduleError(f"the lists of the processors are not the {len(schedule.tasks)} tasks, one after the other")


def _check_names(schedule: Schedule) -> None:
    """Counters, queues, waves and opcodes that there are."""
    tasks = schedule.tasks
    for field, least, n in (
        ("wait_counter", NONE, schedule.n_counters),
        ("signal", NONE, schedule.n_counters),
        ("queue", NONE, schedule.n_queues),
        ("wave", 0, len(schedule.wave_names)),
        ("opcode", 0, len(Opcode.__members__)),
        ("n_rows", schedule.n_rows, schedule.n_rows + 1),
    ):
        values = tasks[field].reshape(len(tasks), -1)
        bad = np.flatnonzero(((values < least) | (values >= n)).any(1))
        if bad.size:
            at = int(bad[0])
            raise ScheduleError(
                f"task {int(tasks['ordinal'][at])}: {field} {values[at].tolist()} is not in [{least}, {n})"
            )
    if not 1 <= schedule.n_rows <= _MAX_ROWS:
        raise ScheduleError(f"a step runs 1 to {_MAX_ROWS} rows, not {schedule.n_rows}")


# ------------------------------------------------------------------------------------------------ fields of an opcode
@dataclass(frozen=True, slots=True)
class _Form:
    """What tasks of an opcode are like in a layer: tiles there are (0: it takes none), reduction length in tiles (0: no
    product), parts of each item, flags that it must have and those that it may have."""

    n_tiles: int
    k_tiles: int = 0
    n_splits: int = 1
    flags: int = 0
    optional: int = 0


def _check_alike(plan: ModelPlan, schedule: Schedule, group: NDArray[np.int64]) -> None:
    tasks = schedule.tasks[group]
    task = TaskView(tasks)
    form = _form(plan, schedule, task)
    if form is None:
        raise ScheduleError(f"{schedule.task_name(group[0])}: layer {task.layer} has no such work")
    if task.flags & ~form.optional != form.flags:
        raise ScheduleError(
            f"{schedule.task_name(group[0])} has flags {task.flags:#x}, "
            f"not {form.flags:#x} and any of {form.optional:#x}"
        )
    beyond = (task.first < 0) | (task.count < 1) | (task.first + task.count > form.n_tiles)
    is_one, is_sliced = task.opcode in _ONE_ITEM, _is_sliced_upgate(task)
    sliced = (task.lo < 0) | (task.lo > task.hi) | (task.hi > task.claim) | (task.claim > SLICE_ONE)
    ahead = tasks["ahead_tile"]
    faults = {  # what an opcode has no use for is as make_tasks leaves it
        "tiles": beyond if form.n_tiles else (task.first != 0) | (task.count != 1),
        "tile_count": (task.count != 1) & is_one,
        "k_tiles": tasks["k_tiles"] != form.k_tiles,
        "split": (task.split < 0) | (task.split >= (task.n_splits if is_one else 1)),
        "n_splits": tasks["n_splits"] != form.n_splits if form.n_splits else tasks["n_splits"] < 1,
        "slice": sliced if is_sliced else (task.lo != 0) | (task.hi != SLICE_ONE) | (task.claim != SLICE_ONE),
        "ahead_tile": (ahead < NONE) | (ahead >= (plan.hidden_tiles if is_sliced else 0)),
        "queue": (tasks["queue"] >= 0) != _claims(task),
    }
    for field, wrong in faults.items():
        if np.any(wrong):
            at = int(group[np.flatnonzero(wrong)[0]])
            raise ScheduleError(f"{schedule.task_name(at)}: {field} is none that this opcode can have here")


def _is_sliced_upgate(task: TaskView) -> bool:
    return task.opcode == Opcode.MOE_UPGATE_ACT_DRAIN and task.has(TaskFlag.SLICED)


def _claims(task: TaskView) -> bool:
    """Whether it takes items from a queue."""
    if task.opcode == Opcode.MOE_DOWN_DRAIN:
        return not task.has(TaskFlag.SLICED)
    return task.opcode in (Opcode.ATTN_DRAIN, Opcode.MOE_UPGATE_ACT_DRAIN)


def _form(plan: ModelPlan, schedule: Schedule, task: TaskView) -> _Form | None:
    """None where the layer has no such work."""
    opcode = Opcode(task.opcode)
    is_last = task.layer == plan.n_layers
    if opcode == Opcode.LM_HEAD:
        fused = int(TaskFlag.FUSED_NORM) | int(TaskFlag.FINAL) if task.flags else 0
        return _Form(-(-plan.vocab // TILE_ROWS), plan.hidden_tiles, flags=fused) if is_last else None
    if opcode == Opcode.ADD_RMSNORM and is_last and not task.has(TaskFlag.FFN_NORM):
        return _Form(task.n_rows, flags=_norm_flags(plan, task) | int(TaskFlag.FINAL))
    if not 0 <= task.layer < plan.n_layers:
        return None
    spec = plan.layers[task.layer]
    if opcode in (_DENSE if spec.moe else _MOE):
        return None
    return _of_layer(plan, schedule, spec, task, opcode)


def _norm_flags(plan: ModelPlan, task: TaskView) -> int:
    """What a norm has to add to the residual before."""
    attention, ffn = int(TaskFlag.ADD_ATTN), int(TaskFlag.ADD_FFN)
    if task.has(TaskFlag.FFN_NORM):
        return attention | int(TaskFlag.FFN_NORM)
    return 0 if task.layer == 0 else attention | ffn if plan.parallel_block else ffn


def _of_layer(plan: ModelPlan, schedule: Schedule, spec: LayerPlan, task: TaskView, opcode: Opcode) -> _Form | None:
    rows, hidden, width = task.n_rows, plan.hidden_tiles, spec.intermediate // TILE_ROWS
    sliding = int(TaskFlag.SLIDING) if spec.sliding else 0
    optional = _optional(plan, task, opcode)
    match opcode:
        case Opcode.ADD_RMSNORM:
            if task.has(TaskFlag.FFN_NORM) and plan.parallel_block:
                return None
            return _Form(rows, flags=_norm_flags(plan, task))
        case Opcode.QKV_PROJ:
            rope = int(TaskFlag.ROPE) if spec.rope else 0
            return _Form(plan.qkv_tiles, hidden, flags=sliding | rope, optional=optional)
        case Opcode.ATTN_DECODE:
            return _Form(plan.n_kv_heads, n_splits=schedule.n_splits, flags=sliding)
        case Opcode.ATTN_DRAIN:
            return _Form(0, n_splits=schedule.n_splits, flags=sliding)
        case Opcode.ATTN_COMBINE:
            return _Form(rows * plan.attn_tiles, n_splits=schedule.n_splits)
        case Opcode.O_PROJ:
            return _Form(hidden, plan.attn_tiles)
        case Opcode.FFN_UPGATE_ACT:
            return _Form(spec.intermediate // UNITS_PER_UPGATE_TILE, hidden, optional=optional)
        case Opcode.FFN_DOWN:
            return _Form(hidden, width, optional=optional)
        case Opcode.ROUTER_GEMM:
            return _Form(plan.router_tiles, hidden, optional=optional)
        case Opcode.ROUTER_TOPK:
            return _Form(rows)
        case Opcode.ROUTE_FINALIZE:
            return _Form(1)
        case Opcode.MOE_GATHER:
            return _Form(rows * plan.top_k, optional=optional)
        case Opcode.MOE_UPGATE_ACT_DRAIN:
            return _Form(0, hidden, optional=optional)
        case Opcode.MOE_DOWN_DRAIN:
            return _Form(hidden if task.has(TaskFlag.SLICED) else 0, width, optional=optional)
        case _:
            return _Form(rows, n_splits=0)


def _optional(plan: ModelPlan, task: TaskView, opcode: Opcode) -> int:
    """Flags that say how the same is done: a norm or a route of one's own, slices, the sum with the residual."""
    flags = 0
    if not plan.parallel_block:
        return flags
    is_down = opcode in (Opcode.FFN_DOWN, Opcode.MOE_DOWN_DRAIN)
    sliced = task.has(TaskFlag.SLICED)
    if opcode in (Opcode.MOE_UPGATE_ACT_DRAIN, Opcode.MOE_DOWN_DRAIN):
        flags |= int(TaskFlag.SLICED)
    if opcode in _OF_ROUTE:
        flags |= int(TaskFlag.FUSED_TOPK)
    if opcode in _OF_NORMED and (sliced or opcode != Opcode.MOE_UPGATE_ACT_DRAIN):
        flags |= int(TaskFlag.FUSED_NORM)
    if is_down and (sliced or opcode == Opcode.FFN_DOWN):
        flags |= int(TaskFlag.ADD_RESIDUAL)
    return flags


# ------------------------------------------------------------------------------------------------ queues
def _check_queues(schedule: Schedule) -> None:
    """Who claims from one queue does the same work, and nobody else does that work with another queue."""
    claimers = np.flatnonzero(schedule.tasks["queue"] >= 0)
    seen: dict[int, tuple[tuple[int, ...], int]] = {}
    works: dict[tuple[int, ...], int] = {}
    for at in claimers.tolist():
        task = schedule.tasks[at]
        queue, work = int(task["queue"]), tuple(int(task[name]) for name in _OF_QUEUE)
        known, first = seen.setdefault(queue, (work, at))
        other = works.setdefault(work[:2], queue)
        if known != work or other != queue:
            raise ScheduleError(
                f"{schedule.task_name(at)} claims from queue {queue}, {schedule.task_name(first)} from {other}: "
                "the queue of a wave is for its own items, all of them alike"
            )

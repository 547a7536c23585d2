"""What each task reads and writes, as cells of versioned buffers: the data that `check` proves a schedule with.

A cell is a tile (16 elements of a row), an item or a batch row; rows share cells where every task covers all rows.
Tasks that differ in nothing but their cells are looked at together: then a cell is an array, one entry a task.
Versions count how often a buffer has been written: residual and normed have two versions a layer (serial blocks write
twice), everything else one. docs/tasks.md is the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .tasks import SLICE_ONE, UNITS_PER_UPGATE_TILE, ModelPlan, Opcode, TaskFlag, Tasks

Cell = int | NDArray[np.int64]  # of all tasks of a group, or (n_tasks,): of each
_ALIKE = ("opcode", "layer", "flags", "n_rows", "n_splits")


@dataclass(frozen=True, slots=True)
class Access:
    """Cells [lo, hi) of one version of a buffer. `shared`: one of several claimers that write the whole together."""

    buffer: str
    version: int
    lo: Cell
    hi: Cell
    shared: bool = False


Accesses = tuple[list[Access], list[Access]]


class TaskView:
    """The fields of tasks that are alike in opcode, layer, flags, rows and splits; the others are (n_tasks,)."""

    __slots__ = ("claim", "count", "first", "flags", "hi", "layer", "lo", "n_rows", "n_splits", "opcode", "split")

    def __init__(self, tasks: Tasks) -> None:
        self.opcode, self.layer, self.flags, self.n_rows, self.n_splits = (int(tasks[name][0]) for name in _ALIKE)
        self.first, self.count = tasks["tile_begin"].astype(np.int64), tasks["tile_count"].astype(np.int64)
        self.split, self.claim = tasks["split"].astype(np.int64), tasks["claim_begin"].astype(np.int64)
        self.lo, self.hi = tasks["slice_lo"].astype(np.int64), tasks["slice_hi"].astype(np.int64)

    def has(self, flag: int) -> bool:
        """Whether the tasks have this flag."""
        return bool(self.flags & int(flag))


def alike(tasks: Tasks) -> Iterator[NDArray[np.int64]]:
    """Indices of tasks that are alike, in groups."""
    key = np.zeros(len(tasks), np.int64)
    for name in _ALIKE:
        values, which = np.unique(tasks[name], return_inverse=True)
        key = key * len(values) + which
    order = np.argsort(key, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def accesses(plan: ModelPlan, tasks: Tasks) -> Accesses:
    """(reads, writes) of tasks that are alike."""
    task = TaskView(tasks)
    match Opcode(task.opcode):
        case Opcode.ADD_RMSNORM:
            return _norm(plan, task)
        case Opcode.QKV_PROJ:
            return [_source(plan, task)], [_tiles("qkv", task)]
        case Opcode.ATTN_DECODE | Opcode.ATTN_DRAIN | Opcode.ATTN_COMBINE | Opcode.O_PROJ:
            return _attention(plan, task)
        case Opcode.FFN_UPGATE_ACT:
            return [_source(plan, task, ffn=True)], [_tiles("ffn_hidden", task)]
        case Opcode.FFN_DOWN:
            width = plan.layers[task.layer].intermediate // UNITS_PER_UPGATE_TILE
            return _down(plan, task, Access("ffn_hidden", task.layer, 0, width))
        case Opcode.LM_HEAD:
            return [_source(plan, task)], [_tiles("logits", task)]
        case _:
            return _moe(plan, task)


def _tiles(buffer: str, task: TaskView) -> Access:
    return Access(buffer, task.layer, task.first, task.first + task.count)


def _whole(buffer: str, version: int, n: int, *, shared: bool = False) -> Access:
    return Access(buffer, version, 0, n, shared)


def _row_cells(plan: ModelPlan, buffer: str, version: int, first: Cell, count: Cell) -> Access:
    return Access(buffer, version, first * plan.hidden_tiles, (first + count) * plan.hidden_tiles)


def _all_rows(plan: ModelPlan, buffer: str, version: int, n_rows: int) -> Access:
    return Access(buffer, version, 0, n_rows * plan.hidden_tiles)


def residual_version(plan: ModelPlan, layer: int, *, after_attention: bool = False) -> int:
    """Version of the residual that layer `layer` starts from; 0 is the embedding, written before the lists run."""
    return 2 * layer + (1 if after_attention and not plan.parallel_block else 0)


def _source(plan: ModelPlan, task: TaskView, *, ffn: bool = False) -> Access:
    buffer = "residual" if task.has(TaskFlag.FUSED_NORM) else "normed"
    return _all_rows(plan, buffer, residual_version(plan, task.layer, after_attention=ffn), task.n_rows)


def _norm(plan: ModelPlan, task: TaskView) -> Accesses:
    after = task.has(TaskFlag.FFN_NORM)
    version = residual_version(plan, task.layer, after_attention=after)
    rows = (task.first, task.count)
    adds: list[Access] = []
    if task.has(TaskFlag.ADD_ATTN):
        adds.append(_all_rows(plan, "o_out", task.layer if after else task.layer - 1, task.n_rows))
    if task.has(TaskFlag.ADD_FFN):
        adds.append(_all_rows(plan, "ffn_out", task.layer - 1, task.n_rows))
    normed = _row_cells(plan, "normed", version, *rows)
    if not adds:
        return [_row_cells(plan, "residual", version, *rows)], [normed]
    before = version - 1 if not plan.parallel_block else version - 2
    return [_row_cells(plan, "residual", before, *rows), *adds], [_row_cells(plan, "residual", version, *rows), normed]


def _attention(plan: ModelPlan, task: TaskView) -> Accesses:
    layer, splits = task.layer, task.n_splits
    n_parts = plan.n_kv_heads * splits
    group = plan.qkv_tiles // plan.n_kv_heads
    match task.opcode:
        case Opcode.ATTN_DECODE:
            reads = [Access("qkv", layer, task.first * group, (task.first + task.count) * group)]
            at = task.first * splits + task.split
            return reads, [Access("attn_part", layer, at, at + 1)]
        case Opcode.ATTN_DRAIN:
            return [_whole("qkv", layer, plan.qkv_tiles)], [_whole("attn_part", layer, n_parts, shared=True)]
        case Opcode.ATTN_COMBINE:
            return [_whole("attn_part", layer, n_parts)], [_tiles("attn", task)]
        case _:
            reads = [_whole("attn", layer, task.n_rows * plan.attn_tiles)]
            return reads, _out_tiles(plan, "o_out", layer, task)


def _out_tiles(plan: ModelPlan, buffer: str, version: int, task: TaskView) -> list[Access]:
    """A run of residual tiles, for every row."""
    d = plan.hidden_tiles
    return [Access(buffer, version, r * d + task.first, r * d + task.first + task.count) for r in range(task.n_rows)]


def _down(plan: ModelPlan, task: TaskView, hidden: Access) -> Accesses:
    if not task.has(TaskFlag.ADD_RESIDUAL):
        return [hidden], _out_tiles(plan, "ffn_out", task.layer, task)
    mine = _out_tiles(plan, "o_out", task.layer, task)
    old = _out_tiles(plan, "residual", 2 * task.layer, task)
    return [hidden, *mine, *old], _out_tiles(plan, "residual", 2 * task.layer + 2, task)


def _moe(plan: ModelPlan, task: TaskView) -> Accesses:
    layer, rows = task.layer, task.n_rows
    pairs = rows * plan.top_k
    logits = _whole("router_logits", layer, plan.router_tiles)
    routed = [logits] if task.has(TaskFlag.FUSED_TOPK) else [_whole("route", layer, 1)]
    match task.opcode:
        case Opcode.ROUTER_GEMM:
            return [_source(plan, task)], [_tiles("router_logits", task)]
        case Opcode.ROUTER_TOPK:
            return [logits], [_tiles("topk", task)]
        case Opcode.ROUTE_FINALIZE:
            return [_whole("topk", layer, rows)], [_whole("route", layer, 1)]
        case Opcode.MOE_GATHER:
            return [*routed, _source(plan, task)], [_tiles("moe_in", task)]
        case Opcode.MOE_UPGATE_ACT_DRAIN if task.has(TaskFlag.SLICED):
            claimed = Access("moe_hidden", layer, task.claim, SLICE_ONE, shared=True)
            return [*routed, _source(plan, task)], [Access("moe_hidden", layer, task.lo, task.hi), claimed]
        case Opcode.MOE_UPGATE_ACT_DRAIN:
            return [*routed, _whole("moe_in", layer, pairs)], [_whole("moe_hidden", layer, SLICE_ONE, shared=True)]
        case Opcode.MOE_DOWN_DRAIN if task.has(TaskFlag.SLICED):
            reads, writes = _down(plan, task, _whole("moe_hidden", layer, SLICE_ONE))
            return [*routed, *reads], writes
        case Opcode.MOE_DOWN_DRAIN:
            return [*routed, _whole("moe_hidden", layer, SLICE_ONE)], [_whole("moe_out", layer, 1, shared=True)]
        case _:
            d, at = plan.hidden_tiles, task.first * plan.hidden_tiles
            lo, hi = at + d * task.split // task.n_splits, at + d * (task.split + 1) // task.n_splits
            return [_whole("moe_out", layer, 1)], [Access("ffn_out", layer, lo, hi)]

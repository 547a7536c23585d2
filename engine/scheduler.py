"""Waves to per-processor task lists: named waves in a chosen order, task k to processor k mod N.

`build` makes a `Schedule` for any processor count (132 SMs, or the CPU's threads); `schedule_check.check` proves it
before it runs. Order is data: the published orders use the same waves with the same arithmetic, so they give the same
tokens; `lean` is ours, with fused norms and top-k and few hand-offs (lean_schedule.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ScheduleError
from .lean_schedule import lean_waves
from .tasks import (
    NONE,
    UNITS_PER_UPGATE_TILE,
    LayerPlan,
    ModelPlan,
    Opcode,
    TaskFlag,
    Tasks,
    Wave,
    claimer_tasks,
    describe,
    gemm_tasks,
    joined,
    row_tasks,
    split_tasks,
)

MAX_WAITS = 3
CPU_ATTENTION_SPLITS = 8

# The order of the waves within a layer; waves that a layer does not have are skipped.
ORDERS: dict[str, tuple[str, ...]] = {
    name: tuple(waves.split())
    for name, waves in {
        "shipped": "norm router qkv topk finalize gather attn combine upgate o norm2 upgate2 down moe_combine",
        "interleaved": "norm qkv router attn topk finalize combine gather o norm2 upgate upgate2 down moe_combine",
        "attention_first": "norm qkv attn combine o norm2 router topk finalize gather upgate upgate2 down moe_combine",
    }.items()
}
ORDER_NAMES = (*ORDERS, "lean")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Task lists of one step. Processor p runs `tasks[offsets[p]:offsets[p + 1]]` in order."""

    order: str
    n_rows: int
    n_processors: int
    n_splits: int  # attention splits S
    tasks: Tasks  # (n_tasks,) TASK_DTYPE, processor-major
    offsets: NDArray[np.int32]  # (n_processors + 1,)
    n_counters: int
    n_queues: int
    wave_names: tuple[str, ...]

    def task_name(self, at: int | np.int64) -> str:
        """The name of task `at` in messages."""
        return describe(self.tasks[at], self.wave_names)


def build(
    plan: ModelPlan, *, order: str = "shipped", n_rows: int, n_processors: int, n_splits: int = CPU_ATTENTION_SPLITS
) -> Schedule:
    """The schedule of one step for `n_rows` (1..8) live sequences; ScheduleError for an order that does not fit."""
    if order not in ORDER_NAMES:
        raise ScheduleError(f"unknown wave order {order!r}; known: {', '.join(ORDER_NAMES)}")
    if not 1 <= n_rows <= 8:
        raise ScheduleError(f"a step runs 1 to 8 rows, not {n_rows}")
    if order == "lean":
        waves = lean_waves(plan, n_rows, n_processors, n_splits)
    else:
        waves = published_waves(plan, ORDERS[order], n_rows, n_processors, n_splits)
    return deal(waves, order=order, n_rows=n_rows, n_processors=n_processors, n_splits=n_splits)


def deal(
    waves: list[Wave], *, order: str, n_rows: int, n_processors: int, n_splits: int = CPU_ATTENTION_SPLITS
) -> Schedule:
    """Gives task k to processor k mod N (or the wave's own choice), a counter to each wave, a queue to claimers."""
    index = {wave.name: i for i, wave in enumerate(waves)}
    n_queues = n_dealt = 0
    for i, wave in enumerate(waves):
        tasks = wave.tasks
        if len(wave.waits) > MAX_WAITS:
            raise ScheduleError(f"wave {wave.name} waits on {len(wave.waits)} waves; a task has room for {MAX_WAITS}")
        for slot, name in enumerate(wave.waits):
            if name not in index:
                raise ScheduleError(f"wave {wave.name} waits on {name!r}, which is not in the schedule")
            tasks["wait_counter"][:, slot] = index[name]
            tasks["wait_target"][:, slot] = len(waves[index[name]].tasks)
        tasks["signal"] = tasks["wave"] = i
        tasks["ordinal"] = np.arange(n_dealt, n_dealt + len(tasks))
        if wave.claims:
            tasks["queue"] = n_queues
            n_queues += 1
        n_dealt += len(tasks)
    every = joined(wave.tasks for wave in waves)
    owner = np.concatenate([_owners(wave, n_processors) for wave in waves])
    by_processor = np.argsort(owner, kind="stable")
    offsets = np.searchsorted(owner[by_processor], np.arange(n_processors + 1)).astype(np.int32)
    names = tuple(wave.name for wave in waves)
    return Schedule(order, n_rows, n_processors, n_splits, every[by_processor], offsets, len(waves), n_queues, names)


def _owners(wave: Wave, n_processors: int) -> NDArray[np.int32]:
    if wave.processor is not None:
        return wave.processor
    return wave.tasks["ordinal"].astype(np.int32) % np.int32(n_processors)


def published_waves(plan: ModelPlan, order: tuple[str, ...], n_rows: int, n: int, n_splits: int) -> list[Wave]:
    """The waves of one step in a published order, not yet dealt to processors."""
    waves: list[Wave] = []
    before: tuple[str, ...] = ()
    add_flags = 0
    for layer, spec in enumerate(plan.layers):
        made = _layer_waves(plan, spec, layer, n_rows, n, n_splits, before, add_flags)
        waves += [made[kind]() for kind in order if kind in made]
        last = f"L{layer}.moe_combine" if spec.moe else f"L{layer}.down"
        before = (f"L{layer}.o", last) if plan.parallel_block else (last,)
        add_flags = TaskFlag.ADD_ATTN | TaskFlag.ADD_FFN if plan.parallel_block else TaskFlag.ADD_FFN
    layers = plan.n_layers
    norm = row_tasks(Opcode.ADD_RMSNORM, layers, n_rows, n_rows, flags=add_flags | TaskFlag.FINAL, n_rows=n_rows)
    waves.append(Wave("final.norm", norm, before))
    head = gemm_tasks(Opcode.LM_HEAD, layers, -(-plan.vocab // 16), plan.hidden, n, n_rows=n_rows)
    waves.append(Wave("final.lm_head", head, ("final.norm",)))
    return waves


def _layer_waves(
    plan: ModelPlan,
    spec: LayerPlan,
    layer: int,
    rows: int,
    n: int,
    splits: int,
    before: tuple[str, ...],
    add_flags: int,
) -> dict[str, Callable[[], Wave]]:
    """Constructors of the waves that this layer has, by kind."""
    wide = plan.n_heads * plan.head_dim
    sliding = TaskFlag.SLIDING if spec.sliding else 0
    rope = TaskFlag.ROPE if spec.rope else 0

    def wave(kind: str, tasks: Tasks, *waits: str, claims: bool = False) -> Wave:
        return Wave(f"L{layer}.{kind}", tasks, tuple(f"L{layer}.{w}" for w in waits), claims)

    def norm() -> Wave:
        return Wave(
            f"L{layer}.norm", row_tasks(Opcode.ADD_RMSNORM, layer, rows, rows, flags=add_flags, n_rows=rows), before
        )

    def qkv() -> Wave:
        tasks = gemm_tasks(Opcode.QKV_PROJ, layer, plan.qkv_tiles, plan.hidden, n, flags=sliding | rope, n_rows=rows)
        return wave("qkv", tasks, "norm")

    def attn() -> Wave:
        if spec.sliding:
            tasks = split_tasks(Opcode.ATTN_DECODE, layer, plan.n_kv_heads, splits, flags=sliding, n_rows=rows)
            return wave("attn", tasks, "qkv")
        claimers = min(n, rows * plan.n_kv_heads * splits)
        return wave(
            "attn", claimer_tasks(Opcode.ATTN_DRAIN, layer, claimers, n_splits=splits, n_rows=rows), "qkv", claims=True
        )

    def combine() -> Wave:
        tasks = row_tasks(Opcode.ATTN_COMBINE, layer, rows * plan.attn_tiles, n, n_rows=rows)
        tasks["n_splits"] = splits
        return wave("combine", tasks, "attn")

    def o() -> Wave:
        return wave("o", gemm_tasks(Opcode.O_PROJ, layer, plan.hidden_tiles, wide, n, n_rows=rows), "combine")

    made = {"norm": norm, "qkv": qkv, "attn": attn, "combine": combine, "o": o}
    return made | (_moe_waves if spec.moe else _dense_waves)(plan, spec, layer, rows, n, wave)


WaveMaker = Callable[..., Wave]


def _dense_waves(
    plan: ModelPlan, spec: LayerPlan, layer: int, rows: int, n: int, wave: WaveMaker
) -> dict[str, Callable[[], Wave]]:
    tiles = spec.intermediate // UNITS_PER_UPGATE_TILE
    kind, source = ("upgate", "norm") if plan.parallel_block else ("upgate2", "norm2")

    def norm2() -> Wave:
        flags = TaskFlag.ADD_ATTN | TaskFlag.FFN_NORM
        return wave("norm2", row_tasks(Opcode.ADD_RMSNORM, layer, rows, rows, flags=flags, n_rows=rows), "o")

    def upgate() -> Wave:
        return wave(kind, gemm_tasks(Opcode.FFN_UPGATE_ACT, layer, tiles, plan.hidden, n, n_rows=rows), source)

    def down() -> Wave:
        tasks = gemm_tasks(Opcode.FFN_DOWN, layer, plan.hidden_tiles, spec.intermediate, n, n_rows=rows)
        return wave("down", tasks, kind)

    made: dict[str, Callable[[], Wave]] = {kind: upgate, "down": down}
    return made if plan.parallel_block else made | {"norm2": norm2}


def _moe_waves(
    plan: ModelPlan, spec: LayerPlan, layer: int, rows: int, n: int, wave: WaveMaker
) -> dict[str, Callable[[], Wave]]:
    if not plan.parallel_block:
        raise ScheduleError("expert layers are scheduled for parallel blocks only")
    pairs = rows * plan.top_k

    def router() -> Wave:
        return wave(
            "router", gemm_tasks(Opcode.ROUTER_GEMM, layer, plan.router_tiles, plan.hidden, n, n_rows=rows), "norm"
        )

    def topk() -> Wave:
        return wave("topk", row_tasks(Opcode.ROUTER_TOPK, layer, rows, rows, n_rows=rows), "router")

    def finalize() -> Wave:
        return wave("finalize", row_tasks(Opcode.ROUTE_FINALIZE, layer, 1, 1, n_rows=rows), "topk")

    def gather() -> Wave:  # a pair each where there are processors enough: the gate/up waits for all of them
        return wave("gather", row_tasks(Opcode.MOE_GATHER, layer, pairs, n, n_rows=rows), "finalize", "norm")

    def upgate() -> Wave:
        tasks = claimer_tasks(Opcode.MOE_UPGATE_ACT_DRAIN, layer, n, n_rows=rows)
        tasks["k_tiles"] = plan.hidden // 16
        return wave("upgate", tasks, "gather", claims=True)

    def down() -> Wave:
        tasks = claimer_tasks(Opcode.MOE_DOWN_DRAIN, layer, n, n_rows=rows)
        tasks["k_tiles"] = spec.intermediate // 16
        return wave("down", tasks, "upgate", claims=True)

    def combine() -> Wave:
        splits = max(1, min(n // rows, 8, plan.hidden_tiles))
        return wave("moe_combine", split_tasks(Opcode.MOE_COMBINE, layer, rows, splits, n_rows=rows), "down")

    return {
        "router": router,
        "topk": topk,
        "finalize": finalize,
        "gather": gather,
        "upgate": upgate,
        "down": down,
        "moe_combine": combine,
    }


__all__ = ["CPU_ATTENTION_SPLITS", "NONE", "ORDER_NAMES", "ORDERS", "Schedule", "build", "deal"]

"""The `lean` wave order: three hand-offs a layer instead of seven.

Order R Q A U O D. Norm and top-k are recomputed by whoever needs them, so a layer hands over only: residual →
(router, QKV) → (attention → combine) and (gate/up) → O + down → residual. Processor s owns a run of residual tiles, so
O and down need no reduction between processors. Measured reasons: docs/kernel-log.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import ScheduleError
from .tasks import (
    SLICE_ONE,
    UNITS_PER_UPGATE_TILE,
    LayerPlan,
    ModelPlan,
    Opcode,
    TaskFlag,
    Tasks,
    Wave,
    gemm_tasks,
    joined,
    make_tasks,
    row_tasks,
    split_tasks,
)

Owners = NDArray[np.int32]
CLAIMED = 0.35  # part of the gate/up tiles that is claimed instead of sliced


def lean_waves(plan: ModelPlan, n_rows: int, n: int, n_splits: int) -> list[Wave]:
    """Waves with fixed owners for `n` processors; parallel blocks only."""
    if not plan.parallel_block:
        raise ScheduleError("the lean order needs a model with parallel attention and FFN")
    waves: list[Wave] = []
    before: tuple[str, ...] = ()
    for layer, spec in enumerate(plan.layers):
        waves += _layer(plan, spec, layer, n_rows, n, n_splits, before)
        before = (f"L{layer}.down",)
    head = gemm_tasks(
        Opcode.LM_HEAD,
        plan.n_layers,
        -(-plan.vocab // 16),
        plan.hidden,
        n,
        flags=TaskFlag.FUSED_NORM | TaskFlag.FINAL,
        n_rows=n_rows,
    )
    waves.append(Wave("final.lm_head", head, before, processor=_spread(len(head), n)))
    return waves


def _spread(n_tasks: int, n: int) -> Owners:
    return (
        np.arange(n_tasks, dtype=np.int32) * np.int32(n) // np.int32(n_tasks)
        if n_tasks < n
        else np.arange(n_tasks, dtype=np.int32) % n
    )


def _idlest(n_tasks: int, tasks: Tasks, owner: Owners, n: int) -> Owners:
    """A processor for each of `n_tasks`, of those that `tasks` gives the fewest tiles, spread over them."""
    load = np.zeros(n, dtype=np.int64)
    np.add.at(load, owner, tasks["tile_count"])
    order = np.argsort(load, kind="stable").astype(np.int32)
    n_least = max(int((load == load.min()).sum()), n_tasks)
    return order[np.arange(n_tasks) * n_least // n_tasks]


def _layer(
    plan: ModelPlan, spec: LayerPlan, layer: int, rows: int, n: int, splits: int, before: tuple[str, ...]
) -> list[Wave]:
    here = f"L{layer}."
    sliding = TaskFlag.SLIDING if spec.sliding else 0
    fused = TaskFlag.FUSED_NORM
    waves: list[Wave] = []
    qkv, qkv_owner = _qkv(plan, layer, n, fused | sliding | (TaskFlag.ROPE if spec.rope else 0), rows)
    if spec.moe:
        router = gemm_tasks(Opcode.ROUTER_GEMM, layer, plan.router_tiles, plan.hidden, n, flags=fused, n_rows=rows)
        waves.append(Wave(here + "router", router, before, processor=_idlest(len(router), qkv, qkv_owner, n)))
    waves.append(Wave(here + "qkv", qkv, before, processor=qkv_owner))
    attn = split_tasks(Opcode.ATTN_DECODE, layer, plan.n_kv_heads, splits, flags=sliding, n_rows=rows)
    waves.append(Wave(here + "attn", attn, (here + "qkv",), processor=_spread(len(attn), n)))
    # before the combine: the warp that merges splits makes the route first
    upgate = _upgate(plan, spec, layer, rows, n, before, _load(waves, n))
    waves.append(upgate)
    combine = row_tasks(Opcode.ATTN_COMBINE, layer, rows * plan.attn_tiles, n, n_rows=rows)
    combine["n_splits"] = splits
    waves.append(Wave(here + "combine", combine, (here + "attn",), processor=np.arange(len(combine), dtype=np.int32)))
    o = gemm_tasks(Opcode.O_PROJ, layer, plan.hidden_tiles, plan.n_heads * plan.head_dim, n, n_rows=rows)
    owner = np.arange(len(o), dtype=np.int32)
    if spec.moe:
        _look_ahead(upgate.tasks, o)
    waves.append(Wave(here + "o", o, (here + "combine",), processor=owner))
    opcode, flags = (Opcode.MOE_DOWN_DRAIN, TaskFlag.SLICED | TaskFlag.FUSED_TOPK) if spec.moe else (Opcode.FFN_DOWN, 0)
    down = gemm_tasks(
        opcode, layer, plan.hidden_tiles, spec.intermediate, n, flags=flags | TaskFlag.ADD_RESIDUAL, n_rows=rows
    )
    waits = (here + "upgate", here + "router") if spec.moe else (here + "upgate",)
    waves.append(Wave(here + "down", down, waits, processor=owner))
    return waves


def _look_ahead(upgate: Tasks, o: Tasks) -> None:
    """Tells who waits for the route which weights come after the experts'; task s of either is processor s's."""
    n = min(len(upgate), len(o))
    upgate["ahead_tile"][:n] = o["tile_begin"][:n]


def _load(waves: list[Wave], n: int) -> NDArray[np.float64]:
    """Weight tiles that each processor streams before the gate/up."""
    load = np.zeros(n)
    for wave in waves:
        if wave.processor is not None and wave.tasks["opcode"][0] in (Opcode.ROUTER_GEMM, Opcode.QKV_PROJ):
            np.add.at(load, wave.processor, wave.tasks["tile_count"])
    return load


def _qkv(plan: ModelPlan, layer: int, n: int, flags: int, rows: int) -> tuple[Tasks, Owners]:
    """Each KV head's tiles stay on the processors that run its attention, where the processors divide that way."""
    groups = plan.n_kv_heads
    if n < groups or n % groups:
        tasks = gemm_tasks(Opcode.QKV_PROJ, layer, plan.qkv_tiles, plan.hidden, n, flags=flags, n_rows=rows)
        return tasks, _spread(len(tasks), n)
    per_group = plan.qkv_tiles // groups
    tasks = [
        gemm_tasks(Opcode.QKV_PROJ, layer, per_group, plan.hidden, n // groups, flags=flags, n_rows=rows)
        for _ in range(groups)
    ]
    owners: list[Owners] = []
    for g, group in enumerate(tasks):
        group["tile_begin"] += g * per_group
        owners.append(np.arange(len(group), dtype=np.int32) + g * (n // groups))
    return joined(tasks), np.concatenate(owners)


def _upgate(
    plan: ModelPlan, spec: LayerPlan, layer: int, rows: int, n: int, before: tuple[str, ...], load: NDArray[np.float64]
) -> Wave:
    here = f"L{layer}."
    tiles = spec.intermediate // UNITS_PER_UPGATE_TILE
    if not spec.moe:
        tasks = gemm_tasks(Opcode.FFN_UPGATE_ACT, layer, tiles, plan.hidden, n, flags=TaskFlag.FUSED_NORM, n_rows=rows)
        return Wave(here + "upgate", tasks, before, processor=_spread(len(tasks), n))
    bounds = _slices(plan, tiles, rows, n, load)
    flags = TaskFlag.SLICED | TaskFlag.FUSED_TOPK | TaskFlag.FUSED_NORM
    tasks = make_tasks(Opcode.MOE_UPGATE_ACT_DRAIN, layer, len(bounds) - 1, flags=flags, n_rows=rows)
    tasks["slice_lo"], tasks["slice_hi"], tasks["k_tiles"] = bounds[:-1], bounds[1:], plan.hidden // 16
    tasks["claim_begin"] = bounds[-1]
    owner = np.arange(len(tasks), dtype=np.int32)
    return Wave(here + "upgate", tasks, (here + "router",), claims=True, processor=owner)


def _slices(plan: ModelPlan, tiles: int, rows: int, n: int, load: NDArray[np.float64]) -> NDArray[np.int64]:
    """Borders of the fixed slices of union x tiles, in 1/65536; what lies past the last border is claimed.

    The slices make up for what a processor did before the gate/up (`load`, in tiles), up to CLAIMED of its share;
    claims level what nobody can know (memory is not equally near to all SMs). Every slice holds at least one item of
    the smallest union, so nobody can fall a layer behind."""
    fewest = plan.top_k * tiles
    n = min(n, fewest)
    expected = plan.n_experts * (1 - (1 - plan.top_k / plan.n_experts) ** rows) * tiles
    share = np.maximum((expected + load[:n].sum()) / n - load[:n] - CLAIMED * expected / n, 1.0)
    floor = -(-SLICE_ONE // fewest)
    width = np.maximum(np.rint(share / expected * SLICE_ONE), floor)
    bounds = np.concatenate([[0.0], np.cumsum(width)]).astype(np.int64)
    return bounds if bounds[-1] <= SLICE_ONE else _equal_slices(n)


def _equal_slices(n: int) -> NDArray[np.int64]:
    return np.arange(n + 1, dtype=np.int64) * SLICE_ONE // n

"""Schedules are sound for every order, shape and processor count; `check` refuses broken ones and names the task."""

import contextlib
import dataclasses
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.engine.errors import ScheduleError
from pointcode_local.engine.schedule_check import check
from pointcode_local.engine.scheduler import ORDER_NAMES, Schedule, build
from pointcode_local.engine.task_access import accesses
from pointcode_local.engine.tasks import LayerPlan, ModelPlan, Opcode, TaskFlag, describe

MOE = ModelPlan(
    64, 4, 2, 16, 512, 16, 4, True, tuple(LayerPlan(i % 4 != 0 or i == 0, i % 4 != 0, i > 0, 32) for i in range(5))
)
DENSE = ModelPlan(96, 6, 3, 16, 256, 0, 0, False, tuple(LayerPlan(True, False, False, 64) for _ in range(3)))
PLANS_AND_ORDERS = [(plan, o) for plan in (MOE, DENSE) for o in ORDER_NAMES if o != "lean" or plan.parallel_block]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLANS_AND_ORDERS), st.integers(1, 8), st.integers(1, 40), st.sampled_from([1, 2, 8, 33]))
def test_every_order_is_sound_for_any_number_of_processors_rows_and_splits(plan_order, n_rows, n_processors, n_splits):
    plan, order = plan_order
    schedule = build(plan, order=order, n_rows=n_rows, n_processors=n_processors, n_splits=n_splits)
    check(plan, schedule)
    assert schedule.offsets[-1] == len(schedule.tasks)


@pytest.mark.parametrize("order", [o for o in ORDER_NAMES if o != "lean"])
@pytest.mark.parametrize("n_processors", [3, 132])
def test_published_orders_are_sound_by_their_waits_alone(order, n_processors):
    """The GPU's roles overlap the tasks of one SM: a list's order orders nothing, counters must."""
    schedule = build(MOE, order=order, n_rows=3, n_processors=n_processors)
    waves = {int(t["wave"]): t for t in schedule.tasks}
    before: dict[int, set[int]] = {}

    def earlier(wave: int) -> set[int]:
        if wave not in before:
            direct = {int(c) for c in waves[wave]["wait_counter"] if c >= 0}
            before[wave] = direct.union(*(earlier(w) for w in direct))
        return before[wave]

    readers: dict[tuple[str, int], set[int]] = defaultdict(set)
    writers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for wave, task in waves.items():
        reads, writes = accesses(MOE, task[None])
        for access in reads:
            readers[access.buffer, access.version].add(wave)
        for access in writes:
            writers[access.buffer, access.version].add(wave)
        if task["opcode"] == Opcode.ATTN_COMBINE:  # on the GPU it also reads the current token's q, k and v
            readers["qkv", int(task["layer"])].add(wave)
    for cell, who in readers.items():
        assert all(writers[cell] <= earlier(wave) for wave in who), cell
    for (buffer, version), who in writers.items():
        older = [v for b, v in writers if b == buffer and v < version]
        if older:
            old = readers[buffer, max(older)] | writers[buffer, max(older)]
            assert all(old - {wave} <= earlier(wave) for wave in who), (buffer, version)


def test_all_sixteen_opcodes_are_used():
    schedules = [build(plan, order=order, n_rows=2, n_processors=3) for plan, order in PLANS_AND_ORDERS]
    assert {Opcode(int(op)) for s in schedules for op in s.tasks["opcode"]} == set(Opcode)


@pytest.mark.parametrize("order", ["shipped", "interleaved", "attention_first"])
def test_pairs_are_gathered_by_a_processor_each(order):
    schedule = build(MOE, order=order, n_rows=3, n_processors=16)
    owner = np.repeat(np.arange(16), np.diff(schedule.offsets))
    gathers = (schedule.tasks["opcode"] == Opcode.MOE_GATHER) & (schedule.tasks["layer"] == 1)
    assert schedule.tasks["tile_count"][gathers].tolist() == [1] * (3 * MOE.top_k)
    assert len(set(owner[gathers].tolist())) == 3 * MOE.top_k


def test_an_unknown_order_is_refused_with_the_known_ones():
    with pytest.raises(
        ScheduleError, match="unknown wave order 'best'; known: shipped, interleaved, attention_first, lean"
    ):
        build(MOE, order="best", n_rows=1, n_processors=2)


def test_the_lean_order_refuses_serial_blocks():
    with pytest.raises(ScheduleError, match="parallel attention and FFN"):
        build(DENSE, order="lean", n_rows=1, n_processors=2)


@pytest.fixture
def schedule() -> Schedule:
    return build(MOE, order="shipped", n_rows=2, n_processors=3)


def first(schedule: Schedule, opcode: int, layer: int = -1) -> int:
    tasks = schedule.tasks
    return int(np.flatnonzero((tasks["opcode"] == opcode) & ((layer < 0) | (tasks["layer"] == layer)))[0])


def broken(schedule: Schedule, tasks: np.ndarray) -> Schedule:
    return dataclasses.replace(schedule, tasks=tasks)


def test_check_refuses_a_cycle(schedule):
    tasks = schedule.tasks.copy()
    norm, o = first(schedule, Opcode.ADD_RMSNORM), first(schedule, Opcode.O_PROJ)
    tasks["wait_counter"][norm, 0] = tasks["signal"][o]
    tasks["wait_target"][norm, 0] = np.sum(tasks["signal"] == tasks["signal"][o])
    with pytest.raises(
        ScheduleError, match=r"cycle: task \d+ \(L0.norm ADD_RMSNORM .* waits for \d+ on counter \d+ \(L0.o\)"
    ):
        check(MOE, broken(schedule, tasks))


def test_check_refuses_a_wrong_wait_target(schedule):
    tasks = schedule.tasks.copy()
    tasks["wait_target"][first(schedule, Opcode.O_PROJ), 0] -= 1
    with pytest.raises(
        ScheduleError, match=r"O_PROJ .* waits for 2 on counter \d+ \(L0.combine\), which 3 tasks signal"
    ):
        check(MOE, broken(schedule, tasks))


def test_check_refuses_a_missing_wait(schedule):
    tasks = schedule.tasks.copy()
    tasks["wait_counter"][first(schedule, Opcode.ATTN_COMBINE)] = -1
    with pytest.raises(
        ScheduleError, match=r"L0.combine ATTN_COMBINE .* reads attn_part v0 without waiting for task \d+ \(L0.attn"
    ):
        check(MOE, broken(schedule, tasks))


def test_check_refuses_a_double_signal(schedule):
    at = first(schedule, Opcode.ROUTER_GEMM)
    tasks = np.insert(schedule.tasks, at, schedule.tasks[at])
    tasks["wait_target"][tasks["wait_counter"] == tasks["signal"][at]] += 1
    offsets = (schedule.offsets + (schedule.offsets > at)).astype(np.int32)
    with pytest.raises(ScheduleError, match=r"repeats task \d+ \(L\d.router ROUTER_GEMM .* is signalled twice"):
        check(MOE, dataclasses.replace(schedule, tasks=tasks, offsets=offsets))


def test_check_refuses_a_read_of_cells_that_nobody_writes(schedule):
    tasks = schedule.tasks.copy()
    at = np.flatnonzero((tasks["opcode"] == Opcode.QKV_PROJ) & (tasks["layer"] == 0))[-1]
    tasks["tile_count"][at] -= 1
    with pytest.raises(ScheduleError, match=r"ATTN.* reads qkv v0 at cell \d+, which no task writes"):
        check(MOE, broken(schedule, tasks))


def test_check_refuses_a_read_before_its_write(schedule):
    tasks = schedule.tasks.copy()
    tasks["wait_counter"][(tasks["opcode"] == Opcode.ROUTER_GEMM) & (tasks["layer"] == 1)] = -1
    with pytest.raises(
        ScheduleError, match=r"L1.router ROUTER_GEMM .* reads normed v2 without waiting for task \d+ \(L1.norm"
    ):
        check(MOE, broken(schedule, tasks))


def test_check_refuses_two_writers_of_one_tile(schedule):
    tasks = schedule.tasks.copy()
    a, b = np.flatnonzero((tasks["opcode"] == Opcode.FFN_DOWN) & (tasks["layer"] == 0))[:2]
    tasks["tile_begin"][b], tasks["tile_count"][b] = tasks["tile_begin"][a], tasks["tile_count"][a] + 1
    with pytest.raises(ScheduleError, match=r"both write ffn_out v0"):
        check(MOE, broken(schedule, tasks))


def test_check_refuses_an_overwrite_of_what_may_still_be_read():
    """A lean layer's down projection must not update the residual while another processor still normalises it."""
    lean = build(MOE, order="lean", n_rows=2, n_processors=6)
    tasks = lean.tasks.copy()
    down = (tasks["opcode"] == Opcode.MOE_DOWN_DRAIN) & (tasks["layer"] == 1)
    o = (tasks["opcode"] == Opcode.O_PROJ) & (tasks["layer"] == 1)
    tasks["wait_counter"][down | o] = -1
    with pytest.raises(ScheduleError, match=r"(overwrites residual with v4|reads \w+ v1 without waiting)"):
        check(MOE, broken(lean, tasks))


def test_a_description_names_wave_opcode_and_tiles(schedule):
    at = first(schedule, Opcode.QKV_PROJ)
    assert describe(schedule.tasks[at], schedule.wave_names).endswith("(L0.qkv QKV_PROJ tiles 2..5)")


# ------------------------------------------------------------------------------------------------ fields
FIELDS = (
    *("opcode", "layer", "tile_begin", "tile_count", "split", "n_splits", "k_tiles", "wait_target", "queue", "n_rows"),
    *("slice_lo", "slice_hi", "claim_begin", "ahead_tile"),
)
EXAMPLES = [
    build(plan, order=order, n_rows=2, n_processors=n, n_splits=4) for plan, order in PLANS_AND_ORDERS for n in (1, 5)
]
ODD = st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 15, 16, 65535, 65536, 65537, 2**31 - 1]) | st.integers(-3, 40)
# A hint may be another one; the borders between slices, and between slices and claims, may lie elsewhere.
FREE = {"ahead_tile", "slice_lo", "slice_hi", "claim_begin"}


def plan_of(schedule: Schedule) -> ModelPlan:
    return MOE if any(name.endswith(".router") for name in schedule.wave_names) else DENSE


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(EXAMPLES), st.sampled_from(FIELDS), st.data())
def test_check_refuses_a_task_with_any_other_value_in_any_field(schedule: Schedule, field: str, data: st.DataObject):
    tasks = schedule.tasks.copy()
    at = data.draw(st.integers(0, len(tasks) - 1))
    waits = np.flatnonzero(tasks["wait_counter"][at] >= 0)
    place = (at, int(waits[0]) if waits.size else 0) if field == "wait_target" else at
    old, new = int(tasks[field][place]), data.draw(ODD)
    tasks[field][place] = new
    is_free = field in FREE and tasks["opcode"][at] == Opcode.MOE_UPGATE_ACT_DRAIN
    if new == old or is_free or (field == "wait_target" and not waits.size):
        return
    with pytest.raises(ScheduleError):
        check(plan_of(schedule), broken(schedule, tasks))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(EXAMPLES),
    st.sampled_from(["wait_counter", "signal", "wave", "flags", "slice_lo", "slice_hi", "claim_begin", "ahead_tile"]),
    st.data(),
)
def test_check_says_yes_or_no_to_whatever_a_field_holds(schedule: Schedule, field: str, data: st.DataObject):
    tasks = schedule.tasks.copy()
    tasks[field][data.draw(st.integers(0, len(tasks) - 1))] = data.draw(ODD)
    with contextlib.suppress(ScheduleError):
        check(plan_of(schedule), broken(schedule, tasks))


@pytest.mark.parametrize("schedule", EXAMPLES, ids=lambda s: f"{s.order}-{s.n_processors}")
def test_check_refuses_lists_that_are_not_the_tasks(schedule: Schedule):
    o = schedule.offsets
    wrong = [o - 1, o + 1, o[::-1], o[:-1], np.r_[o[:-1], o[-1] - 1], np.r_[o[:-1], o[-1] + 1], np.r_[o, o[-1]]]
    for offsets in wrong:
        with pytest.raises(ScheduleError, match="processors"):
            check(plan_of(schedule), dataclasses.replace(schedule, offsets=offsets.astype(np.int32)))
    for name in ("n_counters", "n_rows", "n_processors", "n_splits"):
        changed = dataclasses.replace(schedule, **{name: getattr(schedule, name) - 1})
        with pytest.raises(ScheduleError):
            check(plan_of(schedule), changed)


@pytest.mark.parametrize("schedule", EXAMPLES, ids=lambda s: f"{s.order}-{s.n_processors}")
def test_check_refuses_a_schedule_without_one_of_its_tasks(schedule: Schedule):
    """Also where nobody waits for it any more. Of several claimers of everything one may be missing."""
    for opcode in np.unique(schedule.tasks["opcode"]).tolist():
        at = int(np.flatnonzero(schedule.tasks["opcode"] == opcode)[-1])
        gone = schedule.tasks[at]
        tasks = np.delete(schedule.tasks, at)
        tasks["wait_target"][tasks["wait_counter"] == gone["signal"]] -= 1
        offsets = (schedule.offsets - (schedule.offsets > at)).astype(np.int32)
        less = dataclasses.replace(schedule, tasks=tasks, offsets=offsets)
        if gone["queue"] in tasks["queue"][tasks["queue"] >= 0] and not gone["flags"] & TaskFlag.SLICED:
            check(plan_of(schedule), less)
            continue
        with pytest.raises(ScheduleError):
            check(plan_of(schedule), less)


def test_check_refuses_claimers_that_do_not_share_one_queue(schedule: Schedule):
    up, down = (
        np.flatnonzero(schedule.tasks["opcode"] == o) for o in (Opcode.MOE_UPGATE_ACT_DRAIN, Opcode.MOE_DOWN_DRAIN)
    )
    for queue, n_queues in ((schedule.tasks["queue"][down[0]], 0), (schedule.n_queues, 1)):
        tasks = schedule.tasks.copy()
        tasks["queue"][up[1]] = queue
        changed = dataclasses.replace(schedule, tasks=tasks, n_queues=schedule.n_queues + n_queues)
        with pytest.raises(ScheduleError, match="claims from queue"):
            check(MOE, changed)

"""Task constructors: the waves of one decode step, before they are dealt to processors.

The layout, the opcodes and the flags come from csrc/task.h through the extension; docs/tasks.md says what each opcode
reads and writes. A `Wave` is a set of tasks of one opcode that share their waits and signal one counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import _native

Opcode = _native.Opcode
TaskFlag = _native.TaskFlag
TASK_DTYPE: np.dtype[np.void] = _native.task_dtype()
TILE_ROWS = 16
UNITS_PER_UPGATE_TILE = 8
SLICE_ONE = 65536
NONE = -1

Tasks = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What the scheduler needs to know of one layer. `intermediate`: width of the dense FFN, or of one expert."""

    rope: bool
    sliding: bool
    moe: bool
    intermediate: int


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What the scheduler needs to know of a model; all sizes in elements."""

    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    n_experts: int
    top_k: int
    parallel_block: bool
    layers: tuple[LayerPlan, ...]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def qkv_tiles(self) -> int:
        """Tiles of a layer's q, k and v together."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim // TILE_ROWS

    @property
    def attn_tiles(self) -> int:
        """Tiles of one row's attention output."""
        return self.n_heads * self.head_dim // TILE_ROWS

    @property
    def hidden_tiles(self) -> int:
        """Tiles of one row of the residual."""
        return self.hidden // TILE_ROWS

    @property
    def router_tiles(self) -> int:
        """Tiles of the router's logits; the last one may be cut short."""
        return -(-self.n_experts // TILE_ROWS)


@dataclass(frozen=True, slots=True)
class Wave:
    """Tasks of one opcode. `waits` names the waves that must be complete; `processor` fixes who runs which task."""

    name: str
    tasks: Tasks
    waits: tuple[str, ...]
    claims: bool = False
    processor: NDArray[np.int32] | None = None


def make_tasks(opcode: int, layer: int, n: int, *, flags: int = 0, n_rows: int = 0) -> Tasks:
    """`n` descriptors of one opcode with nothing to wait for and nothing to signal."""
    tasks = np.zeros(n, TASK_DTYPE)
    tasks["opcode"], tasks["layer"], tasks["flags"], tasks["n_rows"] = opcode, layer, flags, n_rows
    tasks["tile_count"] = 1
    tasks["n_splits"] = 1
    tasks["wait_counter"] = NONE
    tasks["signal"] = NONE
    tasks["queue"] = NONE
    tasks["ahead_tile"] = NONE
    tasks["slice_hi"] = tasks["claim_begin"] = SLICE_ONE
    return tasks


def joined(parts: Iterable[Tasks]) -> Tasks:
    """The tasks of all parts in a row; np.concatenate would compare the fields of each with those of the others."""
    return np.frombuffer(bytearray(b"".join(part.tobytes() for part in parts)), TASK_DTYPE)


def set_runs(tasks: Tasks, n_tiles: int) -> None:
    """Cuts `n_tiles` tiles into one contiguous run per task, as equal as possible."""
    bounds = np.arange(len(tasks) + 1, dtype=np.int64) * n_tiles // len(tasks)
    tasks["tile_begin"] = bounds[:-1]
    tasks["tile_count"] = np.diff(bounds)


def gemm_tasks(opcode: int, layer: int, n_tiles: int, k: int, n_runs: int, *, flags: int = 0, n_rows: int = 0) -> Tasks:
    """At most `n_runs` tasks that cover `n_tiles` output tiles with reduction length `k`."""
    tasks = make_tasks(opcode, layer, min(n_runs, n_tiles), flags=flags, n_rows=n_rows)
    set_runs(tasks, n_tiles)
    tasks["k_tiles"] = k // 16
    return tasks


def row_tasks(opcode: int, layer: int, n_items: int, n_runs: int, *, flags: int = 0, n_rows: int = 0) -> Tasks:
    """At most `n_runs` tasks that cover `n_items` rows or (row, head) items."""
    tasks = make_tasks(opcode, layer, min(n_runs, n_items), flags=flags, n_rows=n_rows)
    set_runs(tasks, n_items)
    return tasks


def split_tasks(opcode: int, layer: int, n_items: int, n_splits: int, *, flags: int = 0, n_rows: int = 0) -> Tasks:
    """One task per (item, split), item-major."""
    tasks = make_tasks(opcode, layer, n_items * n_splits, flags=flags, n_rows=n_rows)
    tasks["tile_begin"] = np.repeat(np.arange(n_items), n_splits)
    tasks["split"] = np.tile(np.arange(n_splits), n_items)
    tasks["n_splits"] = n_splits
    return tasks


def claimer_tasks(opcode: int, layer: int, n: int, *, n_splits: int = 1, n_rows: int = 0) -> Tasks:
    """`n` tasks that claim items from one queue until it is empty."""
    tasks = make_tasks(opcode, layer, n, n_rows=n_rows)
    tasks["n_splits"] = n_splits
    return tasks


def describe(task: np.void, wave_names: Sequence[str]) -> str:
    """A task's name in messages: `task 17 (L3.qkv QKV_PROJ tiles 4..8)`."""
    first, count = int(task["tile_begin"]), int(task["tile_count"])
    wave = wave_names[int(task["wave"])] if 0 <= int(task["wave"]) < len(wave_names) else "?"
    split = f" split {int(task['split'])}/{int(task['n_splits'])}" if int(task["n_splits"]) > 1 else ""
    return (
        f"task {int(task['ordinal'])} ({wave} {Opcode(int(task['opcode'])).name} tiles {first}..{first + count}{split})"
    )

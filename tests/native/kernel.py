"""The decode megakernel through its C interface, on a GPU or on the emulated device: buffers, steps, single waves.

`Kernel` fills csrc/mk_params.h's Params itself, so that a test can poison every buffer, fill the inputs of one opcode
and look at its outputs. HostKernel (host_kernel.py) and GpuKernel (tests/gpu) say where memory lies and how to launch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from pointcode_local.engine.cuda.device_weights import DeviceLayer, DeviceModel
from pointcode_local.engine.kv_cache import FULL, SLIDING, KvCache, SequencePages
from pointcode_local.engine.scheduler import Schedule

MAX_ROWS, MAX_PAGES = 8, 80
COUNTED_ENOUGH = 1000  # what counters hold before a wave that runs alone
KIND_NAMES = (
    "nothing", "descriptor", "ring full", "ring empty", "reduce full", "reduce empty", "warps", "route", "data",
    "counter", "item", "chosen", "start",
)  # fmt: skip
# Buffers whose eight pairs of a k-tile lie in the order of mk_common.cuh's operand_at(): t and t + 4 side by side.
OPERANDS = ("attn", "ffn", "normed", "moe_in")  # and the lean order's residual
OPERAND_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # the pair at each place
Words = NDArray[np.uint32]


class MkLayer(ctypes.Structure):
    """csrc/mk_params.h: Layer."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("qkv", "o", "router", "upgate", "down", "norm", "k", "v")] + [
        ("flags", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
    ]


class MkDraw(ctypes.Structure):
    """csrc/leader.h: RowDraw."""

    _fields_ = [("seed", ctypes.c_uint64), ("inverse", ctypes.c_float), ("draws", ctypes.c_int32)]


LEADER = np.dtype([("logit", "<f4"), ("token", "<i4"), ("score", "<f4"), ("drawn", "<i4")])  # csrc/leader.h


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class MkParams(ctypes.Structure):
    """csrc/mk_params.h: Params."""

    _fields_ = [
        *_fields(ctypes.c_int32, "hidden n_heads n_kv_heads head_dim vocab n_experts top_k n_layers n_rows window"),
        *_fields(ctypes.c_int32, "n_splits norm_topk max_pages n_queues n_owners"),
        *_fields(ctypes.c_float, "eps q_scale logit_scale rope_theta"),
        *_fields(ctypes.c_void_p, "layers final_norm lm_head embed tokens positions page_table"),
        *_fields(ctypes.c_void_p, "residual q k_new v_new router part attn ffn logits tasks offsets queues"),
        *_fields(ctypes.c_void_p, "abort_flag mailbox"),
        ("in_flight_bytes", ctypes.c_int32),
        ("spin_limit", ctypes.c_uint32),
        ("trace", ctypes.c_void_p),
        ("trace_slots", ctypes.c_int32),
        ("step", ctypes.c_uint32),
        ("counted", ctypes.c_int32),
        ("n_counters", ctypes.c_int32),
        *_fields(ctypes.c_void_p, "counters normed o_out ffn_out topk route moe_in moe_out"),
        *_fields(ctypes.c_int32 * MAX_ROWS, "first_row table_row"),
        ("leaders", ctypes.c_void_p),
        ("draw", MkDraw * MAX_ROWS),
    ]


@dataclass(slots=True)
class Row:
    """One token that a step feeds, and its sequence's pages. Rows that share them and follow each other are a chain."""

    pages: SequencePages
    token: int
    position: int


def chains(rows: Sequence[Row]) -> list[int]:
    """Of each row the first one of its chain."""
    first: list[int] = []
    for r, row in enumerate(rows):
        goes_on = r > 0 and row.pages is rows[r - 1].pages and row.position == rows[r - 1].position + 1
        first.append(first[-1] if goes_on else r)
    return first


class AbortedStep(Exception):
    """A bounded wait expired: (block, warp, what it waits for, task's ordinal, seen, wanted)."""


class BrokenKernel(Exception):
    """The device reports a fault; the emulation finds lanes that meet in different places, a barrier out of phase, …"""


@dataclass(slots=True)
class Kernel:
    """A small model and all that decodes it on `kv`'s device. Subclasses say how to launch."""

    library: ctypes.CDLL
    model: DeviceModel
    kv: KvCache
    schedules: list[Schedule]  # [rows - 1]
    n_sms: int
    n_steps: int = 0
    params: MkParams = field(default_factory=MkParams)
    layers: ctypes.Array[MkLayer] | None = None
    memory: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])  # uint8, on the device
    ran_alone: set[int] = field(default_factory=set[int])  # opcodes that run_waves has run

    def launch(self) -> None:
        """Runs one step with `params` and waits for it; BrokenKernel when the device reports a fault."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where all buffers lie."""
        return self.model.device

    @property
    def lean(self) -> bool:
        """Whether the schedules are of the lean order, which hands over without counters."""
        return self.schedules[0].order == "lean"

    # ------------------------------------------------------------------ memory
    def allocate(self, name: str, n_bytes: int) -> None:
        """Zeroed memory aligned to 256 bytes that lives as long as this object; sets the parameter `name`, if any."""
        raw = torch.zeros(n_bytes + 256, dtype=torch.uint8, device=self.device)
        made = raw[-raw.data_ptr() % 256 :][:n_bytes]
        self.memory[name] = made
        if hasattr(self.params, name):
            setattr(self.params, name, made.data_ptr())

    def put(self, name: str, values: NDArray[np.generic], first_byte: int = 0) -> None:
        """Copies the values' bytes into a buffer."""
        raw = torch.from_numpy(np.array(values).reshape(-1).view(np.uint8))
        self.memory[name][first_byte : first_byte + len(raw)].copy_(raw)

    def get(self, name: str, dtype: type, first_byte: int = 0, n_bytes: int | None = None) -> NDArray[np.generic]:
        """A copy of a buffer's bytes, flat."""
        end = None if n_bytes is None else first_byte + n_bytes
        return self.memory[name][first_byte:end].cpu().numpy().view(dtype).copy()

    def uploaded(self, name: str, values: NDArray[np.generic]) -> int:
        """The address of a copy of the values on the device."""
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.memory[name] = torch.from_numpy(flat).to(self.device)
        return self.memory[name].data_ptr()

    # ------------------------------------------------------------------ setup
    def set_up(self) -> None:
        """Fills the parameters that do not change between steps; KV pages become NaNs."""
        c, p = self.model.config, self.params
        assert ctypes.sizeof(MkParams) == self.library.pointcode_mk_params_size()
        for pool in self.kv.pools:
            pool.k.fill_(float("nan"))
            pool.v.fill_(float("nan"))
        for name in ("hidden", "n_heads", "n_kv_heads", "head_dim", "vocab", "n_experts", "top_k", "n_layers"):
            setattr(p, name, getattr(c, name))
        p.window, p.norm_topk, p.max_pages = c.window, c.norm_topk, MAX_PAGES
        p.n_owners = min(self.n_sms, c.hidden // 16)
        p.eps, p.logit_scale, p.rope_theta = c.eps, c.logit_scale, c.rope_theta
        p.q_scale = c.attn_scale * math.log2(math.e)
        layers = (MkLayer * c.n_layers)(*(self._layer(i, layer) for i, layer in enumerate(self.model.layers)))
        self.layers = layers
        p.layers = self.uploaded("layers", np.frombuffer(bytearray(layers), np.uint8))
        p.final_norm, p.lm_head = self.model.final_norm.data_ptr(), self.model.head.data.data_ptr()
        p.embed = self.model.embed.data.data_ptr()
        p.n_queues = max(1, *(s.n_queues for s in self.schedules))
        p.n_counters = max(s.n_counters for s in self.schedules)
        p.counted = not self.lean
        p.in_flight_bytes, p.spin_limit = 64 << 10, 1_000_000
        self.allocate("tokens", MAX_ROWS * 4)
        self.allocate("positions", MAX_ROWS * 4)
        self.allocate("page_table", 2 * MAX_ROWS * MAX_PAGES * 4)
        self.allocate("queues", 2 * p.n_queues * 4)
        self.allocate("counters", 2 * p.n_counters * 128)
        self.allocate("abort_flag", 4)
        self.allocate("mailbox", 16)
        self.allocate("logits", MAX_ROWS * c.vocab * 4)
        self.allocate("leaders", MAX_ROWS * self.n_sms * LEADER.itemsize)
        splits = max(s.n_splits for s in self.schedules)
        self.allocate("activations", self.library.pointcode_mk_place(ctypes.byref(p), layers, splits, None))
        place = ctypes.c_void_p(self.memory["activations"].data_ptr())
        self.library.pointcode_mk_place(ctypes.byref(p), layers, splits, place)

    def _layer(self, index: int, layer: DeviceLayer) -> MkLayer:
        spec, (k, v) = self.model.config.layers[index], self.kv.layer(index)
        return MkLayer(
            layer.qkv.data.data_ptr(), layer.o.data.data_ptr(), layer.router.data.data_ptr() if layer.router else 0,
            layer.upgate.data.data_ptr(), layer.down.data.data_ptr(), layer.norm.data_ptr(), k.data_ptr(),
            v.data_ptr(), spec.rope | spec.sliding << 1 | spec.moe << 2, spec.intermediate,
        )  # fmt: skip

    # ------------------------------------------------------------------ steps
    def step(self, rows: Sequence[Row], schedule: Schedule | None = None) -> NDArray[np.float32]:
        """(rows, vocab) logits of one step, poisoned before; AbortedStep or BrokenKernel when it goes wrong."""
        made = schedule or self.schedules[len(rows) - 1]
        p, n = self.params, len(rows)
        self.put("tokens", np.array([row.token for row in rows], np.int32))
        self.put("positions", np.array([row.position for row in rows], np.int32))
        table = np.full((2, MAX_ROWS, MAX_PAGES), 1 << 28, np.int32)  # never a page
        for r, (row, first) in enumerate(zip(rows, chains(rows), strict=True)):
            p.first_row[r] = p.table_row[r] = first
            for group in (FULL, SLIDING):
                table[group, first, : len(row.pages.tables[group])] = row.pages.tables[group]
        self.put("page_table", table)
        self.memory["logits"].fill_(0xFF)  # NaNs
        p.n_rows, p.n_splits = n, made.n_splits
        p.tasks, p.offsets = self.uploaded("tasks", made.tasks), self.uploaded("offsets", made.offsets)
        self.n_steps += 1
        p.step = self.n_steps
        self.launch()
        if self.get("abort_flag", np.uint32)[0]:
            self.put("abort_flag", np.zeros(1, np.uint32))
            who, ordinal, seen, wanted = (int(x) for x in self.get("mailbox", np.uint32))
            raise AbortedStep(who >> 16, who >> 8 & 255, KIND_NAMES[who & 255], ordinal, seen, wanted)
        vocab = self.model.config.vocab
        return self.get("logits", np.float32, 0, n * vocab * 4).astype(np.float32).reshape(n, vocab)

    def leaders(self, n_rows: int) -> NDArray[np.void]:
        """(n_rows, SMs) LEADER records of the last step."""
        n_bytes = n_rows * self.n_sms * LEADER.itemsize
        return self.get("leaders", np.uint8, 0, n_bytes).view(LEADER).reshape(n_rows, self.n_sms)

    def jump(self, step: int) -> None:
        """The next step is number `step`; clears what steps count on, as the backend does."""
        for name in ("activations", "queues", "counters"):
            self.memory[name].zero_()
        self.n_steps = step - 1

    # ------------------------------------------------------------------ single waves
    def run_waves(
        self, waves: Iterable[str], rows: Sequence[Row], inputs: dict[str, tuple[int, Words]]
    ) -> NDArray[np.float32]:
        """Runs the tasks of some waves alone, counters filled and every activation that is no input poisoned.

        inputs: per buffer the layer whose tag it carries, and its payloads. Returns the step's logits."""
        n_owners = self.params.n_owners
        if "residual" in inputs:
            self.params.n_owners = 0  # nobody writes the embedding over it
        schedule = self.schedules[len(rows) - 1]
        indices = [schedule.wave_names.index(wave) for wave in waves]
        keep = np.isin(schedule.tasks["wave"], indices)
        before = np.concatenate([[0], np.cumsum(keep)])
        alone = replace(schedule, tasks=schedule.tasks[keep], offsets=before[schedule.offsets].astype(np.int32))
        self.ran_alone |= {int(opcode) for opcode in alone.tasks["opcode"]}
        step = self.n_steps + 1
        self.memory["activations"].fill_(0xFF)
        half = self.params.n_counters * 32
        filled = np.zeros((half // 32, 32), np.uint32)
        filled[:, 0] = COUNTED_ENOUGH
        self.put("counters", filled, (step & 1) * half * 4)
        for name, (layer, payloads) in inputs.items():
            both = np.empty((len(payloads), 2), np.uint32)
            placed = payloads.reshape(-1, 8)[:, OPERAND_ORDER].reshape(-1) if self._is_operand(name) else payloads
            both[:, 0], both[:, 1] = placed, step * 256 + layer
            self.put("activations", both, self._offset(name))
        try:
            logits = self.step(rows, alone)
        finally:
            self.params.n_owners = n_owners
        if not self.lean:
            counted = self.get("counters", np.uint32, (step & 1) * half * 4, half * 4).reshape(-1, 32)[:, 0]
            for index in indices:
                signals, wanted = int(counted[index]) - COUNTED_ENOUGH, int((alone.tasks["wave"] == index).sum())
                assert signals == wanted, f"{signals} signals of {wanted} tasks of {schedule.wave_names[index]}"
        return logits

    def _is_operand(self, name: str) -> bool:
        return name in OPERANDS or (name == "residual" and self.lean)

    def _offset(self, name: str) -> int:
        return int(getattr(self.params, name)) - self.memory["activations"].data_ptr()

    def tagged(self, name: str, n: int) -> Words:
        """(n, 2) payloads and tags of the activation buffer that the parameter `name` points to."""
        return self.get("activations", np.uint32, self._offset(name), n * 8).reshape(n, 2).astype(np.uint32)

    def results(self, name: str, n: int, layer: int) -> Words:
        """(n,) payloads that the last step left; all must carry the layer's tag."""
        found, tag = self.tagged(name, n), self.n_steps * 256 + layer
        assert (found[:, 1] == tag).all(), f"{name}: {(found[:, 1] != tag).sum()} of {n} unset"
        words = found[:, 0]
        if self._is_operand(name):
            words = words.reshape(-1, 8)[:, np.argsort(OPERAND_ORDER)].reshape(-1)
        return words.copy()

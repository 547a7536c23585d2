"""The decode megakernel itself, compiled for the host: csrc/megakernel*.cu over the emulated device of host_cuda/.

`HostKernel` drives tiny models with it; the code that packs weights and pages for the GPU packs them on the CPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pointcode_local.engine.cuda.backend import megakernel_schedules
from pointcode_local.engine.cuda.device_weights import DeviceLayer, DeviceModel
from pointcode_local.engine.cuda.loader import load_model
from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES, write_tokens
from pointcode_local.engine.kv_cache import FULL, SLIDING, KvCache, SequencePages
from pointcode_local.engine.models.reference import GrowingKv, TorchModel
from pointcode_local.engine.plans import kv_geometry
from pointcode_local.engine.scheduler import Schedule
from pointcode_local.engine.weights import ModelWeights, WeightKind

ROOT = Path(__file__).resolve().parents[2]
EMULATION = Path(__file__).parent / "host_cuda"
MAX_ROWS, MAX_PAGES = 8, 16
KIND_NAMES = (
    "nothing", "descriptor", "ring full", "ring empty", "reduce full", "reduce empty", "warps", "route", "data",
    "counter",
)  # fmt: skip


def compiler() -> str | None:
    """The C++ compiler, or None."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def build(folder: Path) -> ctypes.CDLL:
    """Compiles the kernel and the emulation to a library in `folder`, once for all who share it, and loads it."""
    sources = sorted([*(ROOT / "csrc").glob("*.[ch]*"), *EMULATION.iterdir()])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    library = folder / f"host_kernel-{digest}.so"
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    loaded = ctypes.CDLL(str(library))
    loaded.pointcode_mk_place.restype = ctypes.c_size_t
    loaded.host_cuda_error.restype = ctypes.c_char_p
    return loaded


def _compile(library: Path) -> None:
    kernels = sorted((ROOT / "csrc").glob("megakernel*.cu"))
    made = library.with_suffix(".new")
    command = [
        str(compiler()), "-std=c++20", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC", "-shared",
        "-fno-semantic-interposition", "-Wl,-Bsymbolic", "-Wno-unknown-pragmas", "-DPOINTCODE_HOST_CUDA",
        f"-I{EMULATION}", f"-I{ROOT / 'csrc'}", "-x", "c++", *map(str, kernels), str(ROOT / "csrc/mk_buffers.cc"),
        str(EMULATION / "host_cuda.cc"), "-o", str(made),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    made.rename(library)


class MkLayer(ctypes.Structure):
    """csrc/mk_params.h: Layer."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("qkv", "o", "router", "upgate", "down", "norm", "k", "v")] + [
        ("flags", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
    ]


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
    ]


@dataclass(slots=True)
class Row:
    """One sequence: its pages, and the token that the next step feeds."""

    pages: SequencePages
    token: int
    position: int
    kv: GrowingKv  # the reference's keys and values


class Oracle(TorchModel):
    """The fp32 reference; it also tells how clear the router's choices were."""

    def __init__(self, weights: ModelWeights) -> None:
        super().__init__(weights, use_native=False)
        self.margin = math.inf  # of the last token: least gap between a chosen and a left-out expert, in deviations

    def _experts(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        logits = self._product(h, layer, WeightKind.ROUTER)[-1].sort(descending=True).values
        k = self.config.top_k
        self.margin = min(self.margin, float((logits[k - 1] - logits[k]) / logits.std()))
        return super()._experts(h, layer)

    def next_logits(self, row: Row) -> torch.Tensor:
        """(vocab,) logits of the row's next token."""
        self.margin = math.inf
        logits = self.forward([row.token], row.kv, first_position=row.position)
        assert logits is not None
        return logits[0]


class AbortedStep(Exception):
    """A bounded wait expired: (block, warp, what it waits for, task's ordinal)."""


class BrokenKernel(Exception):
    """The emulation found a fault: lanes that meet in different places, a barrier out of phase, …"""


@dataclass(slots=True)
class HostKernel:
    """A tiny model and everything that decodes it on the emulated device."""

    library: ctypes.CDLL
    model: DeviceModel
    kv: KvCache
    oracle: Oracle
    schedules: list[Schedule]
    n_sms: int
    seed: int = 1
    n_steps: int = 0
    params: MkParams = field(default_factory=MkParams)
    layers: ctypes.Array[MkLayer] | None = None
    keep: dict[str, NDArray[np.generic]] = field(default_factory=dict[str, NDArray[np.generic]])

    @classmethod
    def of(cls, library: ctypes.CDLL, weights: ModelWeights, n_sms: int, *, order: str = "lean") -> HostKernel:
        """Packs the weights; pages start as NaNs."""
        cpu = torch.device("cpu")
        model, _ = load_model(weights, cpu)
        kv = KvCache(kv_geometry(weights.config, 2), 40, 40, cpu)
        for pool in kv.pools:
            pool.k.fill_(float("nan"))
            pool.v.fill_(float("nan"))
        schedules = megakernel_schedules(weights.config, n_sms, order=order)
        made = cls(library, model, kv, Oracle(weights), schedules, n_sms)
        made.set_up()
        return made

    # ------------------------------------------------------------------ setup
    def _array(self, name: str, shape: int | tuple[int, ...], dtype: type, fill: int = 0) -> NDArray[np.generic]:
        """Zeroed (or filled) memory aligned to 256 bytes that lives as long as this object; sets the field `name`."""
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.full(n_bytes + 256, fill, np.uint8)
        at = -raw.ctypes.data % 256
        made = raw[at : at + n_bytes].view(dtype).reshape(shape)
        self.keep[name] = made
        if hasattr(self.params, name):
            setattr(self.params, name, made.ctypes.data)
        return made

    def set_up(self) -> None:
        """Fills the parameters that do not change between steps."""
        c, p = self.model.config, self.params
        assert ctypes.sizeof(MkParams) == self.library.pointcode_mk_params_size()
        for name in ("hidden", "n_heads", "n_kv_heads", "head_dim", "vocab", "n_experts", "top_k", "n_layers"):
            setattr(p, name, getattr(c, name))
        p.window, p.norm_topk, p.max_pages = c.window, c.norm_topk, MAX_PAGES
        p.n_owners = min(self.n_sms, c.hidden // 16)
        p.eps, p.logit_scale, p.rope_theta = c.eps, c.logit_scale, c.rope_theta
        p.q_scale = c.attn_scale * math.log2(math.e)
        layers = (MkLayer * c.n_layers)(*(self._layer(i, layer) for i, layer in enumerate(self.model.layers)))
        self.layers = layers
        p.layers = ctypes.addressof(layers)
        p.final_norm, p.lm_head = self.model.final_norm.data_ptr(), self.model.head.data.data_ptr()
        p.embed = self.model.embed.data.data_ptr()
        p.n_queues = max(1, *(s.n_queues for s in self.schedules))
        p.n_counters = max(s.n_counters for s in self.schedules)
        p.counted = self.schedules[0].order != "lean"
        p.in_flight_bytes, p.spin_limit = 64 << 10, 1_000_000
        self._array("tokens", MAX_ROWS, np.int32)
        self._array("positions", MAX_ROWS, np.int32)
        self._array("page_table", (2, MAX_ROWS, MAX_PAGES), np.int32)
        self._array("queues", (2, p.n_queues), np.uint32)
        self._array("counters", (2, p.n_counters, 32), np.uint32)
        self._array("abort_flag", 1, np.uint32)
        self._array("mailbox", 4, np.uint32)
        self._array("logits", (MAX_ROWS, c.vocab), np.float32)
        splits = max(s.n_splits for s in self.schedules)
        size = self.library.pointcode_mk_place(ctypes.byref(p), layers, splits, None)
        place = self._array("activations", int(size), np.uint8)
        self.library.pointcode_mk_place(ctypes.byref(p), layers, splits, ctypes.c_void_p(place.ctypes.data))

    def _layer(self, index: int, layer: DeviceLayer) -> MkLayer:
        spec, (k, v) = self.model.config.layers[index], self.kv.layer(index)
        return MkLayer(
            layer.qkv.data.data_ptr(), layer.o.data.data_ptr(), layer.router.data.data_ptr() if layer.router else 0,
            layer.upgate.data.data_ptr(), layer.down.data.data_ptr(), layer.norm.data_ptr(), k.data_ptr(),
            v.data_ptr(), spec.rope | spec.sliding << 1 | spec.moe << 2, spec.intermediate,
        )  # fmt: skip

    # ------------------------------------------------------------------ use
    def start(self, prompt: Sequence[int], n_new: int) -> Row:
        """A row that goes on after the prompt; its pages hold the reference's keys and values."""
        pages, kv = SequencePages(self.kv), GrowingKv(self.model.config.n_layers)
        pages.grow(len(prompt) + n_new)
        n = len(prompt) - 1
        if n:
            self.oracle.forward(prompt[:-1], kv, logits="none")
            for i in range(self.model.config.n_layers):
                table = pages.tables[self.kv.group_of(i)]
                for pool, values, is_value in zip(self.kv.layer(i), kv.gather(i, 0, n), (False, True), strict=True):
                    write_tokens(FRAGMENT_PAGES, pool, table, 0, values.bfloat16(), is_value=is_value)
        return Row(pages, prompt[-1], n, kv)

    def step(self, rows: Sequence[Row], schedule: Schedule | None = None) -> NDArray[np.float32]:
        """(rows, vocab) logits of one step, poisoned before; AbortedStep or BrokenKernel when it goes wrong."""
        made = schedule or self.schedules[len(rows) - 1]
        p, keep = self.params, self.keep
        for r, row in enumerate(rows):
            keep["tokens"][r], keep["positions"][r] = row.token, row.position
            for group in (FULL, SLIDING):
                table = row.pages.tables[group]
                keep["page_table"][group, r, : len(table)] = table
        keep["logits"][:] = np.nan
        p.n_rows, p.n_splits = len(rows), made.n_splits
        tasks, offsets = np.ascontiguousarray(made.tasks), np.ascontiguousarray(made.offsets)
        p.tasks, p.offsets = tasks.ctypes.data, offsets.ctypes.data
        self.n_steps += 1
        p.step = self.n_steps
        self.seed += 1
        self.library.host_cuda_seed(ctypes.c_uint64(self.seed))
        failed = self.library.pointcode_mk_step(ctypes.byref(p), self.n_sms, None)
        if failed:
            raise BrokenKernel(self.library.host_cuda_error().decode())
        if keep["abort_flag"][0]:
            who, ordinal, seen, wanted = (int(x) for x in keep["mailbox"])
            raise AbortedStep(who >> 16, who >> 8 & 255, KIND_NAMES[who & 255], ordinal, seen, wanted)
        return keep["logits"][: len(rows)].astype(np.float32)

    def jump(self, step: int) -> None:
        """The next step is number `step`; clears what steps count on, as the backend does."""
        for name in ("activations", "queues", "counters"):
            self.keep[name][:] = 0
        self.n_steps = step - 1

    # ------------------------------------------------------------------ single tasks
    def tagged(self, name: str, n: int) -> NDArray[np.uint32]:
        """(n, 2) payloads and tags of the activation buffer that the parameter `name` points to."""
        memory = self.keep["activations"]
        at = getattr(self.params, name) - memory.ctypes.data
        return memory[at : at + n * 8].view(np.uint32).reshape(n, 2)

    def run_wave(
        self, wave: str, n_rows: int, inputs: dict[str, tuple[int, NDArray[np.uint32]]], positions: Sequence[int] = ()
    ) -> int:
        """Runs the tasks of one wave alone, its counters filled and every other activation poisoned.

        inputs: per buffer the layer whose tag it carries and its payloads. Returns the step's number."""
        schedule = self.schedules[n_rows - 1]
        index = schedule.wave_names.index(wave)
        keep = schedule.tasks["wave"] == index
        before = np.concatenate([[0], np.cumsum(keep)])
        alone = replace(schedule, tasks=schedule.tasks[keep], offsets=before[schedule.offsets].astype(np.int32))
        step = self.n_steps + 1
        self.keep["activations"][:] = 0xFF
        self.keep["counters"][step & 1, :, 0] = 1000
        for name, (layer, payloads) in inputs.items():
            buffer = self.tagged(name, len(payloads))
            buffer[:, 0], buffer[:, 1] = payloads, step * 256 + layer
        pages, kv = SequencePages(self.kv), GrowingKv(self.model.config.n_layers)
        pages.grow(128)
        self.step([Row(pages, 3 + r, positions[r] if positions else 5, kv) for r in range(n_rows)], alone)
        pages.release()
        signals = int(self.keep["counters"][step & 1, index, 0]) - 1000
        assert signals == len(alone.tasks), f"{signals} signals of {len(alone.tasks)} tasks"
        return step

    def results(self, name: str, n: int, step: int, layer: int) -> NDArray[np.uint32]:
        """(n,) payloads that a step left; all must carry the layer's tag."""
        buffer = self.tagged(name, n)
        assert (buffer[:, 1] == step * 256 + layer).all(), f"{name}: {(buffer[:, 1] != step * 256 + layer).sum()} unset"
        return buffer[:, 0].copy()

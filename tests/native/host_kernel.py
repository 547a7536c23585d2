"""The decode megakernel itself, compiled for the host: csrc/megakernel*.cu over the emulated device of host_cuda/.

`HostKernel` drives tiny models with it; the code that packs weights and pages for the GPU packs them on the CPU.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from pointcode_local.engine.cuda.backend import megakernel_schedules
from pointcode_local.engine.cuda.loader import load_model
from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES, write_tokens
from pointcode_local.engine.kv_cache import KvCache, SequencePages
from pointcode_local.engine.models.config import ModelConfig
from pointcode_local.engine.models.reference import GrowingKv, TorchModel
from pointcode_local.engine.plans import kv_geometry
from pointcode_local.engine.scheduler import Schedule
from pointcode_local.engine.weights import ModelWeights, WeightKind

from .host_build import ROOT, compiled
from .kernel import BrokenKernel, Kernel, Row


def build() -> ctypes.CDLL:
    """The kernel and the emulation, compiled once for all who share them."""
    loaded = compiled("host_kernel", [*(ROOT / "csrc").glob("megakernel*.cu"), ROOT / "csrc/mk_buffers.cc"])
    loaded.pointcode_mk_place.restype = ctypes.c_size_t
    return loaded


@cache
def schedules_of(config: ModelConfig, n_sms: int, order: str) -> list[Schedule]:
    """Proved once for all kernels of a kind: that takes longer than a step."""
    return megakernel_schedules(config, n_sms, order=order)


@dataclass(slots=True)
class CheckedRow(Row):
    """A row with what the reference knows of it."""

    kv: GrowingKv


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

    def next_logits(self, row: CheckedRow) -> torch.Tensor:
        """(vocab,) logits of the row's next token."""
        self.margin = math.inf
        logits = self.forward([row.token], row.kv, first_position=row.position)
        assert logits is not None
        return logits[0]


@dataclass(slots=True, kw_only=True)
class HostKernel(Kernel):
    """The kernel on the emulated device, beside the fp32 reference."""

    oracle: Oracle
    seed: int = 1

    @classmethod
    def of(cls, library: ctypes.CDLL, weights: ModelWeights, n_sms: int, *, order: str = "lean") -> HostKernel:
        """Packs the weights; pages start as NaNs."""
        cpu = torch.device("cpu")
        model, _ = load_model(weights, cpu)
        kv = KvCache(kv_geometry(weights.config, 2), 40, 40, cpu)
        schedules = schedules_of(weights.config, n_sms, order)
        made = cls(library, model, kv, schedules, n_sms, oracle=Oracle(weights))
        made.set_up()
        return made

    def launch(self) -> None:
        """One step, interleaved as the next seed says."""
        self.seed += 1
        self.library.host_cuda_seed(ctypes.c_uint64(self.seed))
        if self.library.pointcode_mk_step(ctypes.byref(self.params), self.n_sms, None):
            raise BrokenKernel(self.library.host_cuda_error().decode())

    def start(self, prompt: Sequence[int], n_new: int) -> CheckedRow:
        """A row that goes on after the prompt; its pages hold the reference's keys and values."""
        pages, kv = SequencePages(self.kv), GrowingKv(self.model.config.n_layers)
        pages.grow(len(prompt) + n_new)
        n = len(prompt) - 1
        if n:
            self.oracle.forward(prompt[:-1], kv, logits="none")
            for i in range(self.model.config.n_layers):
                table = pages.tables[self.kv.group_of(i)]
                keys, values = (run.bfloat16() for run in kv.gather(i, 0, n))
                write_tokens(FRAGMENT_PAGES, self.kv.layer(i), table, 0, keys, values)
        return CheckedRow(pages, prompt[-1], n, kv)

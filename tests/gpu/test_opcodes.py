"""Every opcode of both kernels alone on the GPU: the emulation's cases, batch 1 to 8, up to the full model's widths.

The extension's own entry point is called, as the backend calls it; only the buffers are the test's.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, replace

import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine.cuda.backend import megakernel_schedules
from pointcode_local.engine.cuda.card import n_sms
from pointcode_local.engine.cuda.random_weights import north_mini, random_model
from pointcode_local.engine.kv_cache import KvCache
from pointcode_local.engine.models.config import LayerSpec, ModelConfig
from pointcode_local.engine.plans import kv_geometry

from ..native.kernel import BrokenKernel, Kernel
from ..native.opcode_bed import Bed
from ..native.opcode_cases import CASES, ORDERS, Case
from .support import needs_gpu

pytestmark = needs_gpu
GPU = torch.device("cuda", 0)
LONGEST = 4400  # tokens of a row: past the full model's window
N_PAGES = 8 * (LONGEST // 64 + 1)


def small(**changes: object) -> ModelConfig:
    """Two layers, widths that fill neither a stage nor a group of heads."""
    layers = (LayerSpec(True, False, False, 96), LayerSpec(True, True, True, 48))
    base = north_mini(2, 328)
    made = replace(base, hidden=64, n_heads=4, n_kv_heads=2, head_dim=32, layers=layers, n_experts=8, top_k=3)
    return replace(made, window=70, eps=0.3, rope_theta=100.0, logit_scale=0.7, **changes)  # type: ignore[arg-type]


SHAPES = {
    "small": small(),
    "several stages": small(
        hidden=256, n_heads=16, head_dim=64, n_experts=12, norm_topk=True,
        layers=(LayerSpec(True, False, False, 640), LayerSpec(True, True, True, 528)),
    ),
    "full size": north_mini(2, 4100),
}  # fmt: skip


@dataclass(slots=True)
class GpuKernel(Kernel):
    """The kernel in the extension, on the first GPU."""

    @classmethod
    def of(cls, config: ModelConfig, order: str) -> GpuKernel:
        """With random weights, for all SMs."""
        library = ctypes.CDLL(_native.__file__)
        library.pointcode_mk_place.restype = ctypes.c_size_t
        sms = n_sms(GPU)
        model, kv = random_model(config, GPU), KvCache(kv_geometry(config, 2), N_PAGES, N_PAGES, GPU)
        made = cls(library, model, kv, megakernel_schedules(config, sms, order=order), sms)
        made.set_up()
        made.params.in_flight_bytes, made.params.spin_limit = 48 << 10, 300_000  # as the backend has them
        return made

    def launch(self) -> None:
        """One step on the default stream, where the buffers were filled."""
        error = self.library.pointcode_mk_step(ctypes.byref(self.params), self.n_sms, None)
        if error:
            raise BrokenKernel(f"the launch failed: CUDA error {error}")
        torch.cuda.synchronize(GPU)


@functools.cache
def kernel_of(shape: str, order: str) -> GpuKernel:
    """Made once: pytest goes through the shapes anew for every number of rows."""
    return GpuKernel.of(SHAPES[shape], order)


def kernels_and_cases() -> list[object]:
    """Every case on a kernel of every shape and of each order that has its wave."""
    return [
        pytest.param(shape, order, case, id=f"{shape}-{order}-{case.name}")
        for shape in SHAPES
        for order in ORDERS
        for case in CASES
        if order in case.orders
    ]


@pytest.mark.parametrize(("shape", "order", "case"), kernels_and_cases())
@pytest.mark.parametrize("n_rows", range(1, 9))
def test_the_opcode_alone_agrees_with_torch(shape: str, order: str, case: Case, n_rows: int) -> None:
    case.check(Bed(kernel_of(shape, order), n_rows, torch.Generator().manual_seed(n_rows), LONGEST))

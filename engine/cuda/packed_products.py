"""Products of a prefill chunk straight from packed weights, with the native kernel (csrc/prefill_gemm.cu), on Hopper.

Letters: E matrices of a bank, P pairs (or tokens), K reduction length, R rows of a matrix.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from .. import _native
from .packing import pack_matrix

if TYPE_CHECKING:
    from .device_weights import DeviceMatrix

HOPPER = (9, 0)
enabled = False  # the kernel has not run on a card yet
ROWS_UNIT, K_UNIT, MOST_MATRICES = 128, 128, 256  # as in csrc/prefill_gemm.h


def can_multiply(*matrices: DeviceMatrix) -> bool:
    """Whether the kernel runs here and takes these matrices."""
    return (
        enabled
        and all(
            m.packed and m.rows % ROWS_UNIT == 0 and m.k % K_UNIT == 0 and m.count <= MOST_MATRICES for m in matrices
        )
        and products_work(matrices[0].data.device)
    )


def products(
    packed: torch.Tensor,
    rows: int,
    k: int,
    x: torch.Tensor,
    ends: torch.Tensor,
    *,
    source: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """Pair p in [ends[e - 1], ends[e]): matrix e (R, K) of the packed bank times row source[p] of x; (P, R) bf16.

    Gated: (P, R / 2) silu(gate) · up · scale[p] of the product's gates and ups, which alternate in runs of eight.
    x (any, K) bf16 contiguous; ends (E,), source (P,) int32; without `source`, pair p is row p of x; scale (P,) fp32.
    """
    n = x.shape[0] if source is None else source.shape[0]
    out = x.new_empty(n, rows // 2 if gated else rows)
    _native.packed_products(
        packed.data_ptr(),
        x.data_ptr(),
        0 if source is None else source.data_ptr(),
        0 if scale is None else scale.data_ptr(),
        ends.data_ptr(),
        out.data_ptr(),
        packed.shape[0],
        rows,
        k,
        packed.shape[2],
        gated,
        _n_sms(x.device),
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    return out


@lru_cache(maxsize=8)
def products_work(device: torch.device) -> bool:
    """Whether the kernel is built in and gives what torch gives (tried once, on a small bank)."""
    built = getattr(_native, "HAS_CUDA", False) and hasattr(_native, "packed_products")
    if not built or device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return False
    generator = torch.Generator(device).manual_seed(0)
    bank = torch.randn(3, 256, 256, device=device, generator=generator).to(torch.bfloat16)
    x = torch.randn(150, 256, device=device, generator=generator).to(torch.bfloat16)
    source = torch.randint(150, (400,), device=device, generator=generator, dtype=torch.int32)
    scale = torch.rand(400, device=device, generator=generator)
    limits = (70, 70, 400)
    packed = torch.cat([pack_matrix(matrix) for matrix in bank])
    ends = torch.tensor(limits, dtype=torch.int32, device=device)
    ours = products(packed, 256, 256, x, ends, source=source)
    gated = products(packed, 256, 256, x, ends, source=source, scale=scale, gated=True)
    wanted = torch.cat(
        [x[source[a:b].long()].float() @ m.float().t() for m, a, b in zip(bank, (0, *limits), limits, strict=False)]
    )
    gate, up = wanted.view(400, -1, 2, 8).unbind(2)
    wanted_gated = (torch.nn.functional.silu(gate) * up).flatten(1) * scale.unsqueeze(1)
    return _is_close(ours, wanted) and _is_close(gated, wanted_gated)


def _is_close(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((ours.float() - wanted).norm() <= 0.01 * wanted.norm())


@lru_cache(maxsize=8)
def _n_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count

"""Products of a prefill chunk straight from packed weights, with the native kernels (csrc/prefill_gemm.cu), on Hopper.

Letters: E matrices of a bank, P pairs (or tokens), K reduction length, R rows of a matrix. "Panels" of a (P, K) matrix
are (K / 64, P, 64): of pair p's eight 16-byte chunks in a panel, chunk c lies at c ^ (p % 8), as tensor cores take it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from .. import _native
from .card import n_sms
from .packing import pack_matrix

if TYPE_CHECKING:
    from .device_weights import DeviceMatrix

HOPPER = (9, 0)
enabled = True
CLUSTER = 2  # blocks that share their pairs; of 1, 2 and 4 the fastest in a whole prefill
ROWS_UNIT, K_UNIT, MOST_MATRICES = 128 * CLUSTER, 128, 256  # as in csrc/prefill_gemm.h
RUN_UNIT = 8  # a matrix's pairs begin at multiples


def can_multiply(*matrices: DeviceMatrix) -> bool:
    """Whether the kernel runs here and takes these matrices."""
    return (
        enabled
        and all(
            m.packed and m.rows % ROWS_UNIT == 0 and m.k % K_UNIT == 0 and m.count <= MOST_MATRICES for m in matrices
        )
        and products_work(matrices[0].data.device)
    )


def gather_panels(x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
    """Panels of x[source]: x (T, K) bf16, source (P,) int32, P a multiple of 8. Rows of wrong sources are not set.

    Without `source`, of x and of as many unset rows as make T a multiple of 8."""
    n, k = x.shape[0] + -x.shape[0] % RUN_UNIT if source is None else source.shape[0], x.shape[1]
    panels = x.new_empty(k // 64, n, 64)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    index = 0 if source is None else source.data_ptr()
    _native.gather_panels(x.data_ptr(), index, panels.data_ptr(), x.shape[0], k, n, stream)
    return panels


def linear(x: torch.Tensor, matrix: DeviceMatrix) -> torch.Tensor:
    """x (T, K) bf16 times matrix 0 (R, K) transposed: (T, R)."""
    n = x.shape[0]
    begins, ends = _whole(n, x.device)
    return products(matrix.data, matrix.rows, matrix.k, gather_panels(x), begins, ends)[:n]


def products(
    packed: torch.Tensor,
    rows: int,
    k: int,
    panels: torch.Tensor,
    begins: torch.Tensor,
    ends: torch.Tensor,
    *,
    gated: bool = False,
    cluster: int = CLUSTER,
) -> torch.Tensor:
    """Pair p in [begins[e], ends[e]): matrix e (R, K) of the packed bank times row p of x, given in panels: (P, R).

    Gated: silu(gate) · up of the product's gates and ups, which alternate in runs of eight; panels of (P, R / 2).
    begins, multiples of 8, and ends (E,) int32. Rows of no matrix are not set.
    """
    n = panels.shape[1]
    out = panels.new_empty(*((rows // 128, n, 64) if gated else (n, rows)))
    _native.packed_products(
        packed.data_ptr(),
        panels.data_ptr(),
        begins.data_ptr(),
        ends.data_ptr(),
        out.data_ptr(),
        packed.shape[0],
        rows,
        k,
        packed.shape[2],
        n,
        gated,
        cluster,
        n_sms(panels.device),
        torch.cuda.current_stream(panels.device).cuda_stream,
    )
    return out


def to_panels(x: torch.Tensor) -> torch.Tensor:
    """(K / 64, P, 64) of x (P, K); a twin of the native kernel for tests."""
    return _swap_chunks(x.view(x.shape[0], -1, 64).transpose(0, 1))


def from_panels(panels: torch.Tensor) -> torch.Tensor:
    """(P, K) of panels (K / 64, P, 64)."""
    return _swap_chunks(panels).transpose(0, 1).flatten(1)


def _swap_chunks(panels: torch.Tensor) -> torch.Tensor:
    n = panels.shape[1]
    chunk = torch.arange(8).unsqueeze(0) ^ torch.arange(n).unsqueeze(1) % 8
    index = chunk.to(panels.device).view(1, n, 8, 1).expand(panels.shape[0], n, 8, 8)
    return panels.unflatten(2, (8, 8)).gather(2, index).flatten(2)


@lru_cache(maxsize=64)
def _whole(n: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    begins, ends = torch.tensor([[0], [n]], dtype=torch.int32).to(device)
    return begins, ends


@lru_cache(maxsize=8)
def products_work(device: torch.device) -> bool:
    """Whether the kernels are built in and give what torch gives (tried once, on a small bank)."""
    built = getattr(_native, "HAS_CUDA", False) and hasattr(_native, "packed_products")
    if not built or device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return False
    generator = torch.Generator(device).manual_seed(0)
    bank = torch.randn(3, 256, 256, device=device, generator=generator).to(torch.bfloat16)
    x = torch.randn(150, 256, device=device, generator=generator).to(torch.bfloat16)
    source = torch.randint(150, (400,), device=device, generator=generator, dtype=torch.int32)
    runs = ((0, 70), (72, 72), (72, 399))
    packed = torch.cat([pack_matrix(matrix) for matrix in bank])
    begins, ends = torch.tensor(runs, dtype=torch.int32, device=device).t().contiguous()
    panels = gather_panels(x, source)
    plain = products(packed, 256, 256, panels, begins, ends)
    gated = from_panels(products(packed, 256, 256, panels, begins, ends, gated=True))
    for matrix, (begin, end) in zip(bank, runs, strict=True):
        wanted = x[source[begin:end].long()].float() @ matrix.float().t()
        gate, up = wanted.unflatten(1, (-1, 2, 8)).unbind(2)
        wanted_gated = (torch.nn.functional.silu(gate) * up).flatten(1)
        if not (_is_close(plain[begin:end], wanted) and _is_close(gated[begin:end], wanted_gated)):
            return False
    return True


def _is_close(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((ours.float() - wanted).norm() <= 0.01 * wanted.norm())

"""The prefill product kernels' own source, compiled for the host, against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from pointcode_local.engine.cuda import ops, packing
from pointcode_local.engine.cuda.packed_products import from_panels, to_panels

from .host_build import EMULATION, ROOT, compiled, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="the emulation is compiled, and there is no C++ compiler")


class Products(ctypes.Structure):
    """`prefill::Products` of csrc/prefill_gemm.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "x", "begins", "ends", "out")),
        *((name, ctypes.c_int32) for name in ("n_banks", "rows", "k", "k_tiles", "pitch")),
        ("gated", ctypes.c_bool),
    ]


class Gather(ctypes.Structure):
    """`prefill::Gather` of csrc/prefill_gemm.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "source", "panels")),
        *((name, ctypes.c_int32) for name in ("n_tokens", "k", "pitch")),
    ]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    sources = [ROOT / "csrc/prefill_gemm.cu", ROOT / "csrc/prefill_panels.cu", EMULATION.parent / "products_entry.cu"]
    return compiled("products", sources)


def aligned(values: torch.Tensor) -> torch.Tensor:
    """A copy on a 16-byte boundary, as the device's memory is."""
    raw = torch.empty(values.numel() * values.element_size() + 16, dtype=torch.uint8)
    at = -raw.data_ptr() % 16
    copy = raw[at : at + values.numel() * values.element_size()].view(values.dtype).view(values.shape)
    return copy.copy_(values)


def nans(*shape: int) -> torch.Tensor:
    return aligned(torch.full(shape, float("nan"), dtype=torch.bfloat16))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("rows", "k", "counts", "cluster", "n_sms"),
    [
        (128, 128, (1,), 1, 1),
        (256, 256, (0, 130, 3, 0), 2, 2),
        (256, 384, (257, 193), 2, 5),
        (384, 128, (70,), 1, 5),
        (512, 128, (85, 9), 2, 4),
    ],
)
def test_products_equal_those_of_the_unpacked_matrices(
    library: ctypes.CDLL, gated: bool, rows: int, k: int, counts: tuple[int, ...], cluster: int, n_sms: int
) -> None:
    torch.manual_seed(rows + k)
    sizes = torch.tensor(counts)
    whole = (sizes + 7) // 8 * 8
    begins, pitch = (whole.cumsum(0) - whole).int(), int(whole.sum()) + 16
    ends = begins + sizes.int()
    bank, x = torch.randn(len(counts), rows, k).bfloat16() * 0.1, torch.randn(pitch, k).bfloat16()
    packed = aligned(torch.cat([packing.pack_matrix(matrix) for matrix in bank]))
    out, panels = nans(rows // 128, pitch, 64) if gated else nans(pitch, rows), aligned(to_panels(x))
    tensors = (packed, panels, begins, ends, out)
    products = Products(*(t.data_ptr() for t in tensors), len(counts), rows, k, packed.shape[2], pitch, gated)
    library.host_cuda_seed(ctypes.c_uint64(k))
    assert library.run_products(ctypes.byref(products), cluster, n_sms) == 0, library.host_cuda_error()
    got = (from_panels(out) if gated else out).float()
    for matrix, begin, end in zip(bank, begins.tolist(), ends.tolist(), strict=True):
        wanted = x[begin:end].float() @ matrix.float().t()
        if gated:
            wanted = ops.silu_up(wanted)
        assert (got[begin:end] - wanted).norm() <= 0.005 * wanted.norm()
        got[begin:end] = float("nan")
    assert got.isnan().all()


def test_sizes_that_the_kernel_does_not_take_are_refused(library: ctypes.CDLL) -> None:
    for rows, k, cluster in ((64, 128, 1), (128, 64, 1), (0, 128, 1), (128, 128, 2), (384, 128, 3), (512, 128, 4)):
        products = Products(0, 0, 0, 0, 0, 1, rows, k, 64, 8, False)
        assert library.run_products(ctypes.byref(products), cluster, 4) != 0


def test_rows_are_gathered_into_panels_without_those_of_no_token(library: ctypes.CDLL) -> None:
    x, source = (
        aligned(torch.randn(9, 192).bfloat16()),
        torch.tensor([3, 8, 0, -7, 3, 9, 1, 2, 8, 7, 6, 5, 4, 3, 2, 99]),
    )
    panels = nans(3, 16, 64)
    index = source.to(torch.int32)
    gather = Gather(x.data_ptr(), index.data_ptr(), panels.data_ptr(), 9, 192, 16)
    assert library.run_gather(ctypes.byref(gather)) == 0, library.host_cuda_error()
    got, real = from_panels(panels), (source >= 0) & (source < 9)
    assert torch.equal(got[real], x[source[real]]) and got[~real].isnan().all()


def test_without_a_source_every_row_is_a_pair_and_those_past_the_last_are_left_out(library: ctypes.CDLL) -> None:
    x, panels = aligned(torch.randn(9, 192).bfloat16()), nans(3, 16, 64)
    gather = Gather(x.data_ptr(), None, panels.data_ptr(), 9, 192, 16)
    assert library.run_gather(ctypes.byref(gather)) == 0, library.host_cuda_error()
    got = from_panels(panels)
    assert torch.equal(got[:9], x) and got[9:].isnan().all()

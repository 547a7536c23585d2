"""The prefill product kernel's own source, compiled for the host, against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from pointcode_local.engine.cuda import moe, ops, packing

from .host_kernel import EMULATION, ROOT, compiler, small_library

pytestmark = pytest.mark.skipif(compiler() is None, reason="the emulation is compiled, and there is no C++ compiler")


class Products(ctypes.Structure):
    """`prefill::Products` of csrc/prefill_gemm.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "x", "source", "scale", "ends", "out")),
        *((name, ctypes.c_int32) for name in ("n_banks", "rows", "k", "k_tiles")),
        ("gated", ctypes.c_bool),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = [ROOT / "csrc/prefill_gemm.cu", EMULATION.parent / "products_entry.cu"]
    return small_library(tmp_path_factory.mktemp("products") / "products.so", sources)


def aligned(values: torch.Tensor) -> torch.Tensor:
    """A copy on a 16-byte boundary, as the device's memory is."""
    raw = torch.empty(values.numel() * values.element_size() + 16, dtype=torch.uint8)
    at = -raw.data_ptr() % 16
    copy = raw[at : at + values.numel() * values.element_size()].view(values.dtype).view(values.shape)
    return copy.copy_(values)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("rows", "k", "counts", "n_sms"),
    [(128, 128, (1,), 1), (256, 256, (0, 130, 3, 0), 2), (128, 384, (257, 193), 3), (384, 128, (70,), 5)],
)
def test_products_equal_those_of_the_unpacked_matrices(
    library: ctypes.CDLL, gated: bool, rows: int, k: int, counts: tuple[int, ...], n_sms: int
) -> None:
    torch.manual_seed(rows + k)
    n = sum(counts)
    bank, x = torch.randn(len(counts), rows, k).bfloat16() * 0.1, aligned(torch.randn(n // 2 + 1, k).bfloat16())
    packed = aligned(torch.cat([packing.pack_matrix(matrix) for matrix in bank]))
    source, scale = torch.randint(n // 2 + 1, (n,), dtype=torch.int32), torch.rand(n)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    out = aligned(torch.full((n, rows // 2 if gated else rows), float("nan"), dtype=torch.bfloat16))
    tensors = (packed, x, source, scale, ends, out)
    products = Products(*(t.data_ptr() for t in tensors), len(counts), rows, k, packed.shape[2], gated)
    library.host_cuda_seed(ctypes.c_uint64(k))
    assert library.run_products(ctypes.byref(products), n_sms) == 0, library.host_cuda_error()
    wanted = moe.grouped_linear(x[source].float(), bank.float(), ends)
    if gated:
        wanted = ops.silu_up(wanted, scale)
    assert (out.float() - wanted).norm() <= 0.005 * wanted.norm()


def test_sizes_that_the_kernel_does_not_take_are_refused(library: ctypes.CDLL) -> None:
    for rows, k in ((64, 128), (128, 64), (0, 128)):
        assert library.run_products(ctypes.byref(Products(0, 0, 0, 0, 0, 0, 1, rows, k, 64, False)), 1) != 0

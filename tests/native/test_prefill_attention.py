"""The prefill attention kernel's own source, compiled for the host, against torch."""

from __future__ import annotations

import ctypes

import pytest
import torch

from pointcode_local.engine.cuda.attention import attend_in_blocks

from .host_build import EMULATION, ROOT, compiled, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="the emulation is compiled, and there is no C++ compiler")
DIMS = 128


class Attention(ctypes.Structure):
    """`prefill::Attention` of csrc/prefill_attention.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_int32) for name in ("n_queries", "n_keys", "heads", "groups", "window")),
        ("scale", ctypes.c_float),
    ]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    sources = [ROOT / "csrc/prefill_attention.cu", EMULATION.parent / "attention_entry.cu"]
    return compiled("attention", sources)


@pytest.mark.parametrize(
    ("n", "n_keys", "heads", "groups", "window", "n_sms"),
    [
        (1, 1, 1, 1, 0, 1),
        (130, 130, 2, 2, 0, 3),
        (150, 407, 2, 1, 0, 2),
        (200, 330, 2, 1, 100, 2),
        (70, 500, 1, 1, 1, 4),
    ],
)
def test_attention_equals_blocks_with_masks(
    library: ctypes.CDLL, n: int, n_keys: int, heads: int, groups: int, window: int, n_sms: int
) -> None:
    torch.manual_seed(n)
    q, k, v = (torch.randn(m, h, DIMS).bfloat16() for m, h in ((n, heads), (n_keys, groups), (n_keys, groups)))
    out = torch.full_like(q, float("nan"))
    attention = Attention(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), n, n_keys, heads, groups, window, DIMS**-0.5
    )
    library.host_cuda_seed(ctypes.c_uint64(n))
    assert library.run_attention(ctypes.byref(attention), n_sms) == 0, library.host_cuda_error()
    wanted = attend_in_blocks(q.float(), k.float(), v.float(), window=window, scale=DIMS**-0.5)
    assert (out.float() - wanted).norm() <= 0.01 * wanted.norm()


def test_sizes_that_the_kernel_does_not_take_are_refused(library: ctypes.CDLL) -> None:
    for n, n_keys, heads, groups in ((0, 1, 1, 1), (2, 1, 1, 1), (1, 1, 3, 2), (1, 1, 1, 0)):
        assert library.run_attention(ctypes.byref(Attention(0, 0, 0, 0, n, n_keys, heads, groups, 0, 1.0)), 1) != 0

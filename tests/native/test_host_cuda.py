"""The emulated device finds the faults that it is there to find."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from .host_build import EMULATION, compiled, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="the emulation is compiled, and there is no C++ compiler")
SOUND, NO_WAIT, DIVERGENT, ARRIVES_TWICE, NEVER_ARRIVES, KEEPS_REGISTERS = range(6)


class Arguments(ctypes.Structure):
    _fields_ = [("source", ctypes.c_void_p), ("out", ctypes.c_void_p), ("fault", ctypes.c_int)]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compiled("faulty", [EMULATION.parent / "faulty_kernels.cu"])


def launch(library: ctypes.CDLL, fault: int, seed: int) -> tuple[np.ndarray, str]:
    raw = np.zeros(64 + 4, np.uint32)
    source = raw[-(raw.ctypes.data // 4) % 4 :][:64]  # aligned to 16 bytes
    source[:] = np.arange(64) + 1
    out = np.zeros(64, np.uint32)
    library.host_cuda_seed(ctypes.c_uint64(seed))
    library.run_faulty(ctypes.byref(Arguments(source.ctypes.data, out.ctypes.data, fault)))
    return out, library.host_cuda_error().decode()


def test_a_sound_kernel_gives_its_result_under_every_seed(library: ctypes.CDLL) -> None:
    for seed in range(50):
        out, error = launch(library, SOUND, seed)
        assert not error and out.tolist() == [(i ^ 1) + 1 for i in range(64)]


def test_a_read_that_does_not_wait_for_its_copy_meets_poison(library: ctypes.CDLL) -> None:
    assert any((launch(library, NO_WAIT, seed)[0] == 0xFFFFFFFF).any() for seed in range(20))


def test_lanes_that_meet_in_different_places_are_named(library: ctypes.CDLL) -> None:
    assert "meet in different places" in launch(library, DIVERGENT, 1)[1]


def test_an_arrival_too_many_is_named(library: ctypes.CDLL) -> None:
    errors = [launch(library, ARRIVES_TWICE, seed)[1] for seed in range(20)]
    assert any("one arrival too many" in error for error in errors)


def test_a_wait_for_an_arrival_that_never_comes_returns_to_the_kernel(library: ctypes.CDLL) -> None:
    out, error = launch(library, NEVER_ARRIVES, 1)
    assert not error and (out == 0).all()


def test_a_wait_for_registers_that_are_never_given_back_is_named(library: ctypes.CDLL) -> None:
    assert "waits for registers that nobody gives back" in launch(library, KEEPS_REGISTERS, 1)[1]

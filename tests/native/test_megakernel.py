"""The GPU's decode kernel, run on the host (host_cuda/): right, repeatable, independent of the batch, and bounded.

The emulated device runs the kernel's own source with a random interleaving of all its threads, late bulk copies and
poisoned shared memory. It shows nothing about fences and speed: tests/gpu does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pointcode_local.engine.scheduler import Schedule
from pointcode_local.engine.weights import ModelWeights, open_weights
from tests.engine.tiny_models import make_tiny

from .host_kernel import AbortedStep, HostKernel, MkParams, Row, build, compiler

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the kernel is compiled for the host, and there is no C++ compiler"),
    pytest.mark.timeout(300),
]

WINDOW = 70
LENGTHS = (1, 63, 64, 65, 70, 71, 129, 30)  # around the borders of pages and of the window


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.getbasetemp().parent)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> ModelWeights:
    """Layers: dense full with RoPE, three sliding with experts, full with experts and without RoPE."""
    torch.set_num_threads(1)
    made = make_tiny(
        "cohere2_moe",
        tmp_path_factory.mktemp("tiny"),
        dtype=torch.bfloat16,
        sliding_window=WINDOW,
        num_hidden_layers=5,
    )
    return open_weights(made)


@pytest.fixture(scope="module")
def kernel(library: ctypes.CDLL, weights: ModelWeights) -> HostKernel:
    return HostKernel.of(library, weights, 4)


def test_no_field_of_the_parameters_is_out_of_place(library: ctypes.CDLL) -> None:
    assert ctypes.sizeof(MkParams) == library.pointcode_mk_params_size()


def prompt_of(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, n).tolist()


def started(kernel: HostKernel, lengths: Sequence[int], n_new: int = 4) -> list[Row]:
    return [kernel.start(prompt_of(n, seed=n), n_new) for n in lengths]


def release(rows: Sequence[Row]) -> None:
    for row in rows:
        row.pages.release()


def check_step(kernel: HostKernel, rows: Sequence[Row]) -> int:
    """One step against the fp32 reference; the rows move on. Returns how many rows were clear.

    A row whose router stands before a near-tie may take another expert in bf16: it proves nothing."""
    logits = torch.from_numpy(kernel.step(rows))
    n_clear = 0
    for ours, row in zip(logits, rows, strict=True):
        wanted = kernel.oracle.next_logits(row)
        if kernel.oracle.margin > 0.05:
            n_clear += 1
            assert (ours - wanted).norm() < 0.015 * wanted.norm(), f"position {row.position}"
        row.token, row.position = int(wanted.argmax()), row.position + 1
    return n_clear


def test_a_full_batch_agrees_with_the_fp32_reference_over_three_steps(kernel: HostKernel) -> None:
    rows = started(kernel, LENGTHS)
    assert sum(check_step(kernel, rows) for _ in range(3)) >= 12
    release(rows)


def test_a_row_has_the_same_bits_alone_in_any_batch_and_in_any_interleaving(kernel: HostKernel) -> None:
    rows = started(kernel, LENGTHS)
    together = kernel.step(rows)  # a step may be repeated: it writes its own position only
    for n in (1, 2, 3, 4, 5, 6, 7, 8):
        assert np.array_equal(kernel.step(rows[:n]), together[:n]), f"{n} rows"
    assert np.array_equal(kernel.step(rows[5:6])[0], together[5])
    release(rows)


@pytest.mark.parametrize("n_sms", [2, 3, 5])
def test_any_number_of_sms_agrees_with_the_reference(library: ctypes.CDLL, weights: ModelWeights, n_sms: int) -> None:
    kernel = HostKernel.of(library, weights, n_sms)
    assert check_step(kernel, started(kernel, (65, 129, 40, 7))) >= 2


def test_a_step_survives_the_wrap_of_the_tag(kernel: HostKernel) -> None:
    rows = started(kernel, (40,))
    wanted = kernel.step(rows)
    kernel.jump((1 << 24) - 1)
    assert np.array_equal(kernel.step(rows), wanted)
    kernel.jump(1)
    assert np.array_equal(kernel.step(rows), wanted)
    release(rows)


def without(schedule: Schedule, wave: str) -> Schedule:
    """The schedule without the tasks of one wave."""
    keep = schedule.tasks["wave"] != schedule.wave_names.index(wave)
    before = np.concatenate([[0], np.cumsum(keep)])
    return replace(schedule, tasks=schedule.tasks[keep], offsets=before[schedule.offsets].astype(np.int32))


@pytest.mark.parametrize("wave", ["L2.router", "L1.qkv", "L3.down"])
def test_a_missing_producer_ends_the_kernel_with_a_name(library: ctypes.CDLL, weights: ModelWeights, wave: str) -> None:
    kernel = HostKernel.of(library, weights, 3)
    kernel.params.spin_limit = 500
    broken = without(kernel.schedules[0], wave)
    with pytest.raises(AbortedStep) as caught:
        kernel.step(started(kernel, (20,)), broken)
    block, warp, kind, ordinal, _seen, _wanted = caught.value.args
    assert 0 <= block < 3 and 0 <= warp < 12 and kind in ("data", "route", "ring full", "descriptor")
    if kind != "descriptor":
        [task] = broken.tasks[broken.tasks["ordinal"] == ordinal]
        assert broken.wave_names[int(task["wave"])] > wave[:2]  # that layer, or a later one

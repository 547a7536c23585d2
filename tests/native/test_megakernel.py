"""The GPU's decode kernel, run on the host (host_cuda/): right, repeatable, independent of the batch, and bounded.

The emulated device runs the kernel's own source with a random interleaving of all its threads, late bulk copies and
poisoned shared memory. It shows nothing about fences and speed: tests/gpu does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine.scheduler import ORDER_NAMES, Schedule
from pointcode_local.engine.weights import ModelWeights, open_weights
from tests.engine.tiny_models import make_tiny

from .host_build import compiler
from .host_kernel import CheckedRow, HostKernel, build
from .kernel import AbortedStep, MkDraw, MkParams
from .test_random_schedules import random_schedule

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the kernel is compiled for the host, and there is no C++ compiler"),
    pytest.mark.timeout(300),
]

WINDOW = 70
NO_TOKEN = 2**31 - 1
LENGTHS = (1, 63, 64, 65, 70, 71, 129, 30)  # around the borders of pages and of the window


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return build()


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


Kernels = Callable[[str], HostKernel]


@pytest.fixture(scope="module")
def kernels(library: ctypes.CDLL, weights: ModelWeights) -> Kernels:
    """One kernel per order, for four SMs."""

    def made(order: str) -> HostKernel:
        return HostKernel.of(library, weights, 4, order=order)

    return cache(made)


@pytest.fixture(params=["lean", "shipped"])
def kernel(request: pytest.FixtureRequest, kernels: Kernels) -> HostKernel:
    return kernels(request.param)


def test_no_field_of_the_parameters_is_out_of_place(library: ctypes.CDLL) -> None:
    assert ctypes.sizeof(MkParams) == library.pointcode_mk_params_size()


def prompt_of(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 320, n).tolist()


def started(kernel: HostKernel, lengths: Sequence[int], n_new: int = 4) -> list[CheckedRow]:
    return [kernel.start(prompt_of(n, seed=n), n_new) for n in lengths]


def release(rows: Sequence[CheckedRow]) -> None:
    for row in rows:
        row.pages.release()


def check_step(kernel: HostKernel, rows: Sequence[CheckedRow]) -> int:
    """One step against the fp32 reference; the rows move on. Returns how many rows were clear.

    A row whose router stands before a near-tie may take another expert in bf16: it proves nothing."""
    logits = torch.from_numpy(kernel.step(rows))
    n_clear = 0
    for ours, row in zip(logits, rows, strict=True):
        wanted = kernel.oracle.next_logits(row)
        if kernel.oracle.margin > 0.02:
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
    for n in (1, 2, 3, 5, 6, 7, 8):
        assert np.array_equal(kernel.step(rows[:n]), together[:n]), f"{n} rows"
    assert np.array_equal(kernel.step(rows[5:6])[0], together[5])
    release(rows)


def test_the_published_orders_give_the_same_bits_and_the_lean_order_the_same_within_bf16(kernels: Kernels) -> None:
    found: dict[str, torch.Tensor] = {}
    for order in ORDER_NAMES:
        rows = started(kernels(order), LENGTHS)
        found[order] = torch.from_numpy(kernels(order).step(rows))
        release(rows)
    for order in ("interleaved", "attention_first"):
        assert torch.equal(found["shipped"], found[order]), order
    distance = (found["lean"] - found["shipped"]).norm(dim=1) / found["lean"].norm(dim=1)
    assert distance.median() < 0.01


@pytest.mark.parametrize("order", ["lean", "shipped"])
def test_each_sm_tells_which_of_its_tokens_lead(kernels: Kernels, order: str) -> None:
    kernel, rows = kernels(order), started(kernels(order), LENGTHS)
    temperatures = (0.0, 1.0, 0.3, 4.0, 0.0, 1.0, 2.0, 0.7)
    for n in (8, 3, 1):
        for r, temperature in enumerate(temperatures[:n]):
            kernel.params.draw[r] = MkDraw(90 + r, 1 / temperature if temperature else 1.0, temperature > 0)
        logits, leaders = kernel.step(rows[:n]), kernel.leaders(n)
        for r, temperature in enumerate(temperatures[:n]):
            first = leaders[r, leaders[r]["logit"].argmax()]
            assert (first["token"], first["logit"]) == (logits[r].argmax(), logits[r].max())
            drawn = leaders[r, leaders[r]["score"].argmax()]["drawn"]
            config = _native.SamplingConfig(temperature=temperature, seed=90 + r)
            assert drawn == (_native.sample(logits[r], config, rows[r].position).token if temperature else NO_TOKEN)
            assert len({leader["token"] for leader in leaders[r]}) == kernel.n_sms  # of its own tiles each
    release(rows)


def test_the_leader_of_logits_with_a_nan_is_one(kernel: HostKernel) -> None:
    rows, scale = started(kernel, (5, 70)), kernel.params.logit_scale
    kernel.params.logit_scale = float("nan")
    kernel.step(rows)
    assert np.isnan(kernel.leaders(2)["logit"]).all()
    kernel.params.logit_scale = scale
    release(rows)


def test_waves_in_any_order_on_any_sms_give_the_same_bits(kernels: Kernels, weights: ModelWeights) -> None:
    kernel, rng = kernels("shipped"), np.random.default_rng(0)
    rows = started(kernel, (65, 30))
    wanted = kernel.step(rows)
    for _ in range(6):
        schedule = random_schedule(weights, rng, n_processors=4, n_splits=kernel.schedules[1].n_splits)
        assert np.array_equal(kernel.step(rows, schedule), wanted)
    release(rows)


@pytest.mark.parametrize(
    ("n_sms", "order"),
    [(2, "lean"), (3, "lean"), (5, "lean"), (2, "shipped"), (3, "interleaved"), (5, "attention_first")],
)
def test_any_number_of_sms_agrees_with_the_reference(
    library: ctypes.CDLL, weights: ModelWeights, n_sms: int, order: str
) -> None:
    kernel = HostKernel.of(library, weights, n_sms, order=order)
    assert check_step(kernel, started(kernel, (65, 129, 40, 7))) >= 2


@pytest.mark.parametrize("order", ["lean", "shipped"])
def test_matrices_of_several_stages_and_full_groups_agree_with_the_reference(
    library: ctypes.CDLL, order: str, tmp_path: Path
) -> None:
    folder = make_tiny(
        "cohere2_moe", tmp_path, dtype=torch.bfloat16, num_hidden_layers=2, hidden_size=256, num_attention_heads=16,
        head_dim=64, intermediate_size=528, prefix_dense_intermediate_size=640, num_experts=12, norm_topk_prob=True,
    )  # fmt: skip
    kernel = HostKernel.of(library, open_weights(folder), 4, order=order)
    rows = started(kernel, (70, 20, 130))
    assert check_step(kernel, rows) + check_step(kernel, rows) >= 3


@pytest.mark.parametrize("order", ["lean", "shipped"])
def test_a_step_survives_the_wrap_of_the_tag(kernels: Kernels, order: str) -> None:
    kernel = kernels(order)
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


LEAN_WAVES = ("L2.router", "L1.qkv", "L3.down")
COUNTED_WAVES = ("L1.norm", "L2.attn", "L2.finalize", "L2.gather", "L3.upgate", "L3.moe_combine")


@pytest.mark.parametrize(
    ("order", "wave"), [("lean", wave) for wave in LEAN_WAVES] + [("shipped", wave) for wave in COUNTED_WAVES]
)
def test_a_missing_producer_ends_the_kernel_with_a_name(
    library: ctypes.CDLL, weights: ModelWeights, order: str, wave: str
) -> None:
    kernel = HostKernel.of(library, weights, 3, order=order)
    kernel.params.spin_limit = 300
    broken = without(kernel.schedules[0], wave)
    with pytest.raises(AbortedStep) as caught:
        kernel.step(started(kernel, (20,)), broken)
    block, warp, kind, ordinal, _seen, _wanted = caught.value.args
    assert 0 <= block < 3 and 0 <= warp < 12
    assert kind in ("data", "route", "ring full", "descriptor", "counter", "warps", "reduce full")
    if kind != "descriptor":
        [task] = broken.tasks[broken.tasks["ordinal"] == ordinal]
        assert broken.wave_names[int(task["wave"])] > wave[:2]  # that layer, or a later one

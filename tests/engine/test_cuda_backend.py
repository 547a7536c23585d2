"""Choosing a GPU backend, its schedules, its benchmarks' arithmetic, and the backend whose logits Python computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine._native import DecodeService, Notice, SamplingConfig, TokenFlag
from pointcode_local.engine.assembly import assemble
from pointcode_local.engine.bench.gpu_report import decode_point, step_gb, uniform_experts
from pointcode_local.engine.bench.service_run import ServiceRow, serve_rows, steps_of
from pointcode_local.engine.cuda.backend import megakernel_problem, megakernel_schedules, shortened
from pointcode_local.engine.cuda.random_weights import north_mini
from pointcode_local.engine.errors import BackendError, ScheduleError
from pointcode_local.engine.model_files import open_model
from pointcode_local.engine.parts import EngineOptions
from pointcode_local.engine.plans import model_plan
from pointcode_local.engine.scheduler import ORDER_NAMES

from .tiny_models import make_tiny

VOCAB = 100
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@no_gpu
@pytest.mark.parametrize("backend", ["megakernel", "torch"])
def test_a_gpu_backend_without_a_gpu_is_refused_with_the_reason(tmp_path: Path, backend: str) -> None:
    files = open_model(make_tiny("cohere2_moe", tmp_path))
    with pytest.raises(BackendError, match=f"the {backend} backend cannot run here: (no CUDA device|the native ext)"):
        assemble(files, "tiny", EngineOptions(backend=backend))


@no_gpu
def test_auto_falls_back_to_the_cpu(tmp_path: Path) -> None:
    parts = assemble(open_model(make_tiny("cohere2_moe", tmp_path)), "tiny", EngineOptions(n_threads=1))
    assert parts.make_backend().name == "cpu"
    assert megakernel_problem(north_mini()) is not None


def test_an_unknown_backend_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="'tpu' is not known; use auto, megakernel, torch or cpu"):
        assemble(open_model(make_tiny("llama", tmp_path)), "tiny", EngineOptions(backend="tpu"))


@pytest.mark.parametrize("order", ORDER_NAMES)
def test_every_order_of_the_full_shape_is_proved_for_an_h200(order: str) -> None:
    schedules = megakernel_schedules(north_mini(5, 4096), 132, order=order, max_rows=2)
    assert [s.n_rows for s in schedules] == [1, 2] and schedules[0].n_splits == 33


def test_an_expert_too_wide_for_the_published_orders_is_refused_by_them_alone() -> None:
    config = north_mini(2, 4096)
    wide = replace(config, layers=(config.layers[0], replace(config.layers[1], intermediate=2064)))
    assert megakernel_schedules(wide, 8, max_rows=1)
    with pytest.raises(ScheduleError, match="the shipped order takes experts of up to 2048 units, not 2064"):
        megakernel_schedules(wide, 8, order="shipped", max_rows=1)


def test_a_schedule_is_proved_on_a_shorter_model_that_holds_every_run_of_layers() -> None:
    plan = model_plan(north_mini())
    short = shortened(plan)
    assert short.n_layers == 9 and short.layers[-3:] == plan.layers[-3:]
    assert shortened(model_plan(north_mini(3))).n_layers == 3


def test_a_steps_bytes_are_those_of_the_models_page() -> None:
    config = north_mini()
    assert step_gb(config, 1, 8192, 8) == pytest.approx(7.131, abs=0.002)
    for batch, wanted in ((2, 11.05), (4, 18.26), (8, 30.53)):
        assert step_gb(config, batch, 8192, uniform_experts(config, batch)) == pytest.approx(wanted, abs=0.01)
    point = decode_point(config, "megakernel", "lean", 1, 8192, 256, [0.512, 0.520, 0.500])
    assert point.tokens_per_s.median == pytest.approx(500)
    assert point.percent_of_measured == pytest.approx(100 * point.gb_per_step / 2.0 / 4.6)
    assert "500.0 tok/s" in point.describe() and "gap" not in point.describe()
    point = decode_point(config, "megakernel", "lean", 1, 8192, 256, [0.512, 0.520], kernel_ms=[1.99, 2.00])
    assert point.kernel_ms == pytest.approx(1.995) and point.step_gap_us == pytest.approx((10 + 31.25) / 2)
    assert "kernel 1.995 ms, gap 20.6 us" in point.describe()


class Counting:
    """Logits that put the next token at token + 1, and a record of what was asked."""

    def __init__(self, fail_at: int = -1) -> None:
        self.asked: list[tuple[list[int], list[int], bool]] = []
        self.fail_at = fail_at

    def __call__(self, tokens: np.ndarray, positions: np.ndarray, pages: Sequence[object] | None) -> np.ndarray:
        self.asked.append((tokens.tolist(), positions.tolist(), pages is not None))
        if len(self.asked) == self.fail_at:
            raise ValueError("the card is gone")
        logits = np.zeros((len(tokens), VOCAB), np.float32)
        logits[np.arange(len(tokens)), (tokens + 1) % VOCAB] = 5.0
        return logits


def test_the_steps_of_a_run_are_known_from_its_tokens() -> None:
    pages = np.arange(2, dtype=np.int32)
    rows = [ServiceRow(np.arange(first, first + n, dtype=np.int32), pages, pages) for first, n in ((3, 40), (50, 9))]
    forward = Counting()
    run = serve_rows(_native.LogitsBackend("counting", VOCAB, forward), rows, 20, drafts=False)
    tokens, positions = steps_of(rows, run.tokens)
    assert tokens.shape == positions.shape == (20, 2) and tokens.dtype == positions.dtype == np.int32
    assert [(t, p) for t, p, _ in forward.asked] == list(zip(tokens.tolist(), positions.tolist(), strict=True))


def run_service(forward: Counting) -> tuple[list[int], DecodeService]:
    service = DecodeService(64)
    assert service.park(5.0)
    service.set_backend(_native.LogitsBackend("counting", VOCAB, forward))
    pages = np.asarray([4, 7], np.int32)
    service.add_row(1, np.asarray([9, 10], np.int32), 5, [], SamplingConfig(), pages, pages)
    service.resume()
    records = []
    while not records or records[-1][2] == TokenFlag.VALID:
        records += service.drain()
    return [token for _, token, flags, _ in records if flags & TokenFlag.VALID], service


def test_python_may_compute_the_logits_of_a_step() -> None:
    forward = Counting()
    tokens, service = run_service(forward)
    service.close()
    assert tokens == [11, 12, 13, 14, 15]
    assert forward.asked[0] == ([10], [1], True)  # page tables come with a changed batch only
    assert forward.asked[1] == ([11], [2], False)


def test_an_exception_in_python_fails_the_backend_with_its_message() -> None:
    tokens, service = run_service(Counting(fail_at=3))
    assert tokens == [11, 12]
    assert service.wait_notices(5.0) & Notice.FAILED
    assert "ValueError: the card is gone" in service.error
    service.close()

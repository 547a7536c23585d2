"""The interpreter: whole tiny models against torch, orders, batches, delays, time-outs and restarts."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine._native import Opcode, WeightFormat
from pointcode_local.engine.assembly import model_plan, native_shape
from pointcode_local.engine.models.reference import TorchModel, full_logits
from pointcode_local.engine.scheduler import ORDER_NAMES, Schedule, build
from pointcode_local.engine.tasks import make_tasks
from pointcode_local.engine.weights import ModelWeights, open_weights
from tests.engine.tiny_gguf import make_tiny_gguf
from tests.engine.tiny_models import VOCAB_SIZE, Family, make_tiny

FAMILIES: tuple[Family, ...] = ("qwen2", "llama", "cohere2_moe")
N_PAGES = 16
DTYPES = {WeightFormat.F32: torch.float32, WeightFormat.F16: torch.float16, WeightFormat.BF16: torch.bfloat16}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelWeights]:
    folder = tmp_path_factory.mktemp("models")
    return {family: open_weights(make_tiny(family, folder / family)) for family in FAMILIES}


def lists(schedule: Schedule) -> tuple[list[np.ndarray], int, int]:
    ends = schedule.offsets
    tasks = [schedule.tasks[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    return tasks, schedule.n_counters, schedule.n_queues


def make_backend(
    weights: ModelWeights,
    *,
    order: str = "shipped",
    n_processors: int = 1,
    max_rows: int = 3,
    kv_format: WeightFormat = WeightFormat.F32,
    schedules: Sequence[Schedule] | None = None,
    **options: object,
) -> _native.CpuBackend:
    """A backend whose KV pages hold NaN until they are written. `schedules`: one for each number of rows."""
    config = weights.config
    shape, owners = native_shape(weights)
    plan = model_plan(config)
    if schedules is None:
        schedules = [build(plan, order=order, n_rows=n, n_processors=n_processors) for n in range(1, max_rows + 1)]
    by_rows = {s.n_rows: lists(s) for s in schedules}
    size = (2, config.n_layers, N_PAGES, config.n_kv_heads, 64, config.head_dim)
    pages = torch.full(size, float("nan"), dtype=DTYPES[kv_format])
    k_pages, v_pages = ([pages[part, layer].data_ptr() for layer in range(config.n_layers)] for part in (0, 1))
    return _native.CpuBackend(
        shape,
        k_pages,
        v_pages,
        [by_rows.get(n) for n in range(1, max(by_rows) + 1)],
        max_splits=schedules[0].n_splits,
        kv_format=kv_format,
        owners=(owners, pages),
        **options,  # pyright: ignore[reportArgumentType]
    )


def teacher_forced(backend: _native.CpuBackend, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Logits (T, vocab) of every prompt; a step runs all prompts that are not at their end."""
    tables = [np.array([5 * i + 3, 5 * i, 5 * i + 4, 5 * i + 1], np.int32) for i in range(len(prompts))]
    logits: list[list[np.ndarray]] = [[] for _ in prompts]
    for t in range(max(map(len, prompts))):
        live = [i for i, prompt in enumerate(prompts) if t < len(prompt)]
        rows = [
            _native.StepRow(token=prompts[i][t], position=t, full_pages=tables[i], sliding_pages=tables[i])
            for i in live
        ]
        for i, row in zip(live, backend.forward(rows), strict=True):
            logits[i].append(row)
    return [np.stack(rows) for rows in logits]


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Three prompts that end in different pages; the longest crosses two page borders."""
    rng = np.random.default_rng(4)
    return tuple(tuple(int(i) for i in rng.integers(0, VOCAB_SIZE, n)) for n in (140, 66, 9))


def orders(weights: ModelWeights) -> list[str]:
    return [order for order in ORDER_NAMES if order != "lean" or weights.config.parallel_block]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_torch_and_are_the_same_bits_in_every_order_and_on_any_number_of_threads(
    family: Family, models: dict[str, ModelWeights]
) -> None:
    weights = models[family]
    expected = [full_logits(TorchModel(weights), prompt).numpy() for prompt in prompts()]
    first = teacher_forced(make_backend(weights), prompts())
    for got, reference in zip(first, expected, strict=True):
        np.testing.assert_allclose(got, reference, atol=1e-5)
    for order in orders(weights):
        other = teacher_forced(make_backend(weights, order=order), prompts())
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True)), order
        # Shorter, over one page border: threads of several workers of the test run stand in each other's way.
        shorter = [prompt[:66] for prompt in prompts()]
        for n_processors in (2, 3) if order == "shipped" else (3,):
            other = teacher_forced(make_backend(weights, order=order, n_processors=n_processors), shorter)
            same = (np.array_equal(a[: len(b)], b) for a, b in zip(first, other, strict=True))
            assert all(same), f"{order} on {n_processors}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_gives_the_same_bits_alone_and_in_a_batch(family: Family, models: dict[str, ModelWeights]) -> None:
    together = teacher_forced(make_backend(models[family]), prompts())
    for prompt, logits in zip(prompts(), together, strict=True):
        alone = teacher_forced(make_backend(models[family], max_rows=1), [prompt])[0]
        assert np.array_equal(alone, logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_delays_change_nothing(family: Family, models: dict[str, ModelWeights]) -> None:
    weights = models[family]
    short = [prompt[:9] for prompt in prompts()]
    expected = teacher_forced(make_backend(weights), short)
    for seed, order in enumerate(orders(weights), start=1):
        delayed = teacher_forced(make_backend(weights, order=order, n_processors=3, delay_seed=seed), short)
        assert all(np.array_equal(a, b) for a, b in zip(expected, delayed, strict=True)), order


@pytest.mark.parametrize("isa", [isa for isa in _native.Isa if isa <= _native.best_isa()], ids=lambda i: i.name)
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_1", "Q5_0"])
def test_gguf_models_give_the_logits_of_their_rounded_weights(quant: str, isa: _native.Isa, tmp_path: Path) -> None:
    path, _ = make_tiny_gguf("llama", tmp_path / "tiny.gguf", quant=quant)
    weights = open_weights(path)
    expected = full_logits(TorchModel(weights), prompts()[1]).numpy()
    got = teacher_forced(make_backend(weights, isa=isa), [prompts()[1]])[0]
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize(("kv_format", "tolerance"), [(WeightFormat.F16, 5e-3), (WeightFormat.BF16, 5e-2)])
def test_the_cache_may_be_stored_in_half_precision(
    kv_format: WeightFormat, tolerance: float, models: dict[str, ModelWeights]
) -> None:
    weights = models["cohere2_moe"]
    expected = full_logits(TorchModel(weights), prompts()[0]).numpy()
    got = teacher_forced(make_backend(weights, kv_format=kv_format), [prompts()[0]])[0]
    np.testing.assert_allclose(got, expected, atol=tolerance)


def test_a_step_samples_what_the_sampler_chooses_from_the_logits(models: dict[str, ModelWeights]) -> None:
    config = _native.SamplingConfig(temperature=1.3, top_k=40, seed=3, n_logprobs=2)
    backends = [make_backend(models["qwen2"]) for _ in range(2)]
    pages = np.arange(4, dtype=np.int32)
    token = 7
    for position in range(20):
        row = _native.StepRow(token=token, position=position, full_pages=pages, sampling=config)
        logits = backends[0].forward([row])[0]
        expected = _native.sample(logits, config, position)
        (got,) = backends[1].step([row])
        assert (got.token, got.logprobs) == (expected.token, expected.logprobs)
        token = got.token


def stuck_lists(n_processors: int) -> tuple[list[np.ndarray], int, int]:
    """Processor 0 waits for two signals of which only one comes."""
    tasks = [make_tasks(int(Opcode.ADD_RMSNORM), 2, 1, n_rows=1) for _ in range(n_processors)]
    for task in tasks[1:2]:
        task["signal"] = 5
        task["ordinal"] = 16
        task["tile_count"] = 0
    tasks[0]["ordinal"] = 17
    tasks[0]["wait_counter"][0, 1] = 5
    tasks[0]["wait_target"][0, 1] = 2
    return tasks, 6, 0


def test_a_wait_that_expires_names_processor_task_counter_seen_and_wanted(models: dict[str, ModelWeights]) -> None:
    backend = make_backend(models["qwen2"], n_processors=2, wait_limit_ms=500)
    row = _native.StepRow(token=1, position=0, full_pages=np.arange(4, dtype=np.int32))
    begun_s = time.process_time()
    with pytest.raises(RuntimeError) as failure:
        backend.run_lists([row], stuck_lists(2))
    assert time.process_time() - begun_s < 0.25  # who waits for long sleeps
    named = (
        r"barrier time-out after 500 ms: processor 0, task 17 \(ADD_RMSNORM, layer 2\), counter 5: seen (\d), wanted 2"
    )
    found = re.fullmatch(named, str(failure.value))
    assert found and int(found[1]) < 2  # the other processor may not have come to its task yet
    with pytest.raises(RuntimeError, match="has failed and must be rebuilt: barrier time-out"):
        backend.forward([row])


def test_a_failed_backend_leaves_no_threads_and_a_new_one_works(models: dict[str, ModelWeights]) -> None:
    row = _native.StepRow(token=1, position=0, full_pages=np.arange(4, dtype=np.int32))
    expected = make_backend(models["qwen2"]).forward([row])
    before = native_threads()
    backend = make_backend(models["qwen2"], n_processors=3, wait_limit_ms=20)
    assert native_threads() == before + 2
    with pytest.raises(RuntimeError, match="time-out"):
        backend.run_lists([row], stuck_lists(3))
    del backend
    assert native_threads() == before
    assert np.array_equal(make_backend(models["qwen2"]).forward([row]), expected)


def native_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()


def test_steps_of_different_batch_sizes_alternate_the_counters(models: dict[str, ModelWeights]) -> None:
    backend = make_backend(models["cohere2_moe"], order="lean")
    tables = [np.arange(5 * i, 5 * i + 4, dtype=np.int32) for i in range(3)]
    logits: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    for step in range(12):
        for row in range(3):
            logits[row].append(np.empty(0))
        live = [row for row in range(3) if row <= step % 3]
        rows = [
            _native.StepRow(token=9 + row, position=step // 3, full_pages=tables[row], sliding_pages=tables[row])
            for row in live
        ]
        for row, values in zip(live, backend.forward(rows), strict=True):
            logits[row][step] = values
    for step in range(0, 12, 3):  # row 0 ran three times with the same token at the same position
        assert np.array_equal(logits[0][step], logits[0][step + 1])
        assert np.array_equal(logits[0][step], logits[0][step + 2])


def test_rows_without_a_schedule_or_without_pages_are_refused(models: dict[str, ModelWeights]) -> None:
    backend = make_backend(models["qwen2"], max_rows=1)
    pages = np.arange(1, dtype=np.int32)
    row = _native.StepRow(token=1, position=0, full_pages=pages)
    with pytest.raises(RuntimeError, match="no schedule for 2 rows"):
        backend.forward([row, row])
    with pytest.raises(RuntimeError, match="has 1 pages of KV group 0 and stands at position 64"):
        backend.forward([_native.StepRow(token=1, position=64, full_pages=pages)])
    with pytest.raises(RuntimeError, match="token 5000 is outside"):
        backend.forward([_native.StepRow(token=5000, position=0, full_pages=pages)])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"opcode": 16}, "unknown opcode 16"),
        ({"opcode": Opcode.O_PROJ, "tile_begin": 3, "tile_count": 2}, r"O_PROJ of layer 0: tiles 3 \+ 2 exceed 4"),
        ({"opcode": Opcode.QKV_PROJ, "layer": 3}, "QKV_PROJ: no layer 3"),
        ({"opcode": Opcode.ATTN_DRAIN, "queue": 1}, "queue 1 is none of 1"),
        ({"opcode": Opcode.ATTN_DRAIN, "queue": 0, "n_splits": 9}, "9 splits, the buffers hold 8"),
        ({"opcode": Opcode.ROUTER_GEMM}, r"ROUTER_GEMM of layer 0 needs 1 x \(0, 64\) weights"),
        ({"opcode": Opcode.QKV_PROJ, "flags": 2}, "the sliding flag is not the layer's"),
        ({"opcode": Opcode.O_PROJ, "signal": 1}, "counter 1 is none of 1"),
    ],
)
def test_a_task_that_reaches_outside_the_model_is_refused(
    fields: dict[str, int], message: str, models: dict[str, ModelWeights]
) -> None:
    backend = make_backend(models["qwen2"], n_processors=1)
    task = make_tasks(int(Opcode.O_PROJ), 0, 1, n_rows=1)
    for name, value in fields.items():
        task[name] = value
    row = _native.StepRow(token=1, position=0, full_pages=np.arange(1, dtype=np.int32))
    with pytest.raises(RuntimeError, match=message):
        backend.run_lists([row], ([task], 1, 1))

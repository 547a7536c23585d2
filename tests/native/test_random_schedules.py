"""Random schedules with random delays: none hangs, none changes a bit. 100 in every run, 1,000 to explore."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pointcode_local.engine.assembly import model_plan
from pointcode_local.engine.schedule_check import check
from pointcode_local.engine.scheduler import ORDERS, Schedule, deal, published_waves
from pointcode_local.engine.tasks import Wave
from pointcode_local.engine.weights import ModelWeights, open_weights
from tests.effort import effort
from tests.engine.tiny_models import make_tiny

from .test_cpu_backend import make_backend, teacher_forced

N_ROWS, N_SPLITS = 2, 8
PROMPTS = ((5, 9, 200), (17, 3, 40))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> ModelWeights:
    folder: Path = tmp_path_factory.mktemp("model")
    return open_weights(make_tiny("cohere2_moe", folder))


def random_schedule(
    weights: ModelWeights, rng: np.random.Generator, *, n_processors: int = 0, n_splits: int = N_SPLITS
) -> Schedule:
    """Waves in a random order that their waits allow, tasks on random processors (0: of a random number of them)."""
    plan = model_plan(weights.config)
    n = n_processors or int(rng.integers(1, 6))
    order = ORDERS[str(rng.choice(list(ORDERS)))]
    waiting = published_waves(plan, order, N_ROWS, int(rng.integers(1, 9)), n_splits)
    placed: list[Wave] = []
    names: set[str] = set()
    while waiting:
        ready = [i for i, wave in enumerate(waiting) if names.issuperset(wave.waits)]
        wave = waiting.pop(int(rng.choice(ready)))
        placed.append(replace(wave, processor=rng.integers(0, n, len(wave.tasks)).astype(np.int32)))
        names.add(wave.name)
    return deal(placed, order="random", n_rows=N_ROWS, n_processors=n, n_splits=n_splits)


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_with_delays_give_the_same_bits(weights: ModelWeights, seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = model_plan(weights.config)
    expected = teacher_forced(make_backend(weights, max_rows=N_ROWS), PROMPTS)
    for _ in range(effort(25, 250)):
        schedule = random_schedule(weights, rng)
        check(plan, schedule)
        backend = make_backend(weights, schedules=[schedule], delay_seed=int(rng.integers(1, 1 << 30)))
        got = teacher_forced(backend, PROMPTS)
        assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))

"""The GPU sampler against the CPU sampler: the same token for the same logits."""

from __future__ import annotations

import numpy as np
import pytest

from pointcode_local.engine import _native
from pointcode_local.engine._native import RowStatus, SamplingConfig, StepRow

from .support import Bed, needs_gpu, prompt_of, tiny_weights

pytestmark = needs_gpu

VOCABS = [320, 1001, 151936, 262144]
SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "top_k": 50, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "top_p": 0.99, "min_p": 0.02, "top_k": 5},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    {"logit_bias": [(3, 30.0), (5, -100.0)]},
    {"temperature": 5.0, "top_p": 0.5},
    {"temperature": 1.0, "top_k": 1},
]


def logits_of(vocab: int, n: int, deviation: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, vocab)) * deviation).astype(np.float32)


def cpu(logits: np.ndarray, row: StepRow, config: SamplingConfig, mask: np.ndarray | None = None) -> object:
    return _native.sample(logits, config, row.position, mask, row.history)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_gpu_chooses_the_cpus_token(vocab: int, settings: dict[str, object]) -> None:
    agreed = total = 0
    for seed in range(6):
        config = SamplingConfig(seed=seed, **settings)  # type: ignore[arg-type]
        history = np.random.default_rng(seed).integers(0, vocab, 50).tolist()
        rows = [StepRow(token=1, position=seed * 100 + r, sampling=config, history=history) for r in range(8)]
        logits = logits_of(vocab, 8, 1.0 + seed, seed)
        results, positions, _ = _native.gpu_sample(logits, rows)
        assert positions == [row.position + 1 for row in rows]
        for r, row in enumerate(rows):
            wanted = _native.sample(logits[r], config, row.position, None, history)
            agreed += results[r].token == wanted.token
            total += 1
    assert agreed >= total - (1 if "temperature" in settings else 0)  # one tie within fp32 rounding may fall elsewhere


def test_the_first_of_equal_maxima_wins_and_a_flat_row_can_be_cut() -> None:
    flat = np.zeros((2, 262144), np.float32)
    flat[1, [70, 90_000]] = 5.0
    rows = [StepRow(token=0, position=0), StepRow(token=0, position=0)]
    assert [r.token for r in _native.gpu_sample(flat, rows)[0]] == [0, 70]
    for settings in ({"top_k": 7}, {"top_p": 0.25}):
        config = SamplingConfig(temperature=1.0, seed=5, **settings)  # type: ignore[arg-type]
        row = StepRow(token=0, position=9, sampling=config)
        [ours] = _native.gpu_sample(flat[:1], [row])[0]
        assert ours.token == _native.sample(flat[0], config, 9).token


def test_masks_penalties_and_biases_apply_per_row() -> None:
    vocab = 1000
    logits = logits_of(vocab, 3, 2.0, 1)
    mask = np.zeros(-(-vocab // 32), np.uint32)
    mask[[3, 20]] = 0xFFFFFFFF
    rows = [
        StepRow(token=0, position=1, token_mask=mask),
        StepRow(token=0, position=1),
        StepRow(token=0, position=1, sampling=SamplingConfig(logit_bias=[(999, 50.0)])),
    ]
    masked, plain, biased = _native.gpu_sample(logits, rows)[0]
    assert masked.token == _native.sample(logits[0], SamplingConfig(), 1, mask).token
    assert plain.token == int(logits[1].argmax()) and biased.token == 999


def test_a_nan_anywhere_marks_the_row_and_no_other() -> None:
    for place in (0, 131_071, 262_143):
        logits = logits_of(262144, 2, 1.0, 2)
        logits[0, place] = np.nan
        bad, good = _native.gpu_sample(logits, [StepRow(token=0, position=0), StepRow(token=0, position=0)])[0]
        assert (bad.status, good.status) == (RowStatus.NAN, RowStatus.OK)
        assert good.token == int(logits[1].argmax())


def test_log_probabilities_are_the_cpus() -> None:
    config = SamplingConfig(temperature=1.0, seed=3, n_logprobs=20)
    logits = logits_of(262144, 1, 3.0, 4)
    [ours] = _native.gpu_sample(logits, [StepRow(token=0, position=5, sampling=config)])[0]
    wanted = _native.sample(logits[0], config, 5)
    assert [t for t, _ in ours.logprobs] == [t for t, _ in wanted.logprobs]
    assert np.allclose([p for _, p in ours.logprobs], [p for _, p in wanted.logprobs], atol=1e-3)


def test_impossible_logits_are_survived() -> None:
    config = SamplingConfig(temperature=1.0, top_p=0.9, top_k=3)
    for logits in (np.full((1, 500), -np.inf, np.float32), np.full((1, 500), np.inf, np.float32)):
        [result] = _native.gpu_sample(logits, [StepRow(token=0, position=0, sampling=config)])[0]
        assert 0 <= result.token < 500


LED: list[dict[str, object]] = [  # what the leaders of a step's kernel settle, or begin
    {},
    {"temperature": 1.0},
    {"temperature": 0.4, "top_p": 0.95},
    {"temperature": 1.5, "top_p": 0.3},
    {"temperature": 2.0, "top_p": 0.01},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.0, "min_p": 0.1, "top_p": 0.5},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 5000, "top_p": 0.9},
    {"temperature": 1.0, "n_logprobs": 3},
    {"repetition_penalty": 1.5},
]


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bed]:
    weights = tiny_weights(tmp_path_factory.mktemp("tiny"))
    lean = Bed.of(weights)
    return {order: Bed.of(weights, order) if order != "lean" else lean for order in ("lean", "shipped")}


@pytest.mark.parametrize("order", ["lean", "shipped"])
@pytest.mark.parametrize("kinds", [[0] * 8, [1] * 8, [2, 3, 4] * 2, [0, 1, 3, 5, 6, 7, 8, 10], [9, 2, 0], [4], [3, 1]])
def test_a_step_chooses_the_cpus_token_from_its_logits(beds: dict[str, Bed], order: str, kinds: list[int]) -> None:
    bed = beds[order]
    configs = [SamplingConfig(seed=40 + r, **LED[kind]) for r, kind in enumerate(kinds)]  # type: ignore[arg-type]
    started = [bed.start(prompt_of(20 + 9 * r, r), 60, sampling=config) for r, config in enumerate(configs)]
    rows, agreed = [row for _, row in started], 0
    for _ in range(40):
        results = bed.backend.step(rows)
        for r, (row, result, config) in enumerate(zip(rows, results, configs, strict=True)):
            wanted = _native.sample(bed.backend.logits(r), config, row.position, None, row.history)
            agreed += result.token == wanted.token
            row.history = [*row.history, result.token]
            row.token, row.position = result.token, row.position + 1
    for pages, _ in started:
        pages.release()
    assert agreed >= 40 * len(kinds) - 1  # one tie within fp32 rounding may fall elsewhere

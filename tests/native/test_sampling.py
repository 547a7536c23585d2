"""The native sampler: filters, penalties, the counter-based draw, log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointcode_local.engine import _native
from pointcode_local.engine._native import RowStatus, SamplingConfig, sample

VOCAB = 1000


def some_logits(seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * 2).astype(np.float32)


def draws(logits: np.ndarray, config: SamplingConfig, n: int = 4000) -> np.ndarray:
    """Relative frequency of each token over n positions."""
    tokens = [sample(logits, config, position).token for position in range(n)]
    return np.bincount(tokens, minlength=len(logits)) / n


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits.astype(np.float64) - logits.max())
    return e / e.sum()


def test_temperature_zero_takes_the_first_of_the_largest_logits() -> None:
    for vocab in (1, 15, 16, 257, 1000):
        logits = some_logits(3, vocab)
        logits[[vocab // 2, vocab - 1]] = 50.0
        assert sample(logits, SamplingConfig(), 0).token == vocab // 2


def test_a_nan_anywhere_marks_the_row() -> None:
    for at in (0, 255, 256, 999):
        logits = some_logits()
        logits[at] = np.nan
        assert sample(logits, SamplingConfig(), 0).status == RowStatus.NAN


def test_draws_follow_the_softmax_at_every_temperature() -> None:
    logits = some_logits(1, 12)
    for temperature in (0.5, 1.0, 2.0):
        got = draws(logits, SamplingConfig(temperature=temperature, seed=5))
        np.testing.assert_allclose(got, softmax(logits / temperature), atol=0.03)


def test_the_draw_depends_on_seed_and_position_alone() -> None:
    logits = some_logits(2)
    config = SamplingConfig(temperature=1.5, seed=11)
    first = [sample(logits, config, p).token for p in range(50)]
    assert first == [sample(logits, config, p).token for p in range(50)]
    assert first != [sample(logits, SamplingConfig(temperature=1.5, seed=12), p).token for p in range(50)]
    assert len(set(first)) > 10


def test_the_noise_is_the_documented_function_of_seed_position_and_token() -> None:
    def mix(x: int) -> int:
        mask = (1 << 64) - 1
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    for seed, position, token in ((0, 0, 0), (1, 2, 3), (2**64 - 1, 500_000, 262_143)):
        bits = mix(mix(seed ^ mix(position)) ^ token)
        assert _native.token_noise(seed, position, token) == ((bits >> 41) + 0.5) * 2.0**-23


def test_the_draw_is_the_gumbel_maximum_over_the_whole_vocabulary() -> None:
    logits = some_logits(4)
    for position in range(40):
        noise = np.array([_native.token_noise(9, position, t) for t in range(VOCAB)])
        expected = int(np.argmax(logits / np.float32(0.8) - np.log(-np.log1p(-noise))))
        assert sample(logits, SamplingConfig(temperature=0.8, seed=9), position).token == expected


def test_top_k_keeps_the_k_largest() -> None:
    logits = some_logits(5)
    top = set(np.argsort(-logits)[:7].tolist())
    got = draws(logits, SamplingConfig(temperature=3.0, top_k=7, seed=1), 600)
    assert set(np.nonzero(got)[0].tolist()) == top


@settings(max_examples=25, deadline=None)
@given(top_p=st.floats(0.01, 0.99), seed=st.integers(0, 50))
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, seed: int) -> None:
    logits = some_logits(seed, 40)
    order = np.argsort(-logits, kind="stable")
    n = int(np.searchsorted(np.cumsum(softmax(logits)[order]), top_p)) + 1
    kept = set(order[:n].tolist())
    config = SamplingConfig(temperature=1.0, top_p=top_p, seed=seed)
    assert {sample(logits, config, p).token for p in range(60)} <= kept


def test_min_p_drops_tokens_below_a_share_of_the_most_likely_one() -> None:
    logits = some_logits(6, 30)
    kept = set(np.nonzero(softmax(logits) >= 0.2 * softmax(logits).max())[0].tolist())
    for top_p in (1.0, 0.999):
        got = draws(logits, SamplingConfig(temperature=1.0, min_p=0.2, seed=1, top_p=top_p), 800)
        assert set(np.nonzero(got)[0].tolist()) == kept


def test_penalties_lower_the_tokens_of_the_history() -> None:
    logits = np.array([2.0, 1.9, -1.0, -1.1], np.float32)
    assert sample(logits, SamplingConfig(repetition_penalty=1.2), 0, history=[0]).token == 1
    assert sample(logits, SamplingConfig(presence_penalty=0.2), 0, history=[0, 0]).token == 1
    assert sample(logits, SamplingConfig(frequency_penalty=0.06), 0, history=[0]).token == 0
    assert sample(logits, SamplingConfig(frequency_penalty=0.06), 0, history=[0, 0]).token == 1
    negative = SamplingConfig(repetition_penalty=2.0, logit_bias=[(0, -10.0), (1, -10.0)])
    assert sample(logits, negative, 0, history=[2]).token == 3


def test_bias_and_mask_decide_what_may_be_chosen() -> None:
    logits = some_logits(7, 70)
    assert sample(logits, SamplingConfig(logit_bias=[(5, 100.0)]), 0).token == 5
    mask = np.zeros(3, np.uint32)
    mask[2] = 1 << 3  # token 67 alone
    for config in (SamplingConfig(), SamplingConfig(temperature=2.0, top_k=3, top_p=0.5)):
        assert sample(logits, config, 1, token_mask=mask).token == 67


def test_logprobs_are_those_of_the_models_own_distribution() -> None:
    logits = some_logits(8)
    expected = np.log(softmax(logits))
    result = sample(logits, SamplingConfig(n_logprobs=4, logit_bias=[(17, 100.0)]), 0)
    ids = [token for token, _ in result.logprobs]
    assert ids == [17, *np.argsort(-logits)[:4].tolist()]
    np.testing.assert_allclose([p for _, p in result.logprobs], expected[ids], atol=1e-4)
    assert sample(logits, SamplingConfig(), 0).logprobs == []


def test_a_mask_shorter_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the mask has 32 bits"):
        sample(some_logits(), SamplingConfig(), 0, token_mask=np.zeros(1, np.uint32))

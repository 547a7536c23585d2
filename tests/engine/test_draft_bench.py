"""The benchmark of drafts with random weights: what its histories hold, and that it measures equal texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pointcode_local.engine._native import look_up_draft
from pointcode_local.engine.assembly import cpu_backend, cpu_schedules, kv_geometry
from pointcode_local.engine.bench.draft_texts import EDIT_EVERY, WORKLOADS, history_for
from pointcode_local.engine.bench.gpu_drafts import DraftPlan, measure_gains
from pointcode_local.engine.kv_cache import KvCache
from pointcode_local.engine.weights import open_weights

from .tiny_models import make_tiny

VOCAB, CONTEXT = 50_000, 800
TEXT = np.random.default_rng(1).integers(0, VOCAB, 100).tolist()


def drafts_of(kind: str) -> list[tuple[int, int]]:
    """Along the text: tokens of the draft, and how many of them are right."""
    history = history_for(kind, TEXT, 7, CONTEXT, VOCAB, seed=2).tolist()
    assert len(history) == CONTEXT and history[-1] == 7
    found: list[tuple[int, int]] = []
    for at in range(len(TEXT) - 7):
        _, draft = look_up_draft(history + TEXT[:at], 7)
        right = [a == b for a, b in zip(draft, TEXT[at:], strict=False)]
        found.append((len(draft), (*right, False).index(False)))
    return found


def test_the_histories_hold_what_they_say() -> None:
    assert set(drafts_of("copy")) == {(7, 7)}
    assert set(drafts_of("none")) == {(0, 0)}
    edited = drafts_of("edit")
    assert 0.7 < sum(n > 0 for n, _ in edited) / len(edited) < 1
    assert sum(n > 0 and right == 0 for n, right in edited) == len(edited) // EDIT_EVERY
    free = [right for n, right in drafts_of("free") if n > 0]
    assert 0 < sum(right > 0 for right in free) < len(free) / 2


def test_a_text_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="too short for 100 tokens"):
        history_for("copy", TEXT, 7, 100, VOCAB, seed=1)


def test_every_workload_gives_the_same_tokens_with_and_without_drafts(tmp_path_factory: pytest.TempPathFactory) -> None:
    weights = open_weights(make_tiny("cohere2_moe", tmp_path_factory.mktemp("tiny")))
    kv = KvCache(kv_geometry(weights.config), 16, 16)
    backend = cpu_backend(weights, kv, cpu_schedules(weights.config, 1))
    tables = np.arange(16, dtype=np.int32).reshape(2, 8), np.arange(16, dtype=np.int32).reshape(2, 8)
    torch.set_num_threads(1)
    gains = {g.workload: g for g in measure_gains(backend, tables, DraftPlan(weights.config, (2,), 400, 60, 1, 1.0))}
    assert gains.keys() == {w.kind for w in WORKLOADS}
    assert all(gain.same_tokens and gain.n_tokens == 120 for gain in gains.values())
    assert gains["copy"].tokens_per_step > 1 and gains["copy"].acceptance > 0.9
    assert gains["none"].acceptance == 0

"""Tiny models, pages and backends on the GPU, for the tests of this folder.

Run them with `python -m pytest tests/gpu -m gpu` on a machine with a Hopper GPU and an extension built with CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine.cuda.backend import ORDER, megakernel_backend, megakernel_schedules
from pointcode_local.engine.cuda.card import n_sms
from pointcode_local.engine.cuda.device_weights import DeviceModel
from pointcode_local.engine.cuda.loader import load_model
from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES
from pointcode_local.engine.cuda.prefill import GpuPrefill
from pointcode_local.engine.kv_cache import FULL, SLIDING, KvCache, SequencePages
from pointcode_local.engine.models.reference import TorchModel, full_logits
from pointcode_local.engine.plans import kv_geometry
from pointcode_local.engine.scheduler import Schedule
from pointcode_local.engine.weights import ModelWeights, open_weights

from ..engine.tiny_models import make_tiny

CONTEXT = 2048
WINDOW = 70


def gpu_problem() -> str:
    """Why the tests of this folder cannot run here; empty when they can."""
    if not torch.cuda.is_available():
        return "no CUDA device answers"
    if torch.cuda.get_device_capability() != (9, 0):
        return "the GPU is not a Hopper (compute capability 9.0)"
    if not _native.HAS_CUDA:
        return "the native extension was built without CUDA"
    return ""


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(bool(gpu_problem()), reason=gpu_problem() or "a GPU is there")]


def tiny_weights(folder: Path, **overrides: object) -> ModelWeights:
    """A tiny random cohere2_moe checkpoint in bf16."""
    return open_weights(make_tiny("cohere2_moe", folder, dtype=torch.bfloat16, **overrides))  # type: ignore[arg-type]


@dataclass(slots=True)
class Bed:
    """A tiny model with everything that decodes it."""

    weights: ModelWeights | None  # None: random on the card
    model: DeviceModel
    kv: KvCache
    prefill: GpuPrefill
    schedules: list[Schedule]
    backend: _native.MegakernelBackend

    @classmethod
    def of(cls, weights: ModelWeights, order: str = ORDER) -> Bed:
        """Loads it to the GPU, with schedules in this wave order; its pages are poisoned."""
        model, _ = load_model(weights, torch.device("cuda", 0))
        return cls.around(model, 300, order, weights)

    @classmethod
    def around(cls, model: DeviceModel, n_pages: int, order: str = ORDER, weights: ModelWeights | None = None) -> Bed:
        """The same for a model that lies on the card."""
        kv = KvCache(kv_geometry(model.config, 2), n_pages, n_pages, model.device)
        for pool in kv.pools:
            pool.k.fill_(float("nan"))
            pool.v.fill_(float("nan"))
        schedules = megakernel_schedules(model.config, n_sms(model.device), order=order)
        backend = megakernel_backend(model, kv, schedules, CONTEXT)
        return cls(weights, model, kv, GpuPrefill(model, FRAGMENT_PAGES), schedules, backend)

    def rebuilt(self, schedules: list[Schedule] | None = None) -> Bed:
        """The same with a new backend, perhaps with other schedules."""
        return replace(self, backend=megakernel_backend(self.model, self.kv, schedules or self.schedules, CONTEXT))

    def start(self, prompt: list[int], n_new: int, **row: object) -> tuple[SequencePages, _native.StepRow]:
        """Prefills all but the last token; the row that decodes on."""
        pages = SequencePages(self.kv)
        pages.grow(len(prompt) + n_new)
        if len(prompt) > 1:
            self.prefill(prompt, 0, len(prompt) - 1, pages, lambda part: None)
        full, sliding = (np.asarray(pages.tables[group], np.int32) for group in (FULL, SLIDING))
        return pages, _native.StepRow(
            token=prompt[-1],
            position=len(prompt) - 1,
            full_pages=full,
            sliding_pages=sliding,
            history=prompt,
            **row,  # type: ignore[arg-type]
        )

    def reference(self, ids: list[int]) -> torch.Tensor:
        """(T, vocab) fp32 logits of the whole sequence, computed on the CPU."""
        assert self.weights is not None
        return full_logits(TorchModel(self.weights, use_native=False), ids)


def prompt_of(n: int, seed: int, vocab: int = 320) -> list[int]:
    """`n` random tokens."""
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()


def decode(bed: Bed, prompts: list[list[int]], n: int, **sampling: object) -> np.ndarray:
    """(n, rows) tokens of all prompts decoded as one batch."""
    config = _native.SamplingConfig(**sampling)  # type: ignore[arg-type]
    started = [bed.start(prompt, n + 1, sampling=config) for prompt in prompts]
    _, tokens = bed.backend.run([row for _, row in started], n)
    for pages, _ in started:
        pages.release()
    return tokens


def soak(bed: Bed, n_steps: int) -> int:
    """Rows join and leave at random; each row's tokens equal those of the row alone. Returns the rows compared."""
    dice = np.random.default_rng(0)
    live: dict[int, tuple[SequencePages, _native.StepRow, list[int]]] = {}
    finished: list[tuple[int, list[int]]] = []
    n_started = 0
    for _ in range(n_steps):
        while len(live) < 8 and dice.random() < 0.3:
            pages, row = bed.start(prompt_of(20 + 13 * (n_started % 9), seed=n_started), 150)
            live[n_started] = (pages, row, [])
            n_started += 1
        if not live:
            continue
        results = bed.backend.step([row for _, row, _ in live.values()])
        for (_, row, tokens), result in zip(list(live.values()), results, strict=True):
            assert result.status == _native.RowStatus.OK
            tokens.append(result.token)
            row.token, row.position = result.token, row.position + 1
        for key in [k for k, (_, _, tokens) in live.items() if len(tokens) >= 140 or dice.random() < 0.01]:
            pages, _, tokens = live.pop(key)
            pages.release()
            finished.append((key, tokens))
    for pages, _, _ in live.values():
        pages.release()
    for key, tokens in finished:
        prompt = prompt_of(20 + 13 * (key % 9), seed=key)
        assert decode(bed, [prompt], len(tokens))[:, 0].tolist() == tokens
    return len(finished)

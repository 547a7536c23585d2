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

    weights: ModelWeights
    model: DeviceModel
    kv: KvCache
    prefill: GpuPrefill
    schedules: list[Schedule]
    backend: _native.MegakernelBackend

    @classmethod
    def of(cls, weights: ModelWeights, order: str = ORDER) -> Bed:
        """Loads it to the GPU, with schedules in this wave order; its pages are poisoned."""
        device = torch.device("cuda", 0)
        model, _ = load_model(weights, device)
        kv = KvCache(kv_geometry(weights.config, 2), 300, 300, device)
        for pool in kv.pools:
            pool.k.fill_(float("nan"))
            pool.v.fill_(float("nan"))
        n_sms = torch.cuda.get_device_properties(device).multi_processor_count
        schedules = megakernel_schedules(weights.config, n_sms, order=order)
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
            self.prefill(prompt, 0, len(prompt) - 1, pages, lambda: None)
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
        return full_logits(TorchModel(self.weights, use_native=False), ids)


def prompt_of(n: int, seed: int, vocab: int = 320) -> list[int]:
    """`n` random tokens."""
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()

"""From a model's weights to what decodes and prefills it on a GPU."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .. import _native
from ..control import ControlLimits, Prefill
from ..errors import BackendError, BackendUnavailable
from ..kv_cache import GROUPS, PAGE_TOKENS, KvCache, KvGeometry
from ..memo import Proofs
from ..models.config import ModelConfig
from ..parts import EngineOptions
from ..plans import kv_geometry
from ..scheduler import Schedule
from ..startup import timed
from ..weights import ModelWeights
from .backend import MAX_ROWS, megakernel_backend, megakernel_problem, megakernel_schedules
from .card import n_sms
from .device_weights import DeviceModel, require_supported
from .loader import load_model
from .memory import plan_memory
from .pages import FRAGMENT_PAGES, PLAIN_PAGES
from .prefill import GpuPrefill

CHUNK_TOKENS = 4096  # a prefill chunk while others decode: it ends in about 0.1 s
IDLE_CHUNK_TOKENS = 8192  # while nobody does: what every chunk costs anew is spread over more tokens
_LOG = logging.getLogger(__name__)
Pages = list[tuple[NDArray[np.int32], NDArray[np.int32]]]


@dataclass(frozen=True, slots=True)
class GpuParts:
    """What the engine takes over."""

    kv: KvCache
    prefill: Prefill
    make_backend: Callable[[], _native.StepBackend]
    limits: ControlLimits


def choose_backend(config: ModelConfig, wanted: str) -> str:
    """`auto` becomes the best backend that can run here; raises BackendUnavailable when the wanted one cannot."""
    if wanted in ("auto", "megakernel"):
        problem = megakernel_problem(config)
        if problem is None:
            return "megakernel"
        if wanted == "megakernel":
            raise BackendUnavailable(f"the megakernel backend cannot run here: {problem}")
    if wanted in ("auto", "torch"):
        problem = torch_problem(config)
        if problem is None:
            return "torch"
        if wanted == "torch":
            raise BackendUnavailable(f"the torch backend cannot run here: {problem}")
    return "cpu"


def torch_problem(config: ModelConfig) -> str | None:
    """Why the torch backend cannot run this model here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device answers"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        require_supported(config)
    except BackendError as error:
        return str(error)
    return None


def gpu_parts(weights: ModelWeights, options: EngineOptions, context_tokens: int, backend: str) -> GpuParts:
    """Loads the weights and allocates the cache; raises BackendError when they do not fit."""

    def load(device: torch.device, packed: bool) -> DeviceModel:
        model, report = load_model(weights, device, packed=packed)
        _LOG.info("%s", report.describe())
        return model

    return parts_with(weights.config, load, options, context_tokens, backend)


def parts_with(
    config: ModelConfig,
    load: Callable[[torch.device, bool], DeviceModel],
    options: EngineOptions,
    context_tokens: int,
    backend: str,
) -> GpuParts:
    """Plans the memory, lets load(device, packed) make the model, allocates the cache. BackendError: no room."""
    device, packed = torch.device("cuda", 0), backend == "megakernel"
    limits = options.limits
    if limits.chunk_tokens == ControlLimits().chunk_tokens:
        limits = replace(limits, chunk_tokens=CHUNK_TOKENS, idle_chunk_tokens=IDLE_CHUNK_TOKENS)
    geometry = kv_geometry(config, 2)
    with timed("CUDA context"):
        free_bytes = torch.cuda.mem_get_info(device)[0]
    kv_bytes = options.kv_bytes or _most_kv_bytes(geometry, context_tokens, limits)
    plan = plan_memory(config, geometry, free_bytes, chunk_tokens=limits.longest_chunk, kv_limit_bytes=kv_bytes)
    _LOG.info("GPU memory: %s", plan.describe())
    with ThreadPoolExecutor(1, "schedules") as beside:
        made = beside.submit(_schedules, config, n_sms(device), options.cache_dir) if packed else None
        with timed("weights"):
            model = load(device, packed)
        with timed("KV pages"):
            kv = KvCache(geometry, plan.n_full_pages, plan.n_sliding_pages, device)
        with timed("prefill"):
            prefill = GpuPrefill(model, FRAGMENT_PAGES if packed else PLAIN_PAGES)
        if made is None:
            return GpuParts(kv, prefill, lambda: torch_backend(model, kv, context_tokens), limits)
        with timed("wait for the schedules"):
            schedules = made.result()
    return GpuParts(kv, prefill, lambda: megakernel_backend(model, kv, schedules, context_tokens), limits)


def _schedules(config: ModelConfig, n_sms: int, cache_dir: Path | None) -> list[Schedule]:
    with timed("schedules, beside the weights"):
        return megakernel_schedules(config, n_sms, proofs=Proofs.of(cache_dir))


def torch_backend(model: DeviceModel, kv: KvCache, context_tokens: int) -> _native.LogitsBackend:
    """The one-kernel-per-operation backend for the decode service."""
    from .torch_backend import TorchDecoder

    decoder = TorchDecoder(model, kv, context_tokens)

    def forward(tokens: NDArray[np.int32], positions: NDArray[np.int32], pages: Pages | None) -> NDArray[np.float32]:
        n = len(tokens)
        if pages is not None:
            for row, tables in enumerate(pages):
                for group, table in zip(GROUPS, tables, strict=True):
                    decoder.tables[group, row, : len(table)] = torch.from_numpy(table).to(model.device)
        decoder.tokens[:n] = torch.from_numpy(tokens).to(model.device)
        decoder.positions[:n] = torch.from_numpy(positions).to(model.device)
        return decoder.step(n).cpu().numpy()

    return _native.LogitsBackend("torch", model.config.vocab, forward)


def _most_kv_bytes(geometry: KvGeometry, context_tokens: int, limits: ControlLimits) -> int:
    """What a full batch of the longest sequences can use, and one of them more for the prefix cache."""
    token_bytes = sum(geometry.page_bytes(group) for group in GROUPS) // PAGE_TOKENS
    return (min(limits.max_rows, MAX_ROWS) + 1) * (context_tokens + limits.chunk_tokens) * token_bytes

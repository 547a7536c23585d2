"""From a model's files to the parts of an engine: native shape, schedules, KV pools, prefill, grammar tables."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from . import _native
from .constrain import GrammarFactory
from .control import ControlLimits
from .control_parts import Prefill
from .costs import H200_BYTES_PER_S, memory_bytes_per_s, step_bytes
from .doctor import has_gpu_driver
from .errors import BackendError, BackendUnavailable
from .kv_cache import KvCache, KvGeometry
from .kv_store import KvStore
from .memo import Proofs
from .model_files import ModelFiles
from .models.config import ModelConfig, WeightKind
from .openmp import patient_threads
from .parts import EngineOptions, EngineParts
from .plans import bare_shape, kv_geometry, model_plan
from .prefill import HybridPrefill, NativePrefill
from .schedule_proofs import prove
from .scheduler import Schedule, build
from .startup import timed
from .tasks import Tasks
from .weights import ModelWeights

_STORE_LIMIT_BYTES = 256 << 20
_SAMPLE_BYTES = 1 << 16


def assemble(files: ModelFiles, name: str, options: EngineOptions) -> EngineParts:
    """The parts of an engine for a model that was opened; raises BackendUnavailable where that backend cannot run."""
    config = files.config
    n_threads = options.n_threads or len(os.sched_getaffinity(0))
    context_tokens = min(config.max_positions, options.context_tokens or config.max_positions)
    with timed("choice of the backend"):
        backend = _choose_backend(config, options.backend)
    parts = _cpu_parts if backend == "cpu" else _gpu_parts
    with timed("tokens of the vocabulary"):
        grammars = _grammars(files)
    with timed("identity of the model"):
        identity = model_identity(files.path, config) + ("" if backend == "cpu" else f"-{backend}")
    store = KvStore(options.cache_dir / f"{identity}.kv", identity, _STORE_LIMIT_BYTES) if options.cache_dir else None
    try:
        kv, prefill, make_backend, limits = parts(files, options, context_tokens, n_threads, backend)
    except MemoryError as error:
        raise BackendError(f"there is not enough memory for this model: {error}") from error
    return EngineParts(
        name=name,
        vocab=config.vocab,
        context_tokens=context_tokens,
        n_threads=n_threads,
        kv=kv,
        prefill=prefill,
        make_backend=make_backend,
        grammars=grammars,
        store=store,
        salt=identity.encode(),
        limits=limits,
        backend=backend,
        step_bytes=partial(step_bytes, files, kv.geometry),
        read_bytes_per_s=partial(_read_speed, backend, n_threads),
    )


def _read_speed(backend: str, n_threads: int) -> float:
    """Bytes a second that the backend's memory gives; 0 for a GPU that was never measured."""
    if backend == "cpu":
        return memory_bytes_per_s(n_threads)
    import torch

    return H200_BYTES_PER_S if "H200" in torch.cuda.get_device_name(0) else 0.0


_Core = tuple[KvCache, Prefill, Callable[[], _native.StepBackend], ControlLimits]


def _cpu_parts(files: ModelFiles, options: EngineOptions, context_tokens: int, n_threads: int, backend: str) -> _Core:
    del backend
    geometry = kv_geometry(files.config)
    budget = options.kv_bytes or _default_kv_bytes(geometry, context_tokens)
    kv = KvCache(geometry, *geometry.page_counts(budget, options.limits.max_rows, options.limits.chunk_tokens))
    keep = _default_prefill_bytes() if options.prefill_cache_bytes is None else options.prefill_cache_bytes
    schedules = cpu_schedules(files.config, n_threads, proofs=Proofs.of(options.cache_dir))
    prefill = HybridPrefill(
        partial(_torch_prefill, files.weights, keep, n_threads),
        NativePrefill(lambda: cpu_backend(files.weights, kv, [without_head(s) for s in schedules])),
    )
    return kv, prefill, lambda: cpu_backend(files.weights, kv, schedules), options.limits


def _torch_prefill(weights: ModelWeights, cache_bytes: int, n_threads: int) -> Prefill:
    with patient_threads():
        from .models.reference import TorchModel
        from .torch_prefill import TorchPrefill

    return TorchPrefill(TorchModel(weights, cache_bytes=cache_bytes), n_threads)


def _gpu_parts(files: ModelFiles, options: EngineOptions, context_tokens: int, n_threads: int, backend: str) -> _Core:
    from .cuda.assembly import gpu_parts

    del n_threads
    parts = gpu_parts(files.weights, options, context_tokens, backend)
    return parts.kv, parts.prefill, parts.make_backend, parts.limits


def _choose_backend(config: ModelConfig, wanted: str) -> str:
    if wanted == "cpu":
        return wanted
    if wanted not in ("auto", "megakernel", "torch"):
        raise BackendUnavailable(f"the backend {wanted!r} is not known; use auto, megakernel, torch or cpu")
    if wanted == "auto" and not has_gpu_driver():
        return "cpu"
    with timed("import of torch"):
        from .cuda.assembly import choose_backend

    return choose_backend(config, wanted)


def native_shape(weights: ModelWeights) -> tuple[_native.ModelShape, list[object]]:
    """The native form of the configuration and weights, and what must stay alive with it."""
    shape = bare_shape(weights.config)
    owners: list[object] = []
    for layer, kind in weights.slots():
        tensor = weights.need(layer, WeightKind(kind))
        owners.append(tensor)
        native = _native.Weight(
            _native.WeightFormat(int(tensor.format)),
            tensor.address,
            tensor.rows,
            tensor.cols,
            tensor.count,
            tensor.row_bytes,
            tensor.matrix_bytes,
        )
        shape.set_weight(layer, _native.WeightKind(int(kind)), native)
    return shape, owners


def cpu_schedules(
    config: ModelConfig,
    n_threads: int,
    max_rows: int = 8,
    *,
    proofs: Proofs | None = None,
) -> list[Schedule]:
    """Checked schedules for 1 .. max_rows rows (ScheduleError for one that must not run).

    Those that `proofs` knows were checked by an earlier process with the same checker.
    """
    plan = model_plan(config)
    order = "lean" if config.parallel_block else "shipped"
    schedules = [build(plan, order=order, n_rows=n, n_processors=n_threads) for n in range(1, max_rows + 1)]
    prove(plan, schedules, proofs)
    return schedules


def without_head(schedule: Schedule) -> Schedule:
    """The schedule up to the last layer: keys and values are complete, logits are not computed."""
    final = [i for i, name in enumerate(schedule.wave_names) if name.startswith("final.")]
    keep = ~np.isin(schedule.tasks["wave"], final)
    before = np.concatenate([[0], np.cumsum(keep)])
    return replace(schedule, tasks=schedule.tasks[keep], offsets=before[schedule.offsets].astype(np.int32))


def cpu_backend(
    weights: ModelWeights, kv: KvCache, schedules: Sequence[Schedule], *, wait_limit_ms: int = 4_000
) -> _native.CpuBackend:
    """The native interpreter of the schedules, index n - 1 for n rows, over the pages of `kv`."""
    shape, owners = native_shape(weights)
    addresses = [kv.addresses(i) for i in range(weights.config.n_layers)]
    return _native.CpuBackend(
        shape,
        [k for k, _ in addresses],
        [v for _, v in addresses],
        [_task_lists(s) for s in schedules],
        max_splits=max(s.n_splits for s in schedules),
        wait_limit_ms=wait_limit_ms,
        owners=(owners, kv),
    )


def model_identity(path: Path, config: ModelConfig) -> str:
    """A hash of the configuration and of samples of the files: another model or another version gives another name."""
    digest = hashlib.blake2b(json.dumps(asdict(config), sort_keys=True, default=str).encode(), digest_size=12)
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''}:{size};".encode())
        with file.open("rb") as data:
            for part in range(8):
                data.seek(max(0, (size - _SAMPLE_BYTES) * part // 7))
                digest.update(data.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def available_bytes() -> int:
    """Memory that can be used without swapping."""
    pages = os.sysconf("SC_AVPHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return pages * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else pages * 4096


def _task_lists(schedule: Schedule) -> tuple[list[Tasks], int, int]:
    ends = schedule.offsets
    lists = [schedule.tasks[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    return lists, schedule.n_counters, schedule.n_queues


def _grammars(files: ModelFiles) -> GrammarFactory:
    tokenizer = files.tokenizer
    tokens = [tokenizer.token_bytes(i) for i in range(files.config.vocab)]
    return GrammarFactory(tokens, tokenizer.control_ids, sorted(files.stop_ids), tokenizer.encode)


def _default_kv_bytes(geometry: KvGeometry, context_tokens: int) -> int:
    """Two full contexts, at most a quarter of the free memory, at least 1,024 tokens."""
    token_bytes = sum(geometry.page_bytes(g) for g in (0, 1)) // 64
    return max(1024 * token_bytes, min(2 * context_tokens * token_bytes, available_bytes() // 4))


def _default_prefill_bytes() -> int:
    return available_bytes() // 8

"""What a decode step must read from memory, and how fast this machine reads: the two sides of "speed of light"."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .kv_cache import GROUPS, PAGE_TOKENS, KvGeometry
from .model_files import ModelFiles
from .models.config import WeightKind

H200_BYTES_PER_S = 4.60e12  # best read stream measured on an H200 (docs/kernel-log.md)
_READ_BYTES = 256 << 20  # in all, more than the cores' own caches
_READ_REPEATS = 3


def step_bytes(files: ModelFiles, geometry: KvGeometry, batch: int, context_tokens: int) -> int:
    """Bytes that one step reads: every matrix once (of the experts, those that `batch` uniform tokens use), and KV."""
    config, total = files.config, 0.0
    for layer, kind in files.weights.slots():
        tensor = files.weights.need(layer, kind)
        size = tensor.matrix_bytes * tensor.count
        if kind == WeightKind.EMBED:
            size = 0  # one row per token
        elif tensor.count > 1:
            size *= 1 - (1 - config.top_k / config.n_experts) ** batch
        total += size
    seen = (context_tokens, min(context_tokens, geometry.window or context_tokens))
    kv_bytes = sum(geometry.page_bytes(group) // PAGE_TOKENS * seen[group] for group in GROUPS)
    return int(total) + batch * kv_bytes


def memory_bytes_per_s(n_threads: int) -> float:
    """What `n_threads` threads together read from memory, the best of a few passes. Takes about half a second."""
    parts = [np.ones(_READ_BYTES // 8 // n_threads, np.int64) for _ in range(n_threads)]  # each (n,) int64
    best_s = float("inf")
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(_READ_REPEATS):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))  # NumPy releases the GIL
            best_s = min(best_s, time.perf_counter() - start)
    return sum(part.nbytes for part in parts) / best_s

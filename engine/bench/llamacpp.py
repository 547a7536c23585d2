"""The CPU peer: llama.cpp through the package xllamacpp, where that is installed."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class PeerSpeed:
    """What llama.cpp reports of its own run."""

    tokens_per_s: float
    prompt_tokens_per_s: float


def measure_llamacpp(model: Path, n_threads: int, context_tokens: int, n_tokens: int) -> PeerSpeed | None:
    """Greedy decoding of the same file with as many threads; None when the package or the file's kind does not fit."""
    try:
        peer: Any = importlib.import_module("xllamacpp")
    except ImportError:
        return None
    if model.suffix != ".gguf":
        return None
    params = peer.CommonParams()
    params.model.path = str(model)
    params.n_ctx = context_tokens + n_tokens + 64
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
    params.verbosity = -1
    server = peer.Server(params)
    prompt = [100 + i % 5000 for i in range(context_tokens)]
    wanted = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    answer: Any = server.handle_completions(wanted)
    if isinstance(answer, str | bytes):
        answer = json.loads(answer)
    timings = cast("dict[str, Any]", answer.get("timings") or answer["choices"][0]["timings"])
    return PeerSpeed(float(timings["predicted_per_second"]), float(timings["prompt_per_second"]))

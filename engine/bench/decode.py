"""Decode speed of a model through the whole engine, against what one thread can read from memory in the same run.

python -m pointcode_local.engine.bench.decode --model qwen2.5-coder-0.5b --tokens 128 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from .. import _native
from ..assembly import assemble
from ..costs import step_bytes
from ..engine import Engine
from ..errors import BackendError
from ..model_files import open_model
from ..parts import EngineOptions, EngineParts, model_name
from ..registry import DEFAULT_MODEL, resolve
from ..types import Request, StreamFinished, TokensDecoded
from .llamacpp import PeerSpeed, measure_llamacpp
from .trace import cpu_slices, summary, write_trace
from .trace_picture import write_picture

_READ_BYTES = 512 << 20
_READ_REPEATS = 5
_TRACED_STEPS = 4


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """Medians over the repeats. `tokens_per_s` counts all rows; `gb_per_step` is what one step must read (decimal)."""

    model: str
    machine: str
    n_threads: int
    batch: int
    context_tokens: int
    n_tokens: int
    repeats: int
    tokens_per_s: float
    ms_per_step: float
    gb_per_step: float
    read_gb_per_s: float  # step's bytes / step's time
    memory_gb_per_s: float  # one thread reading memory, in the same run
    ratio_to_memory: float
    time_to_first_token_s: float
    prefill_tokens_per_s: float
    peer: PeerSpeed | None = None
    ratio_to_peer: float | None = None


def measure_decode(
    model: str,
    options: EngineOptions,
    *,
    batch: int,
    context_tokens: int,
    n_tokens: int,
    repeats: int,
    peer: bool,
    trace: Path | None = None,
) -> DecodeReport:
    """Runs `batch` greedy requests of `n_tokens` at once, `repeats` times after one warm-up.

    `trace`: afterwards a few more steps are run and drawn to that file; BackendError for a backend without stamps."""
    path = resolve(model)
    files = open_model(path)
    limits = replace(options.limits, drafts=False)  # the speed of steps, not of lucky prompts (bench drafts)
    parts = assemble(files, model_name(model), replace(options, limits=limits))
    backends: list[_native.StepBackend] = []

    def make_backend() -> _native.StepBackend:
        backends.append(parts.make_backend())
        return backends[-1]

    engine = Engine(replace(parts, make_backend=make_backend))
    try:
        runs = asyncio.run(_runs(engine, files.config.vocab, batch, context_tokens, n_tokens, repeats + 1))[1:]
        if trace is not None:
            prompts = np.random.default_rng(1).integers(0, files.config.vocab, (batch, context_tokens)).tolist()
            _trace(engine, backends[-1], prompts, trace)
    finally:
        engine.close()
    gb_per_step = step_bytes(files, parts.kv.geometry, batch, context_tokens + n_tokens // 2) / 1e9
    other = measure_llamacpp(path, parts.n_threads, context_tokens, n_tokens) if peer else None
    return _report(parts, runs, batch, context_tokens, n_tokens, gb_per_step, other)


def _report(
    parts: EngineParts,
    runs: list[_Run],
    batch: int,
    context_tokens: int,
    n_tokens: int,
    gb_per_step: float,
    other: PeerSpeed | None,
) -> DecodeReport:
    memory_gb_per_s = memory_read_speed()
    tokens_per_s = statistics.median(run.tokens_per_s for run in runs)
    ms_per_step = statistics.median(run.ms_per_step for run in runs)
    return DecodeReport(
        model=parts.name,
        machine=f"{platform.machine()}, {cpu_model()}",
        n_threads=parts.n_threads,
        batch=batch,
        context_tokens=context_tokens,
        n_tokens=n_tokens,
        repeats=len(runs),
        tokens_per_s=tokens_per_s,
        ms_per_step=ms_per_step,
        gb_per_step=gb_per_step,
        read_gb_per_s=gb_per_step / ms_per_step * 1e3,
        memory_gb_per_s=memory_gb_per_s,
        ratio_to_memory=gb_per_step / ms_per_step * 1e3 / memory_gb_per_s,
        time_to_first_token_s=statistics.median(run.first_token_s for run in runs),
        prefill_tokens_per_s=statistics.median(run.prefill_tokens_per_s for run in runs),
        peer=other,
        ratio_to_peer=tokens_per_s / other.tokens_per_s if other else None,
    )


def _trace(engine: Engine, backend: _native.StepBackend, prompts: list[list[int]], path: Path) -> None:
    """Decodes _TRACED_STEPS tokens after each prompt while the backend stamps its tasks."""
    if not isinstance(backend, _native.CpuBackend):
        raise BackendError(f"the {backend.name} backend is traced by `bench decode --random-weights --trace FILE`")
    backend.record_steps(_TRACED_STEPS)  # nothing is running: the decode thread is parked
    asyncio.run(_together(engine, prompts, _TRACED_STEPS + 1))
    slices = cpu_slices(backend.stamps())
    (write_picture if path.suffix == ".svg" else write_trace)(path, slices, "worker")
    sys.stderr.write(
        f"{_TRACED_STEPS} steps traced, see {path} (JSON: open it in ui.perfetto.dev)\n{summary(slices)}\n"
    )


@dataclass(frozen=True, slots=True)
class _Run:
    tokens_per_s: float
    ms_per_step: float
    first_token_s: float
    prefill_tokens_per_s: float


async def _runs(engine: Engine, vocab: int, batch: int, context_tokens: int, n_tokens: int, repeats: int) -> list[_Run]:
    dice = np.random.default_rng(0)  # fresh prompts: the prefix cache must not help
    runs: list[_Run] = []
    for _ in range(repeats):
        prompts = dice.integers(0, vocab, (batch, context_tokens)).tolist()
        before = engine.stats()
        spans = await _together(engine, prompts, n_tokens)
        after = engine.stats()
        in_steps_s = after.busy_s - before.busy_s  # stands in where all tokens of a short run arrive together
        runs.append(
            _Run(
                tokens_per_s=sum((n_tokens - 1) / ((last - first) or in_steps_s) for _, first, last in spans),
                ms_per_step=(after.busy_s - before.busy_s) / (after.steps - before.steps) * 1e3,
                first_token_s=statistics.median(first - begun for begun, first, _ in spans),
                prefill_tokens_per_s=(after.prefill_tokens - before.prefill_tokens)
                / (after.prefill_s - before.prefill_s),
            )
        )
    return runs


async def _together(engine: Engine, prompts: list[list[int]], n_tokens: int) -> list[tuple[float, float, float]]:
    """All prompts as requests at once."""
    return await asyncio.gather(*(_stream(engine, Request(tuple(ids), n_tokens)) for ids in prompts))


async def _stream(engine: Engine, request: Request) -> tuple[float, float, float]:
    """When the request was submitted, gave its first and its last token."""
    begun = first = last = time.perf_counter()
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, TokensDecoded):
                last = time.perf_counter()
                first = last if first == begun else first
            elif isinstance(event, StreamFinished) and event.error:
                raise RuntimeError(event.error)
    return begun, first, last


def memory_read_speed() -> float:
    """GB/s of one thread summing a buffer larger than any cache; the best of a few passes."""
    data = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best_s = float("inf")
    for _ in range(_READ_REPEATS):
        start = time.perf_counter()
        data.sum()
        best_s = min(best_s, time.perf_counter() - start)
    torch.set_num_threads(n_threads)
    return _READ_BYTES / best_s / 1e9


def cpu_model() -> str:
    """The CPU's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def describe(report: DecodeReport) -> str:
    """The report for people."""
    lines = [
        f"{report.model} on {report.machine}, {report.n_threads} threads, batch {report.batch}, "
        f"{report.context_tokens} tokens of context",
        f"  decode   {report.tokens_per_s:8.1f} tok/s   {report.ms_per_step:.2f} ms/step",
        f"  reads    {report.gb_per_step:8.3f} GB/step  {report.read_gb_per_s:.1f} GB/s = "
        f"{report.ratio_to_memory:.0%} of one thread's {report.memory_gb_per_s:.1f} GB/s",
        f"  prefill  {report.prefill_tokens_per_s:8.1f} tok/s   first token after {report.time_to_first_token_s:.2f} s",
    ]
    if report.peer is not None:
        lines.append(
            f"  llama.cpp {report.peer.tokens_per_s:7.1f} tok/s   prompt {report.peer.prompt_tokens_per_s:.1f} tok/s"
            f"   ratio {report.ratio_to_peer:.2f}"
        )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's options."""
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=256, help="tokens of prompt")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per request")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="also run llama.cpp (package xllamacpp) on the same file")
    parser.add_argument(
        "--trace",
        type=Path,
        default=None,
        metavar="FILE",
        help="trace a few steps: JSON for Perfetto, or an .svg picture (docs/trace.md)",
    )
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; returns the exit code."""
    report = measure_decode(
        arguments.model,
        EngineOptions(backend=arguments.backend, n_threads=arguments.threads),
        batch=arguments.batch,
        context_tokens=arguments.context,
        n_tokens=arguments.tokens,
        repeats=arguments.repeats,
        peer=arguments.peer,
        trace=arguments.trace,
    )
    sys.stdout.write((json.dumps(asdict(report)) if arguments.json else describe(report)) + "\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. With --random-weights the GPU benchmark takes over, which has its own options."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--random-weights" in given:
        from .gpu import main as measure_gpu

        return measure_gpu(["decode", *given])
    parser = argparse.ArgumentParser(prog="pointcode bench decode", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    return run(parser.parse_args(given))


if __name__ == "__main__":
    sys.exit(main())

"""What prompt-lookup drafts gain: an edit-heavy and a free-text answer with and without them, and what rows cost.

python -m pointcode_local.engine.bench.drafts --model qwen2.5-coder-0.5b --tokens 200 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace

import numpy as np

from .. import _native
from ..assembly import assemble
from ..engine import Engine
from ..kv_cache import FULL, SLIDING, SequencePages
from ..model_files import ModelFiles, open_model
from ..parts import EngineOptions, EngineParts, model_name
from ..registry import DEFAULT_MODEL, resolve
from ..types import Message, Request, SamplingParams, StreamFinished, TokensDecoded

_ROWS = (1, 2, 4, 8)
_CONTEXT_TOKENS = 256
_SOURCE = '''"""Prices of an order."""

TAX = 0.19


def net_price(items, discount=0.0):
    """Sum of the items' prices, less the discount."""
    total = 0.0
    for name, price, count in items:
        if count < 0:
            raise ValueError(f"{name}: count is negative")
        total += price * count
    return total * (1.0 - discount)


def gross_price(items, discount=0.0):
    """The net price with tax."""
    return net_price(items, discount) * (1.0 + TAX)


def print_order(items, discount=0.0):
    """Prints one line per item, then the price."""
    for name, price, count in items:
        print(f"{count} x {name}: {price:.2f}")
    print(f"total: {gross_price(items, discount):.2f}")
'''
WORKLOADS = {
    "edit": f"Rename net_price to price_before_tax everywhere. Answer with the whole file.\n\n```python\n{_SOURCE}```",
    "free": "Explain to a new programmer what a hash map is and when it is slow.",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Medians over the repeats. `tokens_per_step` and `acceptance` (accepted / drafted) are those with drafts."""

    name: str
    n_tokens: int
    tokens_per_s: float
    tokens_per_s_without: float
    ratio: float
    tokens_per_step: float
    acceptance: float
    same_tokens: bool


@dataclass(frozen=True, slots=True)
class DraftReport:
    """`step_ms[n]`: a step of n consecutive tokens of one sequence, at 256 tokens of context."""

    model: str
    n_threads: int
    workloads: list[Workload]
    step_ms: dict[int, float]


@dataclass(frozen=True, slots=True)
class _Run:
    ids: list[int]
    seconds: float
    steps: int
    drafted: int
    accepted: int


def measure_drafts(
    model: str, options: EngineOptions, *, n_tokens: int, temperature: float, repeats: int
) -> DraftReport:
    """Runs every workload with and without drafts, in turn."""
    files = open_model(resolve(model))
    parts = assemble(files, model_name(model), replace(options, cache_dir=None))
    sampling = SamplingParams(temperature=temperature, seed=1)
    workloads: list[Workload] = []
    for name, prompt in WORKLOADS.items():
        ids = tuple(files.template.render([Message("user", prompt)]))
        request = Request(ids, n_tokens, sampling, files.stop_ids)
        runs: dict[bool, list[_Run]] = {True: [], False: []}
        for _ in range(repeats):
            for drafts in (False, True):
                runs[drafts].append(asyncio.run(_measure(parts, request, drafts=drafts)))
        workloads.append(_workload(name, runs))
    return DraftReport(parts.name, parts.n_threads, workloads, _step_times(files, parts))


async def _measure(parts: EngineParts, request: Request, *, drafts: bool) -> _Run:
    engine = Engine(replace(parts, limits=replace(parts.limits, drafts=drafts)))
    try:
        ids: list[int] = []
        first = last = 0.0
        async with aclosing(engine.stream(request)) as events:
            async for event in events:
                if isinstance(event, TokensDecoded):
                    last = time.perf_counter()
                    first = first or last
                    ids += event.ids
                elif isinstance(event, StreamFinished) and event.error:
                    raise RuntimeError(event.error)
        stats = engine.stats()
        return _Run(ids, last - first, stats.steps, stats.drafted, stats.accepted)
    finally:
        await asyncio.to_thread(engine.close)


def _workload(name: str, runs: dict[bool, list[_Run]]) -> Workload:
    n = len(runs[True][0].ids)
    speed, without = ((n - 1) / statistics.median(run.seconds for run in runs[drafts]) for drafts in (True, False))
    steps, drafted, accepted = (
        sum(getattr(run, field) for run in runs[True]) for field in ("steps", "drafted", "accepted")
    )
    return Workload(
        name=name,
        n_tokens=n,
        tokens_per_s=speed,
        tokens_per_s_without=without,
        ratio=speed / without,
        tokens_per_step=n * len(runs[True]) / steps,
        acceptance=accepted / drafted if drafted else 0.0,
        same_tokens=len({tuple(run.ids) for some in runs.values() for run in some}) == 1,
    )


def _step_times(files: ModelFiles, parts: EngineParts) -> dict[int, float]:
    """Median milliseconds of forward steps whose rows follow each other in one sequence; empty on other backends."""
    backend = parts.make_backend()
    if not isinstance(backend, _native.CpuBackend):
        return {}
    pages = SequencePages(parts.kv)
    pages.grow(_CONTEXT_TOKENS + max(_ROWS))
    full, sliding = (np.asarray(pages.tables[group], np.int32) for group in (FULL, SLIDING))
    token = min(set(range(files.config.vocab)) - files.stop_ids)
    times: dict[int, list[float]] = {n: [] for n in _ROWS}
    for _ in range(7):
        for n in _ROWS:
            positions = range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + n)
            rows = [_native.StepRow(token=token, position=i, full_pages=full, sliding_pages=sliding) for i in positions]
            start = time.perf_counter()
            backend.forward(rows)
            times[n].append((time.perf_counter() - start) * 1e3)
    pages.release()
    return {n: statistics.median(some) for n, some in times.items()}


def describe(report: DraftReport) -> str:
    """The report for people."""
    lines = [f"{report.model}, {report.n_threads} threads"]
    lines += [
        f"  {w.name}: {w.tokens_per_s:6.1f} tok/s with drafts, {w.tokens_per_s_without:6.1f} without "
        f"(ratio {w.ratio:.2f}), {w.tokens_per_step:.2f} tokens/step, {w.acceptance:.0%} of the drafts were right, "
        f"{'the same' if w.same_tokens else 'DIFFERENT'} {w.n_tokens} tokens"
        for w in report.workloads
    ]
    if report.step_ms:
        one = report.step_ms[1]
        lines.append(
            "  a step of " + ", ".join(f"{n}: {ms:.1f} ms ({ms / one:.2f})" for n, ms in report.step_ms.items())
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. With --random-weights the GPU benchmark takes over, which has its own options."""
    given_arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--random-weights" in given_arguments:
        from .gpu_drafts import main as measure_on_gpu

        return measure_on_gpu(given_arguments)
    parser = argparse.ArgumentParser(prog="pointcode bench drafts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--tokens", type=int, default=200, help="new tokens per answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(given_arguments)
    options = EngineOptions(backend=given.backend, n_threads=given.threads)
    report = measure_drafts(
        given.model, options, n_tokens=given.tokens, temperature=given.temperature, repeats=given.repeats
    )
    sys.stdout.write((json.dumps(asdict(report)) if given.json else describe(report)) + "\n")
    return 0 if all(workload.same_tokens for workload in report.workloads) else 1


if __name__ == "__main__":
    sys.exit(main())

"""GPU benchmarks with random weights of the full North Mini Code shape: decode, prefill, schedule orders.

python -m pointcode_local.engine.bench.gpu decode --batch 1,2,4,8 --context 8192 --json
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from .. import _native
from ..cuda.assembly import IDLE_CHUNK_TOKENS
from ..cuda.backend import ORDER, megakernel_backend, megakernel_problem, megakernel_schedules
from ..cuda.card import n_sms
from ..cuda.device_weights import DeviceModel
from ..cuda.pages import FRAGMENT_PAGES
from ..cuda.prefill import GpuPrefill
from ..cuda.random_weights import north_mini, random_model
from ..errors import BackendError
from ..kv_cache import PAGE_TOKENS, KvCache, SequencePages, pages_for
from ..models.config import ModelConfig
from ..plans import kv_geometry
from ..recommended import RECOMMENDED
from ..scheduler import ORDER_NAMES
from .gpu_report import DecodePoint, Spread, decode_point
from .service_run import ServiceRow, serve_rows, steps_of
from .trace import GPU_EVENTS, GPU_LAYERS, gpu_slices, summary, write_trace

DEVICE = torch.device("cuda")
_STEPS_LOOKED_AT = 16  # for the mean number of experts


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    config: ModelConfig
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    n_tokens: int
    repeats: int
    sampled: bool = False  # decode: draws as the model's authors recommend, else greedy

    def points(self) -> Iterator[tuple[int, int]]:
        """(batch, context), contexts inside."""
        yield from ((batch, context) for batch in self.batches for context in self.contexts)


def measure_megakernel(plan: Plan, say: Callable[[str], None] = print) -> list[DecodePoint]:
    """Decode speed of the megakernel at every point; raises BackendError where it cannot run."""
    require_megakernel(plan.config)
    with freed():
        model = random_model(plan.config, DEVICE)
        return _measure_megakernel(model, plan, ORDER, say)


def _measure_megakernel(model: DeviceModel, plan: Plan, order: str, say: Callable[[str], None]) -> list[DecodePoint]:
    schedules = megakernel_schedules(plan.config, n_sms(DEVICE), order=order, max_rows=max(plan.batches))
    results: list[DecodePoint] = []
    for batch, context in plan.points():
        with freed():
            kv, tables = filled_cache(plan.config, batch, context, plan.n_tokens)
            backend = megakernel_backend(model, kv, schedules, context + plan.n_tokens + 64)
            seconds: list[float] = []
            kernel_ms: list[float] = []
            measured = 0.0
            for _ in range(plan.repeats + 1):
                rows = _service_rows(tables, context, sampled=plan.sampled)
                run = serve_rows(backend, rows, plan.n_tokens, drafts=False)
                seconds.append(run.seconds)
                fed = steps_of(rows, run.tokens)
                kernel_ms.append(backend.time_kernels(_rows(tables, context), *fed))
                measured = measured or _mean_experts(backend, plan.config, _rows(tables, context), *fed)
            results.append(
                decode_point(
                    plan.config,
                    backend.name,
                    order,
                    batch,
                    context,
                    plan.n_tokens,
                    seconds[1:],
                    measured_experts=measured,
                    kernel_ms=kernel_ms[1:],
                    sampled=plan.sampled,
                )
            )
            say(results[-1].describe())
            del backend, kv
    return results


def trace_megakernel(plan: Plan, path: Path, say: Callable[[str], None] = print) -> None:
    """Draws one step at the plan's first point; BackendError where the extension does not stamp."""
    require_megakernel(plan.config)
    batch, context = next(plan.points())
    with freed():
        model = random_model(plan.config, DEVICE)
        kv, tables = filled_cache(plan.config, batch, context, plan.n_tokens)
        schedules = megakernel_schedules(plan.config, n_sms(DEVICE), max_rows=batch)
        backend = megakernel_backend(model, kv, schedules, context + plan.n_tokens + 64)
        stamps = torch.zeros(n_sms(DEVICE), GPU_LAYERS, GPU_EVENTS, dtype=torch.int64, device=DEVICE)
        torch.cuda.synchronize()
        backend.set_trace(stamps.data_ptr(), GPU_LAYERS * GPU_EVENTS)
        backend.run(_rows(tables, context), 4)  # each step overwrites the stamps of the one before
        slices = gpu_slices(stamps.cpu().numpy())
    if not slices:
        raise BackendError("the extension does not stamp: build it with -DPOINTCODE_TRACE=ON")
    write_trace(path, slices, "SM")
    say(f"one step in {path}; open it in ui.perfetto.dev\n{summary(slices)}")


def measure_baseline(plan: Plan, say: Callable[[str], None] = print) -> list[DecodePoint]:
    """Decode speed of the one-kernel-per-operation backend at every point."""
    from ..cuda.torch_backend import TorchDecoder

    results: list[DecodePoint] = []
    with freed():
        model = random_model(plan.config, DEVICE, packed=False)
        for batch, context in plan.points():
            with freed():
                kv, tables = filled_cache(plan.config, batch, context, plan.n_tokens)
                decoder = TorchDecoder(model, kv, context + plan.n_tokens + 64, feed=True)
                for group, rows in enumerate(tables):
                    decoder.tables[group, :batch, : rows.shape[1]] = torch.from_numpy(rows).to(DEVICE)
                seconds = [_run_decoder(decoder, batch, context, plan.n_tokens) for _ in range(plan.repeats + 1)]
                point = decode_point(plan.config, "torch", "-", batch, context, plan.n_tokens, seconds[1:])
                results.append(point)
                say(point.describe())
                del decoder, kv
    return results


def _run_decoder(decoder: object, batch: int, context: int, n_tokens: int) -> float:
    from ..cuda.torch_backend import TorchDecoder

    assert isinstance(decoder, TorchDecoder)
    decoder.tokens[:batch] = torch.arange(batch, device=DEVICE) * 7 + 3
    decoder.positions[:batch] = context - 1
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    for _ in range(n_tokens):
        decoder.step(batch)
    torch.cuda.synchronize()
    return time.perf_counter() - begun_s


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Prompt speed at one length."""

    prompt_tokens: int
    chunk_tokens: int
    repeats: int
    tokens_per_s: Spread
    seconds: Spread

    def describe(self) -> str:
        """One line."""
        return (
            f"prefill {self.prompt_tokens:>6} tokens in chunks of {self.chunk_tokens}: "
            f"{self.tokens_per_s.median:8.0f} tok/s ({self.tokens_per_s.least:.0f}..{self.tokens_per_s.most:.0f})  "
            f"{self.seconds.median * 1e3:.1f} ms"
        )


def measure_prefill(
    config: ModelConfig,
    lengths: Sequence[int],
    chunks: Sequence[int],
    repeats: int,
    say: Callable[[str], None] = print,
) -> list[PrefillPoint]:
    """Prompt speed from the packed weights that decoding uses."""
    results: list[PrefillPoint] = []
    with freed():
        prefill = GpuPrefill(random_model(config, DEVICE), FRAGMENT_PAGES)
        n_pages = pages_for(max(lengths)) + 1
        kv = KvCache(kv_geometry(config, 2), n_pages, n_pages, DEVICE)
        dice = np.random.default_rng(0)
        for length in lengths:
            for chunk in chunks:
                seconds: list[float] = []
                for _ in range(repeats + 1):
                    ids: list[int] = dice.integers(0, config.vocab, length).tolist()
                    seconds.append(_prefill_once(prefill, kv, ids, chunk))
                spread = Spread.of([length / s for s in seconds[1:]])
                results.append(PrefillPoint(length, chunk, repeats, spread, Spread.of(seconds[1:])))
                say(results[-1].describe())
    return results


def _prefill_once(prefill: GpuPrefill, kv: KvCache, ids: list[int], chunk: int) -> float:
    pages = SequencePages(kv)
    pages.grow(len(ids))
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    for begin in range(0, len(ids), chunk):
        prefill(ids, begin, min(len(ids), begin + chunk), pages, lambda part: None)
    took_s = time.perf_counter() - begun_s
    pages.release()
    return took_s


def measure_orders(
    plan: Plan, orders: Sequence[str], say: Callable[[str], None] = print
) -> dict[str, list[DecodePoint]]:
    """The same model and points under each wave order."""
    require_megakernel(plan.config)
    results: dict[str, list[DecodePoint]] = {}
    with freed():
        model = random_model(plan.config, DEVICE)
        for order in orders:
            results[order] = _measure_megakernel(model, plan, order, say)
    return results


# ------------------------------------------------------------------ parts
def require_megakernel(config: ModelConfig) -> None:
    """Raises BackendError with the reason when the megakernel cannot run here."""
    problem = megakernel_problem(config)
    if problem is not None:
        raise BackendError(f"the megakernel cannot run: {problem}")


@contextmanager
def freed() -> Generator[None]:
    """Gives the memory of what was made inside back to the card."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def filled_cache(
    config: ModelConfig, batch: int, context: int, n_tokens: int
) -> tuple[KvCache, tuple[np.ndarray, np.ndarray]]:
    """Pages with random keys and values, and page tables (batch, n) int32 of both groups for `n_tokens` more tokens.

    Sliding layers have pages of their own from the window of the first step on; earlier entries are never read.
    """
    n = pages_for(context + n_tokens + 1)
    reach = n - max(0, context - config.window) // PAGE_TOKENS
    kv = KvCache(kv_geometry(config, 2), batch * n, batch * reach, DEVICE)
    for pool in kv.pools:
        for pages in (pool.k, pool.v):
            for layer in pages:
                layer.normal_()
    order = np.random.default_rng(1).permutation(batch * n).astype(np.int32)
    sliding = np.zeros((batch, n), np.int32)
    sliding[:, n - reach :] = np.random.default_rng(2).permutation(batch * reach).reshape(batch, reach)
    return kv, (order.reshape(batch, n), sliding)


def _rows(tables: tuple[np.ndarray, np.ndarray], context: int) -> list[_native.StepRow]:
    full, sliding = tables
    return [
        _native.StepRow(token=7 * r + 3, position=context - 1, full_pages=full[r], sliding_pages=sliding[r])
        for r in range(full.shape[0])
    ]


def _service_rows(tables: tuple[np.ndarray, np.ndarray], context: int, *, sampled: bool) -> list[ServiceRow]:
    full, sliding = tables
    draws = RECOMMENDED["cohere2_moe"]
    samplings = [
        _native.SamplingConfig(temperature=draws.temperature, top_p=draws.top_p, seed=r)
        if sampled
        else _native.SamplingConfig()
        for r in range(full.shape[0])
    ]
    # The last token of a history is at position `context` - 1.
    histories = [np.full(context, 7 * r + 3, np.int32) for r in range(full.shape[0])]
    return [ServiceRow(*row) for row in zip(histories, full, sliding, samplings, strict=True)]


def distinct_experts(backend: _native.MegakernelBackend, config: ModelConfig, batch: int) -> float:
    """Distinct experts of the last step's last layer."""
    logits = backend.router_logits()[:batch]
    return float(len(np.unique(np.argsort(-logits, axis=1, kind="stable")[:, : config.top_k])))


def _mean_experts(
    backend: _native.MegakernelBackend,
    config: ModelConfig,
    rows: list[_native.StepRow],
    tokens: np.ndarray,
    positions: np.ndarray,
) -> float:
    """Distinct experts of the last layer, the mean of some of these steps (steps, rows), which run again for it."""
    counts: list[float] = []
    for step in np.linspace(0, len(tokens) - 1, _STEPS_LOOKED_AT).astype(int):
        backend.time_kernels(rows, tokens[step : step + 1], positions[step : step + 1])
        counts.append(distinct_experts(backend, config, len(rows)))
    return sum(counts) / len(counts)


# ------------------------------------------------------------------ command line
def integers(text: str) -> tuple[int, ...]:
    """Of an option: 1,2,4."""
    return tuple(int(part) for part in text.split(","))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of all three benchmarks."""
    parser.add_argument("what", choices=("decode", "prefill", "schedule"))
    parser.add_argument("--random-weights", action="store_true", help="the only source of weights here; for symmetry")
    parser.add_argument("--batch", type=integers, default=None, help="e.g. 1,2,4,8")
    parser.add_argument("--context", type=integers, default=(8192,), help="tokens of context, or of prompt")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk", type=integers, default=(IDLE_CHUNK_TOKENS,), help="prefill: tokens of a chunk")
    parser.add_argument("--orders", default=",".join(ORDER_NAMES), help="schedule: wave orders")
    parser.add_argument("--layers", type=int, default=49, help="fewer layers for a quick look")
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--sampled", action="store_true", help="decode: draw as the model's authors recommend")
    parser.add_argument("--trace", type=Path, default=None, metavar="FILE", help="decode: draw a step, measure nothing")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; returns the exit code."""

    def say(line: str) -> None:
        (sys.stderr if arguments.json else sys.stdout).write(line + "\n")
        (sys.stderr if arguments.json else sys.stdout).flush()

    config = north_mini(arguments.layers)
    default_batches = (1, 2, 4) if arguments.what == "schedule" else (1,)
    batches, sampled = arguments.batch or default_batches, arguments.sampled
    plan = Plan(config, batches, arguments.context, arguments.tokens, arguments.repeats, sampled)
    try:
        found = _measure(arguments, plan, say)
    except BackendError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if arguments.json:
        card = torch.cuda.get_device_name(DEVICE)
        sys.stdout.write(json.dumps({"benchmark": arguments.what, "card": card, **found}) + "\n")
    return 0


def _measure(arguments: argparse.Namespace, plan: Plan, say: Callable[[str], None]) -> dict[str, object]:
    if arguments.what == "prefill":
        points = measure_prefill(plan.config, arguments.context, arguments.chunk, arguments.repeats, say)
        return {"points": [asdict(p) for p in points]}
    if arguments.what == "schedule":
        orders = measure_orders(plan, arguments.orders.split(","), say)
        return {"orders": {name: [asdict(p) for p in points] for name, points in orders.items()}}
    if arguments.trace is not None:
        trace_megakernel(plan, arguments.trace, say)
        return {"trace": str(arguments.trace)}
    ours = measure_megakernel(plan, say)
    baseline = [] if arguments.no_baseline else measure_baseline(plan, say)
    for a, b in zip(ours, baseline, strict=False):
        ratio = a.tokens_per_s.median / b.tokens_per_s.median
        say(f"batch {a.batch} context {a.context_tokens}: {ratio:.2f} x the baseline")
    return {"points": [asdict(p) for p in ours], "baseline": [asdict(p) for p in baseline]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="pointcode bench decode|prefill|schedule", description=(__doc__ or "").splitlines()[0]
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())

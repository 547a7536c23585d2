"""What drafts cost and gain on a GPU, with random weights of the full North Mini Code shape.

pointcode bench drafts --random-weights --batch 1,4 --context 8192 --json

Two tables: what a step of n consecutive tokens of one sequence costs (its kernel alone, beside n tokens of different
sequences), and texts decoded with and without drafts. Random weights cannot choose to repeat a prompt, so what drafts
find is arranged (draft_texts.py); that the tokens are the same is checked in every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from .. import _native
from ..cuda.backend import megakernel_backend, megakernel_schedules
from ..cuda.card import n_sms
from ..cuda.random_weights import north_mini, random_model
from ..errors import BackendError
from ..models.config import ModelConfig
from .draft_texts import WORKLOADS, history_for
from .gpu import DEVICE, distinct_experts, filled_cache, freed, integers, require_megakernel
from .service_run import ServiceRow, ServiceRun, serve_rows

_KERNEL_LAUNCHES = 100
_ROWS = (1, 2, 4, 8)
_SEED = 5
Tables = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step of `rows` consecutive tokens, and one of as many sequences; `ratio` to a step of one row."""

    rows: int
    context_tokens: int
    chain_ms: float
    ratio: float
    apart_ms: float
    distinct_experts: float  # in the last layer of the step of consecutive tokens

    def describe(self) -> str:
        """One line."""
        return (
            f"a step of {self.rows} consecutive tokens at {self.context_tokens}: {self.chain_ms:.3f} ms "
            f"({self.ratio:.2f} of one; {self.distinct_experts:.0f} experts), of {self.rows} sequences "
            f"{self.apart_ms:.3f} ms"
        )


@dataclass(frozen=True, slots=True)
class Gain:
    """Medians over the repeats. `tokens_per_s` counts all rows; `acceptance` is accepted / drafted."""

    workload: str
    batch: int
    n_tokens: int
    tokens_per_s: float
    tokens_per_s_without: float
    ratio: float
    tokens_per_step: float  # of a row
    ms_per_step: float
    acceptance: float
    same_tokens: bool

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.workload:<4} batch {self.batch}: {self.tokens_per_s:7.1f} tok/s with drafts, "
            f"{self.tokens_per_s_without:7.1f} without (ratio {self.ratio:.2f}), {self.tokens_per_step:.2f} tokens a "
            f"step of {self.ms_per_step:.3f} ms, {self.acceptance:.0%} of the drafts were right, "
            f"{'the same' if self.same_tokens else 'DIFFERENT'} {self.n_tokens} tokens"
        )


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What to measure."""

    config: ModelConfig
    batches: tuple[int, ...]
    context_tokens: int
    n_tokens: int
    repeats: int
    temperature: float


def measure_gpu_drafts(plan: DraftPlan, say: Callable[[str], None] = print) -> tuple[list[StepCost], list[Gain]]:
    """Both tables; BackendError where the megakernel cannot run."""
    require_megakernel(plan.config)
    with freed():
        model = random_model(plan.config, DEVICE)
        kv, tables = filled_cache(plan.config, max(_ROWS), plan.context_tokens, plan.n_tokens + max(_ROWS))
        room = plan.context_tokens + plan.n_tokens + 64
        backend = megakernel_backend(model, kv, megakernel_schedules(plan.config, n_sms(DEVICE)), room)
        costs = list(_costs(backend, plan, tables, say))
        for workload in WORKLOADS:
            say(f"{workload.kind}: {workload.meaning}")
        gains: list[Gain] = []
        for batch in plan.batches:
            some = tables[0][:batch], tables[1][:batch]
            for gain in measure_gains(backend, some, plan):
                gains.append(gain)
                say(gain.describe())
        return costs, gains


def _costs(
    backend: _native.MegakernelBackend, plan: DraftPlan, tables: Tables, say: Callable[[str], None]
) -> Iterator[StepCost]:
    dice = np.random.default_rng(_SEED)
    one_ms = 0.0
    for n in _ROWS:
        tokens: list[int] = dice.integers(0, plan.config.vocab, n).tolist()
        chain = [_row(tables, 0, token, plan.context_tokens + i) for i, token in enumerate(tokens)]
        chain_ms = statistics.median(_kernel_ms(backend, chain) for _ in range(plan.repeats))
        experts = distinct_experts(backend, plan.config, n)
        apart = [_row(tables, i, token, plan.context_tokens) for i, token in enumerate(tokens)]
        apart_ms = statistics.median(_kernel_ms(backend, apart) for _ in range(plan.repeats))
        one_ms = one_ms or chain_ms
        cost = StepCost(n, plan.context_tokens, chain_ms, chain_ms / one_ms, apart_ms, experts)
        say(cost.describe())
        yield cost


def _kernel_ms(backend: _native.MegakernelBackend, rows: Sequence[_native.StepRow]) -> float:
    """Of the same step again and again."""
    step = np.array([[row.token for row in rows], [row.position for row in rows]], np.int32)
    tokens, positions = np.repeat(step[:, np.newaxis], _KERNEL_LAUNCHES, axis=1)
    return backend.time_kernels(rows, tokens, positions)


def _row(tables: Tables, sequence: int, token: int, position: int) -> _native.StepRow:
    full, sliding = tables
    return _native.StepRow(token=token, position=position, full_pages=full[sequence], sliding_pages=sliding[sequence])


def measure_gains(backend: _native.StepBackend, tables: Tables, plan: DraftPlan) -> Iterator[Gain]:
    """Every workload on this batch: the texts without drafts first, then from histories that hold them."""
    batch, vocab = len(tables[0]), plan.config.vocab
    last = [7 * r + 3 for r in range(batch)]
    empty = [np.full(plan.context_tokens, token, np.int32) for token in last]

    def run(histories: Sequence[np.ndarray], *, drafts: bool) -> ServiceRun:
        rows = [
            ServiceRow(
                history, tables[0][r], tables[1][r], _native.SamplingConfig(temperature=plan.temperature, seed=r)
            )
            for r, history in enumerate(histories)
        ]
        return serve_rows(backend, rows, plan.n_tokens, drafts=drafts)

    texts = run(empty, drafts=False).tokens
    for workload in WORKLOADS:
        histories = [
            history_for(workload.kind, text, last[r], plan.context_tokens, vocab, seed=r)
            for r, text in enumerate(texts)
        ]
        runs = {drafts: [run(histories, drafts=drafts) for _ in range(plan.repeats)] for drafts in (False, True)}
        yield _gain(workload.kind, plan, texts, runs)


def _gain(kind: str, plan: DraftPlan, texts: list[list[int]], runs: dict[bool, list[ServiceRun]]) -> Gain:
    seconds = {drafts: statistics.median(run.seconds for run in some) for drafts, some in runs.items()}
    steps, drafted, accepted = (
        statistics.median(getattr(run, field) for run in runs[True]) for field in ("steps", "drafted", "accepted")
    )
    n = plan.n_tokens * len(texts)
    return Gain(
        workload=kind,
        batch=len(texts),
        n_tokens=n,
        tokens_per_s=n / seconds[True],
        tokens_per_s_without=n / seconds[False],
        ratio=seconds[False] / seconds[True],
        tokens_per_step=plan.n_tokens / steps,
        ms_per_step=seconds[True] / steps * 1e3,
        acceptance=accepted / drafted if drafted else 0.0,
        same_tokens=all(run.tokens == texts for some in runs.values() for run in some),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="pointcode bench drafts --random-weights", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--random-weights", action="store_true", help="the only source of weights here")
    parser.add_argument("--batch", type=integers, default=(1, 4), help="e.g. 1,2,4")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=1.0, help="0 lets a random model fall into a loop")
    parser.add_argument("--layers", type=int, default=49, help="fewer layers for a quick look")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)

    def say(line: str) -> None:
        (sys.stderr if given.json else sys.stdout).write(line + "\n")

    config = north_mini(given.layers)
    plan = DraftPlan(config, given.batch, given.context, given.tokens, given.repeats, given.temperature)
    try:
        costs, gains = measure_gpu_drafts(plan, say)
    except BackendError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if given.json:
        found = {"card": torch.cuda.get_device_name(DEVICE), "steps": list(map(asdict, costs))}
        sys.stdout.write(json.dumps(found | {"workloads": list(map(asdict, gains))}) + "\n")
    return 0 if all(gain.same_tokens for gain in gains) else 1


if __name__ == "__main__":
    sys.exit(main())

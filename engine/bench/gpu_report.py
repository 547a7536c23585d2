"""What one GPU decode step reads, and measurements as frozen records with one line each for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..models.config import ModelConfig

MEASURED_TB_PER_S = 4.60  # best read stream measured on an H200 (docs/kernel-log.md)
DATASHEET_TB_PER_S = 4.81
BF16 = 2


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes of the repeats."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One backend at one batch and context. `tokens_per_s` counts all rows; percentages are of the read ceilings."""

    backend: str
    order: str
    batch: int
    context_tokens: int
    n_tokens: int
    repeats: int
    tokens_per_s: Spread
    ms_per_step: Spread
    gb_per_step: float
    distinct_experts: float  # a layer, as used for gb_per_step
    experts_measured: bool
    percent_of_measured: float
    percent_of_datasheet: float
    kernel_ms: float | None  # of a step's kernel alone: those of the same steps, launched back to back
    step_gap_us: float | None  # of a step outside the kernel
    sampled: bool = False  # as the model's authors recommend; else greedy

    def describe(self) -> str:
        """One line."""
        source = "measured" if self.experts_measured else "uniform"
        return (
            f"{self.backend:<11} {self.order:<5} batch {self.batch} context {self.context_tokens:>6}: "
            f"{self.tokens_per_s.median:7.1f} tok/s ({self.tokens_per_s.least:.1f}..{self.tokens_per_s.most:.1f})  "
            f"{self.ms_per_step.median:6.3f} ms/step  {self.gb_per_step:6.2f} GB/step "
            f"({self.distinct_experts:.1f} experts, {source})  {self.percent_of_measured:4.1f} % of "
            f"{MEASURED_TB_PER_S:.2f} TB/s, {self.percent_of_datasheet:4.1f} % of {DATASHEET_TB_PER_S:.2f}"
            + ("  sampled" if self.sampled else "")
            + ("" if self.kernel_ms is None else f"  kernel {self.kernel_ms:.3f} ms, gap {self.step_gap_us:.1f} us")
        )


def uniform_experts(config: ModelConfig, batch: int) -> float:
    """Distinct experts of a layer for `batch` tokens when routing is uniform."""
    return config.n_experts * (1 - (1 - config.top_k / config.n_experts) ** batch)


def step_gb(config: ModelConfig, batch: int, context_tokens: int, distinct_experts: float) -> float:
    """Decimal gigabytes that one step must read: every matrix once, the experts that are used, and the KV in reach."""
    d, wide = config.hidden, config.n_heads * config.head_dim
    kv_width = config.n_kv_heads * config.head_dim
    total = float(config.vocab * d)
    for spec in config.layers:
        total += d * (wide + 2 * kv_width) + wide * d + d
        total += 3 * d * spec.intermediate * (distinct_experts if spec.moe else 1)
        total += d * config.n_experts if spec.moe else 0
        seen = min(context_tokens, config.window) if spec.sliding else context_tokens
        total += batch * seen * 2 * kv_width
    return total * BF16 / 1e9


def decode_point(
    config: ModelConfig,
    backend: str,
    order: str,
    batch: int,
    context_tokens: int,
    n_tokens: int,
    seconds: Sequence[float],
    measured_experts: float | None = None,
    kernel_ms: Sequence[float] = (),
    sampled: bool = False,
) -> DecodePoint:
    """From the seconds that each repeat of `n_tokens` steps took; the context is that of the middle of the run.
    `kernel_ms`: what a kernel took in the steps of each repeat without anything around it, where that is known."""
    experts = uniform_experts(config, batch) if measured_experts is None else measured_experts
    gb = step_gb(config, batch, context_tokens + n_tokens // 2, experts)
    ms = Spread.of([s / n_tokens * 1e3 for s in seconds])
    tb_per_s = gb / ms.median
    gaps_us = [s / n_tokens * 1e6 - k * 1e3 for s, k in zip(seconds, kernel_ms, strict=True)] if kernel_ms else []
    return DecodePoint(
        backend=backend,
        order=order,
        batch=batch,
        context_tokens=context_tokens,
        n_tokens=n_tokens,
        repeats=len(seconds),
        tokens_per_s=Spread.of([batch * n_tokens / s for s in seconds]),
        ms_per_step=ms,
        gb_per_step=gb,
        distinct_experts=experts,
        experts_measured=measured_experts is not None,
        percent_of_measured=100 * tb_per_s / MEASURED_TB_PER_S,
        percent_of_datasheet=100 * tb_per_s / DATASHEET_TB_PER_S,
        kernel_ms=statistics.median(kernel_ms) if kernel_ms else None,
        step_gap_us=statistics.median(gaps_us) if gaps_us else None,
        sampled=sampled,
    )

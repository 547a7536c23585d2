"""Sizes and counters of the control plane, and what it calls to compute a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .kv_cache import SequencePages


class PrefillCancelled(Exception):
    """Raised through a running chunk when its request was cancelled."""


AtLayer = Callable[[float], None]  # the part of a chunk that is computed, 0 ≤ part < 1; it may raise


class Prefill(Protocol):
    """Computes keys and values of prompt tokens."""

    def __call__(self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: AtLayer) -> None:
        """Writes K and V of tokens [begin, end) into `pages`; calls `at_layer` between layers or steps."""
        ...


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """Sizes of the control plane; `drafts`: whether steps try tokens that the prompt suggests.

    A chunk of a prompt has up to `chunk_tokens` tokens while others decode, which bounds how long they pause, and up
    to `idle_chunk_tokens` (if that is more) while nobody does. Within a chunk progress is told each `progress_s`.
    """

    max_rows: int = 8
    max_waiting: int = 64
    chunk_tokens: int = 256
    drafts: bool = True
    idle_chunk_tokens: int = 0
    progress_s: float = 0.5

    @property
    def longest_chunk(self) -> int:
        """Tokens of the longest chunk."""
        return max(self.chunk_tokens, self.idle_chunk_tokens)


@dataclass(slots=True)
class ControlCounters:
    """Numbers for metrics and health checks."""

    n_finished: int = 0
    n_restarts: int = 0
    n_preempted: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    prefill_layers: int = 0  # begun; moves also in the middle of a long chunk
    longest_chunk_s: float = 0.0

    def add_chunk(self, n_tokens: int, took_s: float) -> None:
        """Counts a chunk of a prompt."""
        self.prefill_tokens += n_tokens
        self.prefill_s += took_s
        self.longest_chunk_s = max(self.longest_chunk_s, took_s)

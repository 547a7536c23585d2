"""One request on its way through the control plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from . import _native
from .errors import EngineError
from .kv_cache import SequencePages
from .types import LiveRequest, PrefillProgress, Request, RequestState


class Constraint(Protocol):
    """A request's grammar as the decode service needs it."""

    def start(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(mask of the first token or None, ids to ask after while unmasked), (ceil(vocab / 32),) uint32."""
        ...


Outcome = PrefillProgress | EngineError
Move = Callable[[Sequence[int]], tuple[int, Constraint | None]]


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way. `cancelled` may be set by any thread; the rest belongs to the control thread."""

    id: int
    request: Request
    sampling: _native.SamplingConfig
    report: Callable[[Outcome], None]  # from the control thread; an error is the job's last report
    move: Move  # output so far -> number and grammar of a new row
    constraint: Constraint | None = None
    cancelled: bool = False
    first_masks: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    pages: SequencePages | None = None
    n_done: int = 0
    n_cached: int = 0
    row: int = 0  # the number of its row: `id`, until it was taken out of the batch and comes back
    n_earlier: int = 0  # tokens of the request that an earlier row of it has generated
    told_s: float = 0.0  # when progress was reported last

    def __post_init__(self) -> None:
        self.row = self.row or self.id

    @property
    def urgency(self) -> tuple[int, int]:
        """Smaller goes first: by priority, then by age."""
        return -self.request.priority, self.id

    @property
    def n_prefill(self) -> int:
        """Tokens to compute before decoding: the last prompt token is fed by the first step."""
        return len(self.request.token_ids) - 1

    def live(self, state: RequestState) -> LiveRequest:
        """What a view of the engine shows of it."""
        n_prompt = len(self.request.token_ids) - self.n_earlier
        n_done = n_prompt if state == "writing" else min(self.n_done, n_prompt)
        return LiveRequest(self.id, state, n_prompt, n_done, self.n_cached)

    def report_progress(self, n_in_chunk: int = 0) -> None:
        """Of the request's own prompt only: what is computed again after a preemption is no news."""
        if not self.n_earlier:
            self.told_s = time.perf_counter()
            self.report(PrefillProgress(self.n_done + n_in_chunk, len(self.request.token_ids), self.n_cached))

    def report_within_chunk(self, n_computed: int, every_s: float) -> None:
        """The same in the middle of a chunk, when the last report is `every_s` old. `n_computed`: as many tokens of the
        chunk as correspond to what is computed; a layer of all its tokens comes before the next layer."""
        if n_computed and time.perf_counter() - self.told_s >= every_s:
            self.report_progress(n_computed)

    def release(self) -> None:
        """Gives its pages back; what was computed into them is to be looked up or computed again."""
        if self.pages is not None:
            self.pages.release()
        self.pages = None
        self.n_done = self.n_cached = 0

"""One request on its way through the control plane."""

from __future__ import annotations

from collections.abc import Callable
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


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way. `cancelled` may be set by any thread; the rest belongs to the control thread."""

    id: int
    request: Request
    sampling: _native.SamplingConfig
    report: Callable[[Outcome], None]  # from the control thread; an error is the job's last report
    constraint: Constraint | None = None
    cancelled: bool = False
    first_masks: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    pages: SequencePages | None = None
    n_done: int = 0
    n_cached: int = 0

    @property
    def n_prefill(self) -> int:
        """Tokens to compute before decoding: the last prompt token is fed by the first step."""
        return len(self.request.token_ids) - 1

    def live(self, state: RequestState) -> LiveRequest:
        """What a view of the engine shows of it."""
        n_prompt = len(self.request.token_ids)
        return LiveRequest(self.id, state, n_prompt, n_prompt if state == "writing" else self.n_done, self.n_cached)

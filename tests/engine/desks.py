"""A decode service by itself, and rows of every kind for it: what the tests of running ahead share."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from pointcode_local.engine import _native
from pointcode_local.engine._native import DecodeService, DeferredBackend, SamplingConfig, TokenFlag

VOCAB = 320
NO_PAGES = np.zeros(0, np.int32)
Record = tuple[int, int, int, dict[int, float] | None]


Pages = Sequence[int] | tuple[np.ndarray, np.ndarray]


def _is_pair(pages: Pages) -> TypeGuard[tuple[np.ndarray, np.ndarray]]:
    return isinstance(pages[0], np.ndarray)


def wait_for_step(service: DecodeService) -> None:
    """Until the service says that it has made a step or has ended rows. Bounded, for one that said so before."""
    if select.select([service.event_fd], [], [], 0.05)[0]:
        os.eventfd_read(service.event_fd)


@dataclass(slots=True)
class Desk:
    """A decode service over a backend, and everything that came out of it by request."""

    service: DecodeService
    backend: _native.StepBackend
    records: dict[int, list[Record]]

    @classmethod
    def over(cls, backend: _native.StepBackend, *, ahead: bool = True, ring: int = 256) -> Desk:
        """Parked. A backend that does not run ahead by itself is deferred."""
        service = DecodeService(ring)
        assert service.park(5.0)
        deferred = ahead and backend.name != "megakernel"
        made = DeferredBackend(backend) if deferred else backend
        service.set_backend(made)
        service.set_run_ahead(ahead)
        return cls(service, made, {})

    def add(
        self,
        request: int,
        history: Sequence[int],
        max_tokens: int,
        pages: Pages,
        sampling: SamplingConfig | None = None,
        stop: Sequence[int] = (),
        **masks: np.ndarray,
    ) -> None:
        """A row; the service is parked. Pages of the full group, or the tables of both."""
        full, sliding = pages if _is_pair(pages) else (np.asarray(pages, np.int32), NO_PAGES)
        ids = np.asarray(history, np.int32)
        self.service.add_row(request, ids, max_tokens, list(stop), sampling or SamplingConfig(), full, sliding, **masks)
        self.records[request] = []

    def read(self) -> int:
        """Takes what has come; how many records."""
        found = self.service.drain()
        for record in found:
            self.records[record[0]].append(record)
        return len(found)

    def ended(self, request: int) -> bool:
        return bool(self.records[request]) and self.records[request][-1][2] != TokenFlag.VALID

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Runs until the records say so, then parks."""
        self.service.resume()
        while not condition():
            wait_for_step(self.service)
            self.read()
        assert self.service.park(5.0)
        self.read()
        assert not isinstance(self.backend, DeferredBackend) or self.backend.n_under_way == 0

    def run_steps(self, n: int, requests: Sequence[int]) -> None:
        """At least so many steps, or until these rows have ended."""
        seen = self.service.steps
        self.run_until(lambda: self.service.steps >= seen + n or all(map(self.ended, requests)))

    def run(self) -> dict[int, list[Record]]:
        """Until all rows have ended."""
        self.run_until(lambda: all(map(self.ended, self.records)))
        return self.records

    def tokens(self, request: int) -> list[int]:
        return [token for _, token, flags, _ in self.records[request] if flags & TokenFlag.VALID]

    @property
    def n_ahead(self) -> int:
        assert isinstance(self.backend, DeferredBackend)
        return self.backend.n_ahead


KINDS: tuple[tuple[int, SamplingConfig, range], ...] = (
    (40, SamplingConfig(), range(0)),
    (55, SamplingConfig(temperature=1.0, top_p=0.9, top_k=50, seed=5), range(0)),
    (62, SamplingConfig(temperature=1.0, seed=6, n_logprobs=3), range(0, VOCAB, 16)),
    (17, SamplingConfig(repetition_penalty=1.3, frequency_penalty=0.4), range(0)),
    (1, SamplingConfig(), range(0)),
    (2, SamplingConfig(logit_bias=[(7, 50.0)]), range(0)),
    (30, SamplingConfig(temperature=2.0, seed=8), range(0, VOCAB, 8)),
)
"""Tokens, sampling and stop ids of rows that end at different steps."""


def watched(ids: Sequence[int]) -> np.ndarray:
    """The bits of these ids, as a mask or a watch list."""
    words = np.zeros(VOCAB // 32, np.uint32)
    for token in ids:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def answer_queries(desk: Desk, watched_every: int) -> int:
    """A scripted grammar: after a watched token one certain token, then anything; how many queries there were."""
    queries = desk.service.wait_queries(0.0)
    for request, n_generated, recent, _ in queries:
        one = watched([(recent[-1] * 7 + n_generated) % VOCAB])
        masks = [one] if recent[-1] % watched_every == 0 else []
        desk.service.answer(request, n_generated, masks)
    return len(queries)

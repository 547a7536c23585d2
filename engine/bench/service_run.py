"""A batch through the native decode service, with nothing around it: what a step costs where no server is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import BackendError

_PARK_TIMEOUT_S = 30.0
_FETCH_S = 0.02  # tokens are fetched so often: thousands at once, after the last step, would be counted with the steps


@dataclass(frozen=True, slots=True, eq=False)
class ServiceRow:
    """One sequence: its tokens (all but the last of them lie in the pages), and page tables for all that will come."""

    history: NDArray[np.int32]
    full: NDArray[np.int32]
    sliding: NDArray[np.int32]
    sampling: _native.SamplingConfig = field(default_factory=_native.SamplingConfig)  # greedy


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """What came of a batch: per row its tokens; draft tokens that were tried, and those that were right."""

    tokens: list[list[int]]
    seconds: float
    steps: int
    drafted: int
    accepted: int


def steps_of(
    rows: Sequence[ServiceRow], tokens: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Tokens and positions (steps, rows) with which the steps of a run without drafts were fed, from what it gave."""
    fed = np.array([[row.history[-1], *some[:-1]] for row, some in zip(rows, tokens, strict=True)], np.int32)
    first = np.array([len(row.history) - 1 for row in rows], np.int32)
    return np.ascontiguousarray(fed.T), first + np.arange(fed.shape[1], dtype=np.int32)[:, np.newaxis]


def run_service(backend: _native.StepBackend, rows: Sequence[ServiceRow], n_tokens: int) -> float:
    """Seconds in which the decode service, as the engine uses it, gives every row `n_tokens` tokens, without drafts.

    Raises BackendError when a row ends early."""
    return serve_rows(backend, rows, n_tokens, drafts=False).seconds


def serve_rows(backend: _native.StepBackend, rows: Sequence[ServiceRow], n_tokens: int, *, drafts: bool) -> ServiceRun:
    """The same with all that is known of it. Drafts are looked up in the rows' histories."""
    batch = len(rows)
    tokens: list[list[int]] = [[] for _ in rows]
    service = _native.DecodeService(4096 + batch * n_tokens)
    try:
        service.park(_PARK_TIMEOUT_S)
        service.set_backend(backend)
        service.set_drafts(drafts)
        for r, row in enumerate(rows):
            service.add_row(r + 1, row.history, n_tokens, [], row.sampling, row.full, row.sliding)
        begun_s = time.perf_counter()
        service.resume()
        came_s = ended_s = begun_s
        ends: list[int] = []
        while len(ends) < batch:
            service.wait_notices(_FETCH_S)
            ended_s = time.perf_counter()
            for request, token, flags, _ in service.drain(batch * n_tokens):
                came_s = ended_s
                if flags & _native.TokenFlag.VALID:
                    tokens[request - 1].append(token)
                if flags != _native.TokenFlag.VALID:
                    ends.append(flags)
            if ended_s - came_s > _PARK_TIMEOUT_S:
                raise BackendError(service.error or f"no token came for {_PARK_TIMEOUT_S:.0f} s")
        took_s = ended_s - begun_s
        if any(not flags & _native.TokenFlag.END_LENGTH for flags in ends):
            raise BackendError(service.error or "a row ended early: a NaN among its logits")
        return ServiceRun(tokens, took_s, service.steps, service.drafted, service.accepted)
    finally:
        service.close()

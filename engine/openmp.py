"""How torch's worker threads wait."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

_POLICY = "OMP_WAIT_POLICY"


@contextmanager
def patient_threads() -> Generator[None]:
    """Torch, when it is imported inside for the first time, gets threads that sleep while they wait.

    Threads that spin hold the core that the thread they wait for needs: with two busy processes beside it on two cores,
    a prompt of 1,500 tokens (SmolLM2-135M) took 28 s with spinning threads, 9 s and 14 s with sleeping ones; on a quiet
    machine 500 tokens took 1.1 s with both. What the person has set stays; programs started later see no change.
    """
    if _POLICY in os.environ:
        yield
        return
    os.environ[_POLICY] = "passive"
    try:
        yield
    finally:
        del os.environ[_POLICY]

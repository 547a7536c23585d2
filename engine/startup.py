"""What a start spends its time on, as lines of the log (level INFO)."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager

_LOG = logging.getLogger(__name__)


@contextmanager
def timed(what: str) -> Generator[None]:
    """Logs how many seconds the block took, also when it fails."""
    began_s = time.perf_counter()
    try:
        yield
    finally:
        _LOG.info("%s: %.3f s", what, time.perf_counter() - began_s)

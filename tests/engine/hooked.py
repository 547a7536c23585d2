"""A real backend whose every step a test may watch, hold, change or fail, on the decode thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from pointcode_local.engine import _native
from pointcode_local.engine.assembly import cpu_backend, cpu_schedules
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.parts import EngineParts

Hook = Callable[[np.ndarray, np.ndarray], None]  # positions (rows,) int32, logits (rows, vocab) fp32


def hooked(files: ModelFiles, hook: Hook) -> Callable[[EngineParts], EngineParts]:
    """For `opened`: the CPU backend computes the logits, `hook` may change them in place, wait, or raise."""

    def change(parts: EngineParts) -> EngineParts:
        return replace(parts, make_backend=lambda: _backend(files, parts, hook))

    return change


def broken_backend(files: ModelFiles, parts: EngineParts) -> _native.CpuBackend:
    """A real backend whose last task waits for a signal that never comes; one token makes it time out."""
    schedules = cpu_schedules(files.config, 1, 1)
    schedules[0].tasks["wait_target"][-1, 0] += 1
    return cpu_backend(files.weights, parts.kv, schedules, wait_limit_ms=20)


def _backend(files: ModelFiles, parts: EngineParts, hook: Hook) -> _native.LogitsBackend:
    cpu = cpu_backend(files.weights, parts.kv, cpu_schedules(files.config, 1))
    tables: list[tuple[Any, Any]] = []

    def forward(tokens: np.ndarray, positions: np.ndarray, pages: list[tuple[Any, Any]] | None) -> np.ndarray:
        if pages is not None:
            tables[:] = pages
        rows = [
            _native.StepRow(token=int(token), position=int(position), full_pages=full, sliding_pages=sliding)
            for token, position, (full, sliding) in zip(tokens, positions, tables, strict=True)
        ]
        logits = cpu.forward(rows)
        hook(positions, logits)
        return logits

    return _native.LogitsBackend("hooked", parts.vocab, forward)


class Holds:
    """A hook that holds the decode thread where a row comes to a position, once each, until a batch change wants it."""

    def __init__(self, positions: Iterable[int]) -> None:
        self._positions = set(positions)
        self._wanted = threading.Event()
        self._never = threading.Event()
        self.reached = threading.Event()

    def __call__(self, positions: np.ndarray, logits: np.ndarray) -> None:
        if self._wanted.is_set():  # the control thread is about to say so to the service: steps are slow until then
            self._never.wait(0.005)
            return
        due = [p for p in self._positions if any(p <= at < p + 50 for at in positions.tolist())]
        if due:
            self._positions.remove(min(due))
            self.reached.set()
            self._wanted.wait()

    def watch(self, engine: Engine) -> None:
        """Learns from now on when the control thread asks for the batch."""
        service, wanted = engine._service, self._wanted

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(service, name)

            def park(self, timeout_s: float) -> bool:
                wanted.set()
                return service.park(timeout_s)

            def resume(self) -> None:
                wanted.clear()
                service.resume()

        engine._control._service = Watched()  # type: ignore[assignment]

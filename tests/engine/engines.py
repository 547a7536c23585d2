"""What the tests of the whole engine share: an engine over a tiny checkpoint, and readers of its streams."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import numpy as np

from pointcode_local.engine.assembly import assemble
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.parts import EngineOptions, EngineParts
from pointcode_local.engine.types import Request, StreamFinished, TokenEvent, TokensDecoded

LIMITS = ControlLimits(chunk_tokens=64, progress_s=math.inf)  # progress by chunks, however slow the machine is
OPTIONS = EngineOptions(backend="cpu", n_threads=1, kv_bytes=12 << 20, limits=LIMITS)


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(seed).integers(20, 300, n))


class opened:
    """An engine that is closed, with balanced books, at the end."""

    def __init__(
        self,
        files: ModelFiles,
        options: EngineOptions = OPTIONS,
        change: Callable[[EngineParts], EngineParts] = lambda parts: parts,
    ) -> None:
        self.engine = Engine(change(assemble(files, "tiny", options)))

    def __enter__(self) -> Engine:
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        self.engine.check()
        assert all(pool.used == 0 for pool in self.engine.stats().pages)


async def collect(engine: Engine, request: Request) -> tuple[list[int], StreamFinished]:
    ids: list[int] = []
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            match event:
                case TokensDecoded(ids=new):
                    ids += new
                case StreamFinished():
                    return ids, event
                case _:
                    pass
    raise AssertionError("the stream ended without StreamFinished")


async def until(condition: Callable[[], bool]) -> None:
    """Other threads bring the condition about and need the interpreter for it; the test's time-out bounds the wait."""
    while not condition():  # noqa: ASYNC110 - threads set it, not tasks
        await asyncio.sleep(0.002)


async def next_of(events: AsyncGenerator[TokenEvent, None], kind: type[TokenEvent]) -> TokenEvent:
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError("the stream ended")

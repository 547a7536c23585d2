"""Several replies at once: their deltas in one stream, each with its choice's index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ..types import ChatDelta

Choice = tuple[int, ChatDelta]


async def merged(replies: Sequence[AsyncGenerator[ChatDelta, None]]) -> AsyncGenerator[Choice, None]:
    """All deltas as they come. The first error of a reply ends all; closing closes all."""
    if len(replies) == 1:
        async with aclosing(replies[0]) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    queue: asyncio.Queue[Choice | Exception | None] = asyncio.Queue()

    async def pump(index: int, reply: AsyncGenerator[ChatDelta, None]) -> None:
        try:
            async with aclosing(reply) as deltas:
                async for delta in deltas:
                    queue.put_nowait((index, delta))
        except Exception as error:  # noqa: BLE001 - handed over to who reads the queue
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(i, reply)) for i, reply in enumerate(replies)]
    try:
        n_open = len(tasks)
        while n_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                n_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

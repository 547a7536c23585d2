"""Many requests in a row. To explore: as many as a busy person sends in an hour."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path

import httpx

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.server import create_app
from tests.effort import effort

from .kit import tiny
from .test_traps import client_runs, essence, mixed_requests

N_REQUESTS = effort(160, 600)  # one every six seconds
LIMIT_BYTES = 64 << 20  # the allocator's own slack; one leaked page table or stream per request would be more objects


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def test_many_requests_leave_memory_flat(tmp_path: Path) -> None:
    async def some(client: httpx.AsyncClient, model: LocalChatModel, alone: list[object], seed: int, n: int) -> None:
        wanted = mixed_requests(model)
        runs = (client_runs(client, random.Random(f"{seed}.{i}"), wanted, alone, n // 8) for i in range(8))
        await asyncio.gather(*runs)

    async def main(model: LocalChatModel) -> None:
        transport = httpx.ASGITransport(create_app(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            alone = [essence(p, (await client.post(p, json=body)).json()) for p, body in mixed_requests(model)]
            await some(client, model, alone, 0, 256)  # the response store and the reply cache fill up
            gc.collect()
            n_objects, n_bytes = len(gc.get_objects()), resident_bytes()
            await some(client, model, alone, 1, N_REQUESTS)
            gc.collect()
            assert len(gc.get_objects()) - n_objects < 10 * N_REQUESTS
            assert resident_bytes() - n_bytes < LIMIT_BYTES

    gc.freeze()  # what earlier tests left is looked through no more
    with tiny(tmp_path) as model:
        asyncio.run(main(model))

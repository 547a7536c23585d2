"""The engine of this process as front ends see it."""

from __future__ import annotations

import asyncio

from pointcode_local.engine.types import ChatModel, LiveRequest
from pointcode_local.frontend import EngineRequest, EngineView, PagePool

_POOLS = ("full layers", "sliding layers")  # as engine.kv_cache numbers its groups


class EngineWatch:
    """Looks at a model's engine. What the memory gives is measured once and remembered."""

    def __init__(self) -> None:
        self._read_bytes_per_s = 0.0

    def view(self, model: ChatModel | None) -> EngineView | None:
        """The engine at this moment; None for a model that runs elsewhere."""
        from pointcode_local.engine.chat_model import LocalChatModel

        if not isinstance(model, LocalChatModel):
            return None
        engine, stats = model.engine, model.engine.stats()
        requests = tuple(_request(request) for request in stats.requests)
        lengths = [r.prompt_tokens + r.new_tokens for r in requests if r.state == "writing"]
        pools = [(name, pool) for name, pool in zip(_POOLS, stats.pages, strict=False) if pool.total]
        only_one = len(pools) == 1
        return EngineView(
            model=model.name,
            backend=engine.backend,
            n_threads=engine.n_threads,
            max_rows=engine.max_rows,
            steps=stats.steps,
            busy_s=stats.busy_s,
            prefill_tokens=stats.prefill_tokens,
            prefill_s=stats.prefill_s,
            n_finished=stats.n_finished,
            requests=requests,
            pools=tuple(
                PagePool("all layers" if only_one else name, pool.used, pool.cached, pool.total) for name, pool in pools
            ),
            page_tokens=engine.page_tokens,
            step_bytes=engine.step_bytes(len(lengths), sum(lengths) // max(1, len(lengths))),
            ceiling_bytes_per_s=self._read_bytes_per_s,
            drafted_tokens=stats.drafted,
            accepted_tokens=stats.accepted,
        )

    async def measure(self, model: ChatModel | None) -> None:
        """Measure what the memory gives; does nothing while a request is under way, or a second time."""
        from pointcode_local.engine.chat_model import LocalChatModel

        if isinstance(model, LocalChatModel) and not self._read_bytes_per_s and not model.engine.stats().requests:
            self._read_bytes_per_s = await asyncio.to_thread(model.engine.read_bytes_per_s)


def _request(request: LiveRequest) -> EngineRequest:
    return EngineRequest(
        request.id,
        request.state,
        request.prompt_tokens,
        request.done_tokens,
        request.cached_tokens,
        request.new_tokens,
    )

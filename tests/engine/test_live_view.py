"""What the engine tells of itself while it works, and what an application makes of it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from pointcode_local.engine.chat_model import LocalChatModel
from pointcode_local.engine.costs import memory_bytes_per_s
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.types import LiveRequest, Request, TokensDecoded
from pointcode_local.engine_view import EngineWatch

from .conftest import TinyModel
from .engines import opened, prompt


@pytest.fixture(scope="module")
def files(tiny_model: TinyModel) -> ModelFiles:
    return tiny_model("cohere2_moe")


def test_a_request_is_seen_while_it_is_written_and_gone_afterwards(files: ModelFiles) -> None:
    async def main() -> tuple[LiveRequest, ...]:
        async with aclosing(engine.stream(Request(prompt(1, 70), 400))) as events:
            async for event in events:
                if isinstance(event, TokensDecoded):
                    return engine.stats().requests
        return ()

    with opened(files) as engine:
        (seen,) = asyncio.run(main())
        assert (seen.state, seen.prompt_tokens, seen.done_tokens) == ("writing", 70, 70)
        assert seen.new_tokens >= 1
    assert engine.stats().requests == ()


def test_more_rows_and_longer_contexts_read_more(files: ModelFiles) -> None:
    with opened(files) as engine:
        assert 0 < engine.step_bytes(1, 64) < engine.step_bytes(1, 640) < engine.step_bytes(8, 640)
        assert engine.backend == "cpu"


def test_the_view_holds_the_engines_figures(files: ModelFiles, tmp_path: Path) -> None:
    with opened(files) as engine:
        view = EngineWatch().view(LocalChatModel(engine, files))
        assert view is not None
        assert (view.model, view.backend, view.n_threads, view.page_tokens) == ("tiny", "cpu", 1, 64)
        assert [pool.name for pool in view.pools] == ["full layers", "sliding layers"]
        assert view.step_bytes > 0 and view.ceiling_bytes_per_s == 0


def test_what_the_memory_gives_is_measured_once(files: ModelFiles) -> None:
    with opened(files) as engine:
        watch, model = EngineWatch(), LocalChatModel(engine, files)
        asyncio.run(watch.measure(model))
        first = watch.view(model)
        asyncio.run(watch.measure(model))
        assert first is not None and first.ceiling_bytes_per_s > 0
        assert watch.view(model) == first


def test_memory_speed_is_a_number_of_bytes_a_second() -> None:
    assert memory_bytes_per_s(2) > 1e8

"""Requests through the whole engine on the GPU: admission, prefill in chunks, the decode thread, both GPU backends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from .support import WINDOW, needs_gpu

pytestmark = needs_gpu
pytest.importorskip("llguidance", reason="the engine's grammars need llguidance")

from pointcode_local.engine.control import ControlLimits  # noqa: E402
from pointcode_local.engine.model_files import ModelFiles, open_model  # noqa: E402
from pointcode_local.engine.parts import EngineOptions  # noqa: E402
from pointcode_local.engine.types import Request, SamplingParams, TokensDecoded  # noqa: E402

from ..engine.engines import collect, opened, prompt  # noqa: E402
from ..engine.tiny_models import make_tiny  # noqa: E402


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(
        make_tiny("cohere2_moe", tmp_path_factory.mktemp("tiny"), dtype=torch.bfloat16, sliding_window=WINDOW)
    )


def options(backend: str, cache: Path | None = None) -> EngineOptions:
    return EngineOptions(
        backend=backend, kv_bytes=64 << 20, context_tokens=2048, cache_dir=cache, limits=ControlLimits(chunk_tokens=64)
    )


@pytest.mark.parametrize("backend", ["megakernel", "torch"])
def test_requests_at_once_give_what_each_gives_alone(files: ModelFiles, backend: str) -> None:
    requests = [Request(prompt(i, 40 + 61 * i), 80) for i in range(4)]
    requests.append(Request(prompt(9, 90), 80, SamplingParams(temperature=1.0, top_p=0.95, seed=4)))
    with opened(files, options(backend)) as engine:

        async def main() -> None:
            alone = [await collect(engine, request) for request in requests]
            together = await asyncio.gather(*(collect(engine, request) for request in requests))
            same = sum(a == b for (a, _), (b, _) in zip(alone, together, strict=True))
            assert same == len(requests) if backend == "megakernel" else same >= 1  # cuBLAS depends on the batch
            assert all(end.reason == "length" and len(ids) == 80 for ids, end in together)

        asyncio.run(main())


def test_both_gpu_backends_and_the_cpu_begin_a_text_alike(files: ModelFiles) -> None:
    texts: list[list[int]] = []
    for backend in ("cpu", "megakernel", "torch"):
        with opened(files, options(backend)) as engine:
            texts.append(asyncio.run(collect(engine, Request(prompt(3, 100), 30)))[0])
    assert texts[0][:3] == texts[1][:3] == texts[2][:3]


def test_the_default_here_is_the_megakernel(files: ModelFiles) -> None:
    with opened(files, options("auto")) as engine:
        assert engine._parts.make_backend().name == "megakernel"


def test_a_cancelled_request_frees_its_pages_and_others_go_on(files: ModelFiles) -> None:
    with opened(files, options("megakernel")) as engine:

        async def main() -> None:
            other = asyncio.create_task(collect(engine, Request(prompt(1, 200), 300)))
            async with aclosing(engine.stream(Request(prompt(2, 200), 1000))) as events:
                async for event in events:
                    if isinstance(event, TokensDecoded):
                        break
            assert len((await other)[0]) == 300

        asyncio.run(main())


def test_a_prefix_survives_a_restart_on_disk(files: ModelFiles, tmp_path: Path) -> None:
    request = Request(prompt(5, 400), 40)
    with opened(files, options("megakernel", tmp_path)) as engine:
        first, _ = asyncio.run(collect(engine, request))
    with opened(files, options("megakernel", tmp_path)) as engine:
        again, end = asyncio.run(collect(engine, replace(request)))
        assert again == first
        assert end.usage.cached_tokens >= 256

"""Requests through the whole engine: tiny random checkpoints, the real CPU backend, the real decode thread."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.errors import CapacityError, ContextOverflow, RequestError
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.parts import EngineParts
from pointcode_local.engine.types import (
    PrefillProgress,
    Request,
    SamplingParams,
    TokensDecoded,
)

from .engines import OPTIONS, collect, next_of, opened, prompt, until
from .tiny_models import make_tiny


# ------------------------------------------------------------------------------------------------ results
@pytest.mark.parametrize("n", [2, 20, 75])
def test_native_and_torch_prefill_give_the_same_keys_and_answers(any_files: ModelFiles, n: int) -> None:
    def only(kind: str) -> Callable[[EngineParts], EngineParts]:
        return lambda parts: replace(parts, prefill=getattr(parts.prefill, kind))

    answers: list[list[int]] = []
    for kind in ("native", "torch"):
        with opened(any_files, change=only(kind)) as engine:
            answers.append(asyncio.run(collect(engine, Request(prompt(8, n), 30)))[0])
    assert answers[0] == answers[1]


def test_a_short_prompt_on_the_cpu_is_answered_without_torch(tmp_path: Path) -> None:
    path = make_tiny("llama", tmp_path / "llama")
    script = (
        "import asyncio, sys\n"
        "from pointcode_local.engine.engine import Engine\n"
        "from pointcode_local.engine.parts import EngineOptions\n"
        "from pointcode_local.engine.types import Request\n"
        "async def main():\n"
        "    options = EngineOptions('cpu', n_threads=1, kv_bytes=12 << 20)\n"
        "    engine = Engine.open(sys.argv[1], options)\n"
        "    for n in (9, 140):\n"
        "        async for event in engine.stream(Request(tuple(range(3, 3 + n)), 4)):\n"
        "            pass\n"
        "        print(n, 'torch' in sys.modules)\n"
        "    engine.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["9 False", "140 True"]


def test_four_requests_at_once_give_what_each_gives_alone(any_files: ModelFiles) -> None:
    requests = [Request(prompt(i, 40 + 61 * i), 80) for i in range(4)]

    async def main(engine: Engine) -> None:
        alone = [await collect(engine, request) for request in requests]
        together = await asyncio.gather(*(collect(engine, request) for request in requests))
        assert [ids for ids, _ in together] == [ids for ids, _ in alone]
        assert all(len(ids) == 80 and end.reason == "length" for ids, end in together)

    with opened(any_files) as engine:
        asyncio.run(main(engine))


def test_the_first_idle_moment_builds_what_grammars_need(files: ModelFiles) -> None:
    built = threading.Event()

    def watched(parts: EngineParts) -> EngineParts:
        assert parts.grammars is not None
        prepare = parts.grammars.prepare

        def watched_prepare() -> None:
            prepare()
            built.set()

        parts.grammars.prepare = watched_prepare
        return parts

    with opened(files, change=watched) as engine:
        assert built.wait(60)
        assert len(asyncio.run(collect(engine, Request(prompt(1, 20), 3)))[0]) == 3


def test_greedy_tokens_are_those_of_the_torch_reference(any_files: ModelFiles) -> None:
    from pointcode_local.engine.models.reference import GrowingKv, TorchModel

    torch.set_num_threads(1)
    model, kv, ids = TorchModel(any_files.weights, cache_bytes=1 << 28), GrowingKv(any_files.config.n_layers), []
    fed = list(prompt(5, 150))
    position = 0
    for _ in range(30):
        logits = model.forward(fed, kv, first_position=position)
        assert logits is not None
        position += len(fed)
        fed = [int(logits[-1].argmax())]
        ids += fed
    with opened(any_files) as engine:
        assert asyncio.run(collect(engine, Request(prompt(5, 150), 30)))[0] == ids


def test_a_seed_gives_the_same_text_whatever_else_runs(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.95, seed=-7)
    wanted = Request(prompt(1, 70), 60, sampling)
    others = [Request(prompt(i, 30 * i), 40, SamplingParams(temperature=1.3)) for i in range(2, 6)]

    async def main() -> None:
        alone, _ = await collect(engine, wanted)
        crowd = await asyncio.gather(*(collect(engine, r) for r in (*others[:2], wanted, *others[2:])))
        assert crowd[2][0] == alone
        assert (await collect(engine, replace(wanted, sampling=replace(sampling, seed=8))))[0] != alone

    asyncio.run(main())


def test_more_requests_than_rows_are_all_served(engine: Engine) -> None:
    async def main() -> None:
        ends = await asyncio.gather(*(collect(engine, Request(prompt(i, 10 + i), 12)) for i in range(20)))
        assert all(len(ids) == 12 for ids, _ in ends)

    asyncio.run(main())


def test_streams_of_two_event_loops_do_not_disturb_each_other(engine: Engine) -> None:
    results: dict[int, list[int]] = {}

    def run(seed: int) -> None:
        results[seed] = asyncio.run(collect(engine, Request(prompt(seed, 50), 200)))[0]

    run(1)
    alone = results.pop(1)
    threads = [threading.Thread(target=run, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[1] == alone
    assert len(results[2]) == 200


def test_a_stop_id_ends_the_stream_and_is_not_emitted(engine: Engine) -> None:
    async def main() -> None:
        ids, _ = await collect(engine, Request(prompt(3, 20), 50))
        stop = ids[10]
        first = ids.index(stop)
        stopped, end = await collect(engine, Request(prompt(3, 20), 50, stop_ids=frozenset({stop})))
        assert (stopped, end.reason) == (ids[:first], "stop")
        assert end.usage.completion_tokens == first

    asyncio.run(main())


def test_one_token_can_be_asked_for_and_one_token_prompts_work(engine: Engine) -> None:
    ids, end = asyncio.run(collect(engine, Request((30,), 1)))
    assert len(ids) == 1
    assert end.reason == "length"
    assert (end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.completion_tokens) == (1, 0, 1)


def test_logprobs_come_with_every_token_and_contain_it(engine: Engine) -> None:
    async def main() -> None:
        async with aclosing(engine.stream(Request(prompt(2, 10), 5, SamplingParams(n_logprobs=3)))) as events:
            async for event in events:
                if isinstance(event, TokensDecoded):
                    assert len(event.logprobs) == len(event.ids)
                    for token, values in zip(event.ids, event.logprobs, strict=True):
                        assert max(values, key=lambda t: values[t]) == token
                        assert all(value <= 0 for value in values.values())

    asyncio.run(main())


def test_the_same_prompt_twice_is_cached_and_gives_the_same_answer(any_files: ModelFiles) -> None:
    async def main(engine: Engine) -> None:
        first, _ = await collect(engine, Request(prompt(9, 256), 70))
        second, end = await collect(engine, Request(prompt(9, 256), 70))
        assert second == first
        assert end.usage.cached_tokens == 255  # all but the token that the first step feeds
        longer = prompt(9, 256) + tuple(first)
        _, end = await collect(engine, Request((*longer, 21), 1))  # the answer's pages are reused too
        assert end.usage.cached_tokens == 320

    with opened(any_files) as engine:
        asyncio.run(main(engine))


# ------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((), 5), "prompt is empty"),
        (Request((1, 320), 5), "token 320 is outside the vocabulary of 320"),
        (Request((1, -1), 5), "token -1"),
        (Request((1,), 0), "max_tokens must be at least 1"),
        (Request((1,), 5, SamplingParams(logit_bias={999: 1.0})), "logit_bias: token 999"),
        (Request((1,), 5, SamplingParams(temperature=float("nan"))), "temperature"),
        (Request((1,), 5, SamplingParams(top_p=1.5)), "top_p must be between 0 and 1"),
        (Request((1,), 5, SamplingParams(n_logprobs=21)), "n_logprobs"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(engine: Engine, request_: Request, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        asyncio.run(collect(engine, request_))


def test_a_prompt_longer_than_the_context_names_both_numbers(files: ModelFiles) -> None:
    with opened(files, replace(OPTIONS, context_tokens=100)) as engine:
        with pytest.raises(ContextOverflow, match=r"100 tokens.*holds 100") as caught:
            asyncio.run(collect(engine, Request(prompt(1, 100), 5)))
        assert (caught.value.prompt_tokens, caught.value.context_tokens) == (100, 100)
        ids, end = asyncio.run(collect(engine, Request(prompt(1, 90), 50)))
        assert (len(ids), end.reason) == (10, "length")


def test_a_full_queue_is_a_capacity_error(files: ModelFiles) -> None:
    async def main(engine: Engine) -> None:
        async with aclosing(engine.stream(Request(prompt(1, 5), 3000))) as running:
            await next_of(running, TokensDecoded)
            waiting = [engine.stream(Request(prompt(1, 5), 5)) for _ in range(2)]
            tasks = [asyncio.ensure_future(anext(stream)) for stream in waiting]
            await until(lambda: engine.stats().n_waiting == 2)
            with pytest.raises(CapacityError, match="2 requests are waiting"):
                await collect(engine, Request(prompt(1, 5), 5))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    limits = ControlLimits(max_rows=1, max_waiting=2, chunk_tokens=64)
    with opened(files, replace(OPTIONS, limits=limits)) as engine:
        asyncio.run(main(engine))


def test_the_more_urgent_request_is_served_first(files: ModelFiles) -> None:
    order: list[str] = []

    async def note(engine: Engine, name: str, priority: int) -> None:
        await collect(engine, Request(prompt(4, 100), 3, priority=priority))
        order.append(name)

    async def main(engine: Engine) -> None:
        async with aclosing(engine.stream(Request(prompt(1, 5), 3000))) as running:
            await next_of(running, TokensDecoded)
            tasks = [asyncio.ensure_future(note(engine, name, p)) for name, p in (("low", 0), ("high", 1))]
            while engine.stats().n_waiting < 2:  # noqa: ASYNC110 - both are seen before the control thread takes one
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    limits = ControlLimits(max_rows=1, chunk_tokens=64)
    with opened(files, replace(OPTIONS, limits=limits)) as engine:
        asyncio.run(main(engine))
    assert order == ["high", "low"]


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_progress_moves_within_a_chunk_and_no_further_than_its_end(files: ModelFiles, kind: str) -> None:
    async def main(engine: Engine) -> list[PrefillProgress]:
        async with aclosing(engine.stream(Request(prompt(1, 101), 3))) as events:
            return [event async for event in events if isinstance(event, PrefillProgress)]

    def only(parts: EngineParts) -> EngineParts:
        return replace(parts, prefill=getattr(parts.prefill, kind))

    told: list[list[int]] = []
    for every_s in (0.0, math.inf):
        limits = ControlLimits(chunk_tokens=64, progress_s=every_s)
        with opened(files, replace(OPTIONS, limits=limits), change=only) as engine:
            told.append([progress.done_tokens for progress in asyncio.run(main(engine))])
    each, by_chunks = told
    assert by_chunks == [0, 64, 100]
    assert each == sorted(set(each)) and set(by_chunks) < set(each)
    if kind == "native":
        assert each == [*range(0, 64, 8), *range(64, 100, 8), 100]


def test_chunks_are_long_while_nobody_decodes_and_short_beside_a_decoding_request(files: ModelFiles) -> None:
    async def steps(engine: Engine, seed: int) -> list[int]:
        async with aclosing(engine.stream(Request(prompt(seed, 300), 3))) as events:
            return [event.done_tokens async for event in events if isinstance(event, PrefillProgress)]

    async def main(engine: Engine) -> tuple[list[int], list[int]]:
        alone = await steps(engine, 1)
        async with aclosing(engine.stream(Request(prompt(2, 5), 3000))) as running:
            await next_of(running, TokensDecoded)
            return alone, await steps(engine, 3)

    limits = ControlLimits(chunk_tokens=64, idle_chunk_tokens=256, progress_s=math.inf)
    with opened(files, replace(OPTIONS, limits=limits)) as engine:
        alone, beside = asyncio.run(main(engine))
    assert alone == [0, 256, 299]
    assert beside == [0, 64, 128, 192, 256, 299]

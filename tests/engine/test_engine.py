"""Requests through the whole engine: tiny random checkpoints, the real CPU backend, the real decode thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine.assembly import assemble, cpu_backend, cpu_schedules
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.errors import BackendError, CapacityError, ContextOverflow, RequestError
from pointcode_local.engine.model_files import ModelFiles, open_model
from pointcode_local.engine.parts import EngineOptions, EngineParts
from pointcode_local.engine.types import (
    PrefillProgress,
    Request,
    SamplingParams,
    StreamFinished,
    TokenEvent,
    TokensDecoded,
)

from .tiny_models import make_tiny

OPTIONS = EngineOptions(n_threads=1, kv_bytes=12 << 20, limits=ControlLimits(chunk_tokens=64))


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(seed).integers(20, 300, n))


@pytest.fixture(scope="module", params=["qwen2", "llama", "cohere2_moe"])
def any_files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny(request.param, tmp_path_factory.mktemp("tiny") / request.param))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny("llama", tmp_path_factory.mktemp("tiny") / "llama"))


@pytest.fixture
def engine(files: ModelFiles) -> Iterator[Engine]:
    with opened(files) as made:
        yield made


class opened:  # noqa: N801
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
    """Other threads bring the condition about; the test's time-out bounds the wait."""
    while not condition():  # noqa: ASYNC110 - threads set it, not tasks
        await asyncio.sleep(0)


async def next_of(events: AsyncGenerator[TokenEvent, None], kind: type[TokenEvent]) -> TokenEvent:
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError("the stream ended")


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


def test_four_requests_at_once_give_what_each_gives_alone(any_files: ModelFiles) -> None:
    requests = [Request(prompt(i, 40 + 61 * i), 80) for i in range(4)]

    async def main(engine: Engine) -> None:
        alone = [await collect(engine, request) for request in requests]
        together = await asyncio.gather(*(collect(engine, request) for request in requests))
        assert [ids for ids, _ in together] == [ids for ids, _ in alone]
        assert all(len(ids) == 80 and end.reason == "length" for ids, end in together)

    with opened(any_files) as engine:
        asyncio.run(main(engine))


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
        assert end.usage.cached_tokens == 192
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
            await until(lambda: engine.stats().n_waiting == 2)
        await asyncio.gather(*tasks)

    limits = ControlLimits(max_rows=1, chunk_tokens=64)
    with opened(files, replace(OPTIONS, limits=limits)) as engine:
        asyncio.run(main(engine))
    assert order == ["high", "low"]


# ------------------------------------------------------------------------------------------------ cancelling
def test_closing_the_iterator_while_decoding_stops_the_row_and_returns_its_pages(engine: Engine) -> None:
    async def main() -> None:
        async with aclosing(engine.stream(Request(prompt(1, 70), 3000))) as events:
            await next_of(events, TokensDecoded)
        await until(lambda: engine.stats().n_rows == 0)
        assert engine.stats().pages[0].used == 0
        steps = engine.stats().steps
        await collect(engine, Request(prompt(2, 5), 3))
        assert engine.stats().steps == steps + 3

    asyncio.run(main())


def test_closing_the_iterator_during_prefill_stops_at_a_layer_border(files: ModelFiles) -> None:
    async def main(engine: Engine) -> None:
        async with aclosing(engine.stream(Request(prompt(1, 3000), 5))) as events:
            await next_of(events, PrefillProgress)
        await until(lambda: engine.stats().n_waiting == 0)
        assert engine.stats().prefill_tokens < 2999
        assert engine.stats().pages[0].used == 0
        ids, _ = await collect(engine, Request(prompt(1, 70), 20))
        assert ids == (await collect(engine, Request(prompt(1, 70), 20)))[0]

    with opened(files) as engine:
        asyncio.run(main(engine))


def test_a_cancelled_task_cancels_its_request(engine: Engine) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(collect(engine, Request(prompt(1, 70), 3000)))
        await until(lambda: engine.stats().n_rows == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.stats().n_rows == 0)

    asyncio.run(main())


def test_other_streams_go_on_between_the_chunks_of_a_long_prompt(files: ModelFiles) -> None:
    async def main(engine: Engine) -> None:
        async with (
            aclosing(engine.stream(Request(prompt(1, 5), 3000))) as running,
            aclosing(engine.stream(Request(prompt(2, 1500), 5))) as admitted,
        ):
            await next_of(running, TokensDecoded)
            progress = [await next_of(admitted, PrefillProgress) for _ in range(3)]
            assert [p.done_tokens for p in progress if isinstance(p, PrefillProgress)] == [0, 64, 128]
            await next_of(running, TokensDecoded)  # before the prompt is complete
            assert engine.stats().prefill_tokens < 1500

    with opened(files) as engine:
        asyncio.run(main(engine))


# ------------------------------------------------------------------------------------------------ faults
def test_a_failing_backend_ends_its_requests_and_is_rebuilt(files: ModelFiles) -> None:
    parts = assemble(files, "tiny", OPTIONS)
    good = parts.make_backend
    broken = iter([lambda: broken_backend(files, parts)])

    async def main(engine: Engine) -> None:
        ids, end = await collect(engine, Request(prompt(1, 70), 20))
        assert end.reason == "error"
        assert "counter" in (end.error or "") and not ids
        again, end = await collect(engine, Request(prompt(1, 70), 20))
        assert (len(again), end.reason, engine.stats().n_restarts) == (20, "length", 1)

    engine = Engine(replace(parts, make_backend=lambda: next(broken, good)()))
    asyncio.run(main(engine))
    engine.close()
    engine.check()


def broken_backend(files: ModelFiles, parts: EngineParts) -> _native.CpuBackend:
    """A real backend whose last task waits for a signal that never comes; one token makes it time out."""
    schedules = cpu_schedules(files.config, 1, 1)
    schedules[0].tasks["wait_target"][-1, 0] += 1
    return cpu_backend(files.weights, parts.kv, schedules, wait_limit_ms=20)


def test_a_backend_that_cannot_be_rebuilt_ends_the_engine_with_its_error(files: ModelFiles) -> None:
    parts = assemble(files, "tiny", OPTIONS)
    broken = iter([lambda: broken_backend(files, parts)])

    def fail():
        raise RuntimeError("no device")

    async def main(engine: Engine) -> None:
        _, end = await collect(engine, Request(prompt(1, 70), 20))
        assert end.reason == "error"
        await until(lambda: engine.stats().error is not None)
        with pytest.raises(BackendError, match="no device"):
            await collect(engine, Request(prompt(1, 70), 20))

    engine = Engine(replace(parts, make_backend=lambda: next(broken, fail)()))
    asyncio.run(main(engine))
    engine.close()


def test_logits_that_are_not_numbers_end_only_their_request(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_tiny("llama", tmp_path / "nan")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][77] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    healthy = tuple(t for t in prompt(1, 80) if t != 77)

    async def main(engine: Engine) -> None:
        alone, _ = await collect(engine, Request(healthy, 30))
        bad, good = await asyncio.gather(
            collect(engine, Request((30, 77, 31), 30)), collect(engine, Request(healthy, 30))
        )
        assert (bad[0], bad[1].reason) == ([], "error")
        assert "not numbers" in (bad[1].error or "")
        assert good[0] == alone

    with opened(open_model(folder)) as engine:
        asyncio.run(main(engine))


def test_running_out_of_pages_ends_a_request_with_a_clear_error(files: ModelFiles) -> None:
    async def main(engine: Engine) -> None:
        results = await asyncio.gather(
            *(collect(engine, Request(prompt(i, 120), 700)) for i in range(3)), return_exceptions=True
        )
        errors = [r for r in results if isinstance(r, CapacityError)]
        ends = [r[1] for r in results if not isinstance(r, BaseException)]
        assert any(end.reason == "length" for end in ends)
        assert errors or any("pages are in use" in (end.error or "") for end in ends)
        ids, _ = await collect(engine, Request(prompt(7, 120), 100))
        assert len(ids) == 100

    page_bytes = 3 * 2 * 64 * 32 * 2 * 4
    with opened(files, replace(OPTIONS, kv_bytes=16 * page_bytes)) as engine:
        asyncio.run(main(engine))


def test_a_closed_engine_refuses_and_ends_what_runs(files: ModelFiles) -> None:
    engine = Engine(assemble(files, "tiny", OPTIONS))

    async def main() -> None:
        running = engine.stream(Request(prompt(1, 20), 3000))
        await next_of(running, TokensDecoded)
        await asyncio.to_thread(engine.close)
        end = [event async for event in running][-1]
        assert isinstance(end, StreamFinished)
        assert (end.reason, end.error) == ("error", "the engine is closed")
        with pytest.raises(BackendError, match="closed"):
            await collect(engine, Request(prompt(1, 20), 3))

    asyncio.run(main())
    engine.check()


# ------------------------------------------------------------------------------------------------ life time
def test_two_hundred_requests_leave_nothing_behind(files: ModelFiles) -> None:
    def resources() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    async def some(engine: Engine, n: int) -> None:
        for begin in range(0, n, 10):
            await asyncio.gather(
                *(collect(engine, Request(prompt(i, 5 + i % 90), 3)) for i in range(begin, begin + 10))
            )

    before = resources()
    engine = Engine(assemble(files, "tiny", OPTIONS))
    asyncio.run(some(engine, 20))
    gc.collect()
    warm, n_objects = resources(), len(gc.get_objects())
    asyncio.run(some(engine, 200))
    gc.collect()
    assert resources() == warm
    assert len(gc.get_objects()) < n_objects + 2000  # the prefix cache's own entries
    engine.close()
    engine.check()
    del engine
    gc.collect()
    assert resources() == before


def test_a_prefix_comes_from_disk_after_a_restart(any_files: ModelFiles, tmp_path: Path) -> None:
    options = replace(OPTIONS, cache_dir=tmp_path)
    request = Request(prompt(6, 300), 40)
    with opened(any_files, options) as engine:
        first, end = asyncio.run(collect(engine, request))
        assert end.usage.cached_tokens == 0
    with opened(any_files, options) as engine:
        second, end = asyncio.run(collect(engine, request))
        assert end.usage.cached_tokens == 256
        assert engine.stats().prefill_tokens == 299 - 256
    assert second == first

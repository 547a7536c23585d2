"""Cancelling, faults and the engine's life time, on tiny random checkpoints with the real CPU backend."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pointcode_local.engine.assembly import assemble
from pointcode_local.engine.constrain import GrammarFactory
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.errors import BackendError
from pointcode_local.engine.model_files import ModelFiles, open_model
from pointcode_local.engine.parts import EngineParts
from pointcode_local.engine.types import (
    PrefillProgress,
    Request,
    StreamFinished,
    TokensDecoded,
)

from .engines import OPTIONS, collect, next_of, opened, prompt, until
from .hooked import broken_backend
from .tiny_models import make_tiny


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


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ImportError("no torch"), MemoryError()])
def test_what_cannot_be_loaded_for_a_prompt_fails_that_prompt_alone(files: ModelFiles, error: Exception) -> None:
    def change(parts: EngineParts) -> EngineParts:
        errors = iter([error])

        def prefill(*arguments: Any) -> None:
            if (fault := next(errors, None)) is not None:
                raise fault
            parts.prefill(*arguments)

        return replace(parts, prefill=prefill)

    async def main(engine: Engine) -> None:
        with pytest.raises(BackendError, match="computing the prompt failed"):
            await collect(engine, Request(prompt(1, 70), 3))
        assert len((await collect(engine, Request(prompt(1, 70), 3)))[0]) == 3

    with opened(files, change=change) as engine:
        asyncio.run(main(engine))


def test_what_cannot_be_prepared_in_an_idle_moment_ends_nothing(files: ModelFiles) -> None:
    asked = threading.Event()

    class Grammars(GrammarFactory):
        def prepare(self) -> None:
            asked.set()
            raise OSError(24, "Too many open files")

    def change(parts: EngineParts) -> EngineParts:
        return replace(parts, grammars=Grammars([b"a"], (), (), lambda text: []))

    async def main(engine: Engine) -> None:
        await until(asked.is_set)
        assert len((await collect(engine, Request(prompt(1, 5), 3)))[0]) == 3

    with opened(files, change=change) as engine:
        asyncio.run(main(engine))


def test_a_cache_that_finds_no_memory_is_a_refusal_for_people(files: ModelFiles) -> None:
    with pytest.raises(BackendError, match="not enough memory for this model: Unable to allocate"):
        assemble(files, "tiny", replace(OPTIONS, kv_bytes=1 << 60))


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


def test_closing_does_not_wait_for_a_long_prompt(files: ModelFiles) -> None:
    engine = Engine(assemble(files, "tiny", replace(OPTIONS, limits=ControlLimits(chunk_tokens=4000))))

    async def main() -> None:
        waiting = engine.stream(Request(prompt(1, 3900), 5))
        await anext(waiting)
        await asyncio.to_thread(engine.close)
        with pytest.raises(BackendError, match="closed"):
            await anext(waiting)

    asyncio.run(main())
    assert engine.stats().prefill_tokens == 0
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

    gc.collect()  # what earlier tests left
    gc.freeze()  # the rest is looked through no more
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


def test_an_answer_that_ends_just_before_the_engine_closes_is_saved(
    any_files: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(OPTIONS, cache_dir=tmp_path)
    request = Request(prompt(6, 300), 40)
    with opened(any_files, options) as engine:
        control = engine._control
        turn = control._turn
        # The control thread does not come to look at rows that have ended.
        monkeypatch.setattr(control, "_turn", lambda notices: None if control.n_rows else turn(notices))
        first, _ = asyncio.run(collect(engine, request))
    with opened(any_files, options) as engine:
        second, end = asyncio.run(collect(engine, request))
        assert end.usage.cached_tokens == 299
    assert second == first


def test_a_prefix_comes_from_disk_after_a_restart(any_files: ModelFiles, tmp_path: Path) -> None:
    options = replace(OPTIONS, cache_dir=tmp_path)
    request = Request(prompt(6, 300), 40)
    with opened(any_files, options) as engine:
        first, end = asyncio.run(collect(engine, request))
        assert end.usage.cached_tokens == 0
    with opened(any_files, options) as engine:
        second, end = asyncio.run(collect(engine, request))
        assert end.usage.cached_tokens == 299
        assert engine.stats().prefill_tokens == 0
    assert second == first

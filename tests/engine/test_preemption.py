"""Rows that leave the batch for others and come back: no token is lost, none is told twice."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.errors import CapacityError
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.types import (
    Grammar,
    PrefillProgress,
    Request,
    SamplingParams,
    StreamFinished,
    TokenEvent,
    TokensDecoded,
)

from .conftest import TinyModel
from .engines import OPTIONS, collect, next_of, opened, prompt, until
from .hooked import Holds, hooked

ONE_ROW = replace(OPTIONS, limits=ControlLimits(max_rows=1, chunk_tokens=64))
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {f"key{i}": {"enum": [True, False]} for i in range(9)},
        "additionalProperties": False,
    }
    | {"required": [f"key{i}" for i in range(9)]}
)


@pytest.fixture(scope="module", params=["llama", "cohere2_moe"])
def any_files(request: pytest.FixtureRequest, tiny_model: TinyModel) -> ModelFiles:
    return tiny_model(request.param)


async def rest_of(events: AsyncGenerator[TokenEvent, None]) -> tuple[list[int], StreamFinished]:
    ids: list[int] = []
    async for event in events:
        match event:
            case StreamFinished():
                return ids, event
            case TokensDecoded(ids=new):
                ids += new
            case PrefillProgress():
                assert not ids, "what is computed again is no news"
    raise AssertionError("the stream ended without StreamFinished")


async def interrupted(engine: Engine, request: Request, holds: Holds, times: int) -> tuple[list[int], StreamFinished]:
    """The request's tokens, although a more urgent one takes its place in the batch at every hold."""
    holds.watch(engine)
    async with aclosing(engine.stream(request)) as events:
        rest = asyncio.ensure_future(rest_of(events))
        for i in range(times):
            await until(holds.reached.is_set)
            holds.reached.clear()
            await collect(engine, Request(prompt(50 + i, 10), 3, priority=1))
        ids, end = await rest
        assert engine.stats().n_preempted == times
        return ids, end


def check_interrupted(files: ModelFiles, request: Request, *holds_at: int) -> tuple[list[int], StreamFinished]:
    """The request gives the same tokens when its row leaves the batch at these positions."""
    with opened(files, ONE_ROW, hooked(files, lambda positions, logits: None)) as engine:
        alone, end = asyncio.run(collect(engine, request))
    holds = Holds(holds_at)
    with opened(files, ONE_ROW, hooked(files, holds)) as engine:
        ids, again = asyncio.run(interrupted(engine, request, holds, len(holds_at)))
    assert ids == alone
    assert again.reason == end.reason
    assert again.usage.prompt_tokens == len(request.token_ids)
    assert again.usage.completion_tokens == len(ids)
    return ids, again


def test_when_pages_run_out_the_younger_waits_and_both_end_as_alone(any_files: ModelFiles) -> None:
    """Both are admitted with six pages and need seven; there are twelve."""
    requests, n_pages = [Request(prompt(i, 120), 300) for i in range(2)], 12
    both = threading.Event()

    def hold(positions: np.ndarray, logits: np.ndarray) -> None:
        if 125 in positions:
            both.wait()

    async def main(engine: Engine) -> None:
        assert engine.stats().pages[0].total == n_pages
        tasks = [asyncio.ensure_future(collect(engine, request)) for request in requests]
        await until(lambda: engine.stats().n_waiting == 0 or engine._control._ready != [])
        both.set()
        together = [await task for task in tasks]
        assert [end.reason for _, end in together] == ["length"] * 2
        assert [end.usage.completion_tokens for _, end in together] == [300] * 2
        assert engine.stats().n_preempted > 0
        assert [ids for ids, _ in together] == alone

    with opened(any_files) as engine:
        alone = [asyncio.run(collect(engine, request))[0] for request in requests]
        geometry = engine._parts.kv.geometry
    n_bytes = n_pages * (geometry.page_bytes(0) + geometry.page_bytes(1))
    with opened(any_files, replace(OPTIONS, kv_bytes=n_bytes), hooked(any_files, hold)) as engine:
        asyncio.run(main(engine))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=5),
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2),
        SamplingParams(n_logprobs=2),
    ],
)
def test_a_more_urgent_request_takes_a_place_in_a_full_batch(any_files: ModelFiles, sampling: SamplingParams) -> None:
    ids, _ = check_interrupted(any_files, Request(prompt(1, 70), 120, sampling), 80, 150)
    assert len(ids) == 120


def test_a_grammar_goes_on_where_the_row_left_it(files: ModelFiles) -> None:
    sampling = SamplingParams(temperature=1.0, seed=3)
    request = Request(prompt(1, 20), 400, sampling, files.stop_ids, Grammar("json_schema", SCHEMA))
    ids, end = check_interrupted(files, request, 20, 41, 77)
    assert end.reason == "stop"
    assert len(json.loads(files.tokenizer.decode(ids))) == 9


def test_a_grammar_that_waits_for_its_trigger_still_finds_it(files: ModelFiles) -> None:
    """The trigger may have been written before the row left the batch, or a piece of it."""
    tokenizer = files.tokenizer
    bias = dict.fromkeys(tokenizer.encode("{") + tokenizer.encode("!"), 6.0)
    grammar = Grammar("lark", 'start: /[ab]{3,5}/ "}"', trigger="!{")
    request = Request(prompt(1, 20), 200, SamplingParams(temperature=1.0, seed=9, logit_bias=bias), grammar=grammar)
    ids, _ = check_interrupted(files, request, *range(30, 42))
    assert len(re.findall(r"!\{[ab]{3,5}\}", tokenizer.decode(ids))) > 3


def test_cancelling_a_request_that_left_the_batch_frees_it(files: ModelFiles) -> None:
    holds = Holds([80])

    async def main(engine: Engine) -> None:
        holds.watch(engine)
        low = engine.stream(Request(prompt(1, 70), 3000))
        await next_of(low, TokensDecoded)
        await until(holds.reached.is_set)
        async with aclosing(engine.stream(Request(prompt(2, 10), 3000, priority=1))) as urgent:
            await next_of(urgent, TokensDecoded)
            assert engine.stats().n_preempted == 1
            await low.aclose()
        await until(lambda: engine.stats().n_waiting == engine.stats().n_rows == 0)
        assert engine.stats().pages[0].used == 0

    with opened(files, ONE_ROW, hooked(files, holds)) as engine:
        asyncio.run(main(engine))


def test_when_a_request_that_waits_for_pages_is_cancelled_the_next_one_does_not_wait_for_them(
    files: ModelFiles,
) -> None:
    holds, n_pages = Holds([80]), 8

    async def main(engine: Engine) -> None:
        holds.watch(engine)
        assert engine.stats().pages[0].total == n_pages
        running = asyncio.ensure_future(collect(engine, Request(prompt(1, 70), 250)))  # five pages, once for all
        await until(holds.reached.is_set)  # it goes on when the control thread wants the batch
        large = asyncio.ensure_future(collect(engine, Request(prompt(2, 300), 50)))
        await until(lambda: engine._control._starved)
        small = asyncio.ensure_future(collect(engine, Request(prompt(3, 10), 3)))
        await until(lambda: engine.stats().n_waiting == 2)
        large.cancel()
        assert (await small)[1].reason == "length"
        await running

    with opened(files) as engine:
        geometry = engine._parts.kv.geometry
    n_bytes = n_pages * (geometry.page_bytes(0) + geometry.page_bytes(1))
    with opened(files, replace(OPTIONS, kv_bytes=n_bytes), hooked(files, holds)) as engine:
        asyncio.run(main(engine))


def test_a_row_that_leaves_the_batch_after_its_request_has_ended_keeps_no_grammar(files: ModelFiles) -> None:
    """Whoever reads may close the stream while the control thread takes the row out of the batch."""
    with opened(files) as engine:
        grammars = engine._parts.grammars
        assert grammars is not None
        state = grammars.compile(Grammar("json_schema", SCHEMA), files.stop_ids)
        with engine._rows_of(next(engine._numbers), state) as (move, _):
            move(files.tokenizer.encode("{"))
            assert len(engine._masks._states) == 2
        move(files.tokenizer.encode("{"))
        assert not engine._masks._states


def test_a_flood_of_requests_does_not_shut_out_the_more_urgent(files: ModelFiles) -> None:
    limits = ControlLimits(max_rows=1, max_waiting=2, chunk_tokens=64)
    holds = Holds([10])

    async def main(engine: Engine) -> None:
        holds.watch(engine)
        async with aclosing(engine.stream(Request(prompt(1, 5), 3000))) as running:
            await next_of(running, TokensDecoded)
            await until(holds.reached.is_set)
            flood = [asyncio.ensure_future(collect(engine, Request(prompt(i, 5), 3))) for i in range(2)]
            await until(lambda: engine.stats().n_waiting == 2)
            with pytest.raises(CapacityError, match="2 requests are waiting"):
                await collect(engine, Request(prompt(9, 5), 3))
            ids, _ = await collect(engine, Request(prompt(9, 5), 3, priority=1))
            assert len(ids) == 3
        await asyncio.gather(*flood)

    with opened(files, replace(OPTIONS, limits=limits), hooked(files, holds)) as engine:
        asyncio.run(main(engine))

"""Grammars: masks by hand, and the whole engine under constraint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pointcode_local.engine.assembly import assemble
from pointcode_local.engine.constrain import GrammarFactory, GrammarState
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.errors import RequestError
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.parts import EngineOptions
from pointcode_local.engine.types import Grammar, Request, SamplingParams, StreamFinished, TokensDecoded

from .conftest import TinyModel

TOKENS = [bytes([i]) for i in range(256)] + [b"<tool>", b"</tool>", b"<eos>", b'>{"', b"", b"true"]
EOS = 258
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def factory() -> GrammarFactory:
    return GrammarFactory(TOKENS, [EOS], [EOS], lambda text: list(text.encode()))


def allowed(mask: np.ndarray | None) -> set[bytes]:
    assert mask is not None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(TOKENS)]
    return {TOKENS[i] for i in np.nonzero(bits)[0]}


class Writer:
    """A state, and the output as far as it was written."""

    def __init__(self, state: GrammarState) -> None:
        self.state = state
        self.output: list[int] = []

    def write(self, *ids: int, draft: Sequence[int] = ()) -> list[np.ndarray]:
        """The masks after several tokens at once; Python learns of them together."""
        self.output += ids
        return self.state.advance(len(self.output), self.output[-32:], draft)

    def mask(self, *ids: int) -> np.ndarray | None:
        masks = self.write(*ids)
        return masks[0] if masks else None


def test_a_schema_holds_from_the_first_token_and_then_only_stop_ids_are_left(factory: GrammarFactory) -> None:
    writer = Writer(factory.compile(Grammar("json_schema", SCHEMA), [EOS]))
    mask, watch = writer.state.start()
    assert watch is None
    assert allowed(mask) == {b"{"}
    for char in b'{"a": 12}':
        mask = writer.mask(char)
    assert allowed(mask) == {b"<eos>"}


def test_a_grammar_is_compiled_once_and_each_request_begins_at_its_beginning(factory: GrammarFactory) -> None:
    grammar = Grammar("json_schema", SCHEMA.replace('"a"', '"once"'))
    first = Writer(factory.compile(grammar, [EOS]))
    (begun,) = [one for source, one in factory._matchers.items() if "once" in source]
    assert allowed(first.mask(*b'{"')) == {b"o"}
    assert allowed(factory.compile(grammar, [EOS]).start()[0]) == {b"{"}
    assert allowed(first.mask(*b"once")) == {b'"'}
    assert [one for source, one in factory._matchers.items() if "once" in source] == [begun]
    for n in range(20):
        factory.compile(Grammar("lark", f'start: "{n}"'), [EOS])
    assert len(factory._matchers) <= 8


def test_masks_along_a_draft_are_those_that_follow_when_it_is_right(factory: GrammarFactory) -> None:
    text = b'{"a": 12, "b": true}'
    for n_draft in range(8):
        ahead, step = (Writer(factory.compile(Grammar("json_schema", SCHEMA), [EOS])) for _ in range(2))
        for begin in range(0, len(text) - n_draft, n_draft + 1):
            piece = text[begin : begin + n_draft + 1]
            masks = ahead.write(*text[max(0, begin - n_draft) : begin + 1], draft=piece[1:])
            expected = [step.mask(char) for char in piece]
            assert [allowed(mask) for mask in masks] == [allowed(mask) for mask in expected[: len(masks)]]
            assert len(masks) == len(expected) or piece.endswith(b"}")


def test_a_draft_counts_as_far_as_it_fits(factory: GrammarFactory) -> None:
    writer = Writer(factory.compile(Grammar("json_schema", SCHEMA), [EOS]))
    assert len(writer.write(ord("{"), draft=[*b'"ax'])) == 3
    assert len(writer.write(*b'"a', draft=[*b'": 1', EOS, EOS])) == 5
    assert len(writer.write(*b'": 1', draft=[ord("}"), EOS])) == 1  # nothing but the end may follow
    assert allowed(writer.mask(ord("}"))) == {b"<eos>"}


def test_nothing_is_held_before_the_trigger_and_after_the_block(factory: GrammarFactory) -> None:
    writer = Writer(factory.compile(Grammar("json_schema", SCHEMA, trigger="<tool>"), [EOS]))
    mask, watch = writer.state.start()
    assert mask is None
    assert allowed(watch) == {b">", b"<tool>", b"</tool>", b"<eos>", b'>{"'}
    assert writer.mask(*b"a > b") is None
    assert b"{" in allowed(writer.mask(104, 256))
    for char in b'\n{"a": 1, "b": ':
        mask = writer.mask(char)
    assert b"true" in allowed(mask)
    assert writer.mask(261) is not None
    assert writer.mask(ord("}")) is None
    assert b"{" in allowed(writer.mask(*b"and", 256))  # a second call


def test_a_trigger_spelled_over_several_tokens_covers_what_follows_it_in_the_last(factory: GrammarFactory) -> None:
    writer = Writer(factory.compile(Grammar("json_schema", SCHEMA, trigger="<tool>"), [EOS]))
    writer.state.start()
    assert allowed(writer.mask(*b"x<tool", 259)) == {b"a"}


def test_white_space_under_a_schema_is_bounded(factory: GrammarFactory) -> None:
    writer = Writer(factory.compile(Grammar("json_schema", SCHEMA), [EOS]))
    writer.state.start()
    mask = writer.mask(ord("{"))
    n = 0
    while b" " in allowed(mask) or b"\n" in allowed(mask):
        mask = writer.mask(ord("\n") if b"\n" in allowed(mask) else ord(" "))
        n += 1
        assert n < 20


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("lark", "start: nonsense"), "unknown name"),
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", "[]"), "must be an object"),
    ],
)
def test_a_grammar_that_is_not_valid_is_refused(factory: GrammarFactory, grammar: Grammar, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        factory.compile(grammar, [EOS])


# ------------------------------------------------------------------------------------------------ whole engine
@pytest.fixture(scope="module")
def files(tiny_model: TinyModel) -> ModelFiles:
    return tiny_model("qwen2")


async def text_of(engine: Engine, files: ModelFiles, request: Request) -> tuple[str, StreamFinished]:
    ids: list[int] = []
    async with aclosing(engine.stream(request)) as events:
        async for event in events:
            if isinstance(event, TokensDecoded):
                ids += event.ids
            elif isinstance(event, StreamFinished):
                return files.tokenizer.decode(ids), event
    raise AssertionError("no end")


def test_a_random_model_writes_valid_json_while_free_rows_decode_as_alone(files: ModelFiles, tmp_path: Path) -> None:
    grammar = Grammar("json_schema", SCHEMA)
    sampling = SamplingParams(temperature=1.0, seed=3)
    held = Request((30, 31), 200, sampling, files.stop_ids, grammar)
    free = Request((40, 41, 42), 150)

    async def main(engine: Engine) -> None:
        alone = await text_of(engine, files, free)
        results = await asyncio.gather(
            text_of(engine, files, held), text_of(engine, files, free), text_of(engine, files, held)
        )
        assert results[1][0] == alone[0]
        for text, end in (results[0], results[2]):
            assert end.reason == "stop"
            assert isinstance(json.loads(text)["a"], int)

    engine = Engine(assemble(files, "tiny", EngineOptions(n_threads=1, kv_bytes=12 << 20)))
    asyncio.run(main(engine))
    engine.close()
    engine.check()


def test_a_call_is_held_to_its_schema_once_the_trigger_was_written(files: ModelFiles) -> None:
    opener, closer = files.tokenizer.markers["<tool_call>"], files.tokenizer.markers["</tool_call>"]
    schema = json.dumps(
        {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False}
    )
    source = f'start: value <[{closer}]>\nvalue: %json {{"x-guidance": {{"whitespace_flexible": false}}, {schema[1:]}'
    bias = {opener: 50.0}  # outside the grammar the model always opens a call
    request = Request(
        (30, 31), 40, SamplingParams(logit_bias=bias), files.stop_ids, Grammar("lark", source, "<tool_call>")
    )

    async def main(engine: Engine) -> None:
        text, end = await text_of(engine, files, request)
        calls = [part.removesuffix("</tool_call>") for part in text.split("<tool_call>")[1:]]
        assert len(calls) >= 2
        assert all(json.loads(call)["a"] in (1, 22) for call in calls[:-1])
        assert end.reason == "length"

    engine = Engine(assemble(files, "tiny", EngineOptions(n_threads=1, kv_bytes=12 << 20)))
    asyncio.run(main(engine))
    engine.close()


def test_cancelling_a_held_row_frees_it(files: ModelFiles) -> None:
    request = Request((30, 31), 3000, SamplingParams(temperature=1.0), grammar=Grammar("lark", "start: /[a-z]+/"))

    async def main(engine: Engine) -> None:
        async with aclosing(engine.stream(request)) as events:
            async for event in events:
                if isinstance(event, TokensDecoded):
                    break
        while engine.stats().n_rows:  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(0.002)

    engine = Engine(assemble(files, "tiny", EngineOptions(n_threads=1, kv_bytes=12 << 20)))
    asyncio.run(main(engine))
    engine.close()
    engine.check()


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}]
)
def test_a_schema_that_only_refers_to_itself_is_refused(factory: GrammarFactory, schema: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="cannot be used"):
        factory.compile(Grammar("json_schema", json.dumps(schema)), [EOS])
    with pytest.raises(RequestError, match="cannot be used"):
        factory.compile(Grammar("lark", f"start: value\nvalue: %json {json.dumps(schema)}", "<tool>"), [EOS])


def test_an_output_that_cannot_be_held_any_more_ends_instead_of_running_free(factory: GrammarFactory) -> None:
    writer = Writer(factory.compile(Grammar("json_schema", SCHEMA), [EOS]))
    assert allowed(writer.mask(*b"{")) != {b"<eos>"}
    assert allowed(writer.mask(*b"x")) == {b"<eos>"}  # as if the grammar had become too complex
    assert writer.state.problem
    assert allowed(writer.mask(*b"y")) == {b"<eos>"}


class Panic(BaseException):
    """As a library written in Rust raises it."""


class Faulty:
    """A matcher that fails with the third token."""

    def __init__(self, matcher: Any, error: BaseException) -> None:
        self._matcher = matcher
        self._error = error
        self._n_left = 2

    def consume_tokens(self, tokens: list[int]) -> bool:
        self._n_left -= len(tokens)
        if self._n_left < 0:
            raise self._error
        return self._matcher.consume_tokens(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


@pytest.mark.parametrize("error", [Panic("at the disco"), IndexError("list index out of range")])
def test_a_grammar_that_breaks_ends_its_output_and_no_other(files: ModelFiles, error: BaseException) -> None:
    request = Request((20, 21), 60, SamplingParams(), files.stop_ids, Grammar("json_schema", SCHEMA))

    async def main(engine: Engine) -> None:
        grammars = engine._parts.grammars
        assert grammars is not None
        begun = grammars._begun
        grammars._begun = lambda source: Copied(begun(source), error)  # type: ignore[method-assign, assignment]
        _, end = await text_of(engine, files, request)
        assert end.reason == "error" and str(error) in (end.error or "")
        grammars._begun = begun  # type: ignore[method-assign]
        text, end = await text_of(engine, files, request)
        assert end.reason in ("stop", "length") and text.startswith("{")

    engine = Engine(assemble(files, "tiny", EngineOptions(backend="cpu", n_threads=1, kv_bytes=12 << 20)))
    asyncio.run(main(engine))
    engine.close()


class Copied:
    """What is copied for each state."""

    def __init__(self, matcher: Any, error: BaseException) -> None:
        self._matcher = matcher
        self._error = error

    def deep_copy(self) -> Any:
        return Faulty(self._matcher.deep_copy(), self._error)


def test_a_grammar_that_breaks_while_it_is_replayed_ends_that_output(factory: GrammarFactory) -> None:
    """That happens on the thread that serves all requests, when a row comes back into the batch."""
    state = factory.compile(Grammar("json_schema", SCHEMA), [EOS])
    make = state._make_matcher
    state._make_matcher = lambda: Faulty(make(), Panic("again"))  # type: ignore[assignment, return-value]
    again = state.replayed(list(b'{"a":1'))
    assert again.problem == "Panic: again" and allowed(again.start()[0]) == {b"<eos>"}
    assert not state.problem


def test_a_schema_that_would_take_seconds_to_compile_is_refused(factory: GrammarFactory) -> None:
    large = {"type": "object", "properties": {f"v{i}": {"type": "string"} for i in range(5000)}}
    with pytest.raises(RequestError, match="too large"):
        factory.compile(Grammar("json_schema", json.dumps(large)), [EOS])
    assert "too large" in factory.problem_of(large)

"""Schemas of tools that no grammar can hold, as MCP servers send them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from pointcode_local.engine.constrain import GrammarFactory
from pointcode_local.engine.errors import RequestError
from pointcode_local.engine.tool_schemas import ToolSchemas, placed
from pointcode_local.engine.types import ToolSpec

from .test_constrain import EOS, TOKENS

GOOD = {"type": "string", "maxLength": 5}
BAD = [
    {"type": "string", "pattern": "^(?!x).*$"},
    {"type": "string", "pattern": "(("},
    {"type": "integer", "minimum": -(10**30), "maximum": 10**30},
    {"$ref": "http://example.com/schema"},
    {"$ref": "#/$defs/missing"},
    {"type": "wizard"},
]


@pytest.fixture(scope="module")
def factory() -> GrammarFactory:
    return GrammarFactory(TOKENS, [EOS], [EOS], lambda text: list(text.encode()))


def tool(schema: dict[str, Any], strict: bool = False) -> ToolSpec:
    return ToolSpec("t", "", schema, strict)


@pytest.mark.parametrize("bad", BAD)
def test_a_member_that_cannot_be_held_is_free_and_the_others_are_held(
    factory: GrammarFactory, bad: dict[str, Any]
) -> None:
    schemas = ToolSchemas(factory.problem_of)
    schema = {"type": "object", "properties": {"good": GOOD, "bad": bad}, "required": ["good", "bad"]}
    (held,) = schemas.held([tool(schema)])
    assert held.parameters == {**schema, "properties": {"good": GOOD, "bad": {}}}
    with pytest.raises(RequestError, match="strict tool 't'"):
        schemas.held([tool(schema, strict=True)])


@pytest.mark.parametrize("odd", [{"properties": []}, {"type": 7}, {"required": True}, {"properties": {"a": 5}}])
def test_a_schema_that_is_none_lets_any_arguments_pass(factory: GrammarFactory, odd: dict[str, Any]) -> None:
    (held,) = ToolSchemas(factory.problem_of).held([tool({"type": "object", **odd})])
    assert not factory.problem_of(placed(held.parameters, "t")[0])


def test_keywords_without_a_grammar_are_free_but_not_for_a_strict_tool(factory: GrammarFactory) -> None:
    schemas = ToolSchemas(factory.problem_of)
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert schemas.held([tool(unique)])[0].parameters == unique
    with pytest.raises(RequestError, match="uniqueItems"):
        schemas.held([tool(unique, strict=True)])


def test_a_schema_is_looked_at_once() -> None:
    seen: list[object] = []

    def problem_of(schema: object) -> str:
        seen.append(schema)
        return ""

    schemas = ToolSchemas(problem_of)
    tools = [tool({"type": "object"}), ToolSpec("u", "other", {"type": "object"})]
    assert not schemas.know(tools)
    assert schemas.held(tools) == tuple(tools)
    assert schemas.know(tools) and len(seen) == 1


def test_who_asks_for_known_schemas_does_not_wait_while_others_are_tried() -> None:
    """The event loop asks, and has streams to deliver."""
    trying, go_on, answered = threading.Event(), threading.Event(), threading.Event()

    def problem_of(schema: object) -> str:
        if "slow" in json.dumps(schema):
            trying.set()
            go_on.wait()
        return ""

    schemas = ToolSchemas(problem_of)
    known, slow = tool({"type": "object"}), tool({"type": "object", "properties": {"slow": GOOD}})
    schemas.held([known])
    asking = [threading.Thread(target=schemas.held, args=([one],), daemon=True) for one in (slow, slow)]
    for thread in asking:
        thread.start()
    assert trying.wait(60)
    threading.Thread(target=lambda: (schemas.held([known]), answered.set()), daemon=True).start()
    was_answered = answered.wait(10)
    go_on.set()
    for thread in asking:
        thread.join()
    assert was_answered and schemas.know([known, slow])


def test_many_schemas_take_few_trials_and_none_when_they_come_again(factory: GrammarFactory) -> None:
    n_trials = 0

    def problem_of(schema: Mapping[str, object]) -> str:
        nonlocal n_trials
        n_trials += 1
        return factory.problem_of(schema)

    schemas = ToolSchemas(problem_of)
    many = [tool({"type": "object", "properties": {f"a{n}": GOOD}}) for n in range(400)]
    assert [held.parameters for held in schemas.held(many)] == [one.parameters for one in many]
    assert n_trials <= 400 // 64 + 1
    assert schemas.know(many)
    schemas.held(many)
    assert n_trials <= 400 // 64 + 1


def test_one_schema_that_cannot_be_held_changes_none_of_the_many(factory: GrammarFactory) -> None:
    many = [tool({"type": "object", "properties": {"good": GOOD, f"a{n}": GOOD}}) for n in range(100)]
    many[70] = tool({"type": "object", "properties": {"good": GOOD, "bad": BAD[1]}})
    held = [one.parameters for one in ToolSchemas(factory.problem_of).held(many)]
    assert held[70] == {"type": "object", "properties": {"good": GOOD, "bad": {}}}
    assert [*held[:70], *held[71:]] == [one.parameters for one in [*many[:70], *many[71:]]]


def test_a_schema_with_references_of_its_own_is_looked_at_alone(factory: GrammarFactory) -> None:
    own = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": GOOD}}
    many = [tool({"type": "object", "properties": {f"a{n}": GOOD}}) for n in range(3)]
    assert [one.parameters for one in ToolSchemas(factory.problem_of).held([*many, tool(own)])][-1] == own

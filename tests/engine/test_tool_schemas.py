"""Schemas of tools that no grammar can hold, as MCP servers send them."""

from __future__ import annotations

from typing import Any

import pytest

from pointcode_local.engine.constrain import GrammarFactory
from pointcode_local.engine.errors import RequestError
from pointcode_local.engine.tool_schemas import ToolSchemas
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
    assert not factory.problem_of(held.parameters)


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

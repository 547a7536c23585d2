"""Prompt-lookup drafts: what is looked up, and that drafts never change a token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.engine._native import look_up_draft
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.model_files import ModelFiles
from pointcode_local.engine.types import Grammar, Request, SamplingParams

from .engines import OPTIONS, collect, opened, prompt

MIN_MATCH, MAX_MATCH = 3, 32
WITHOUT = replace(OPTIONS, limits=ControlLimits(chunk_tokens=64, drafts=False))


def naive_draft(history: Sequence[int], n: int) -> tuple[int, list[int]]:
    best, behind = 0, 0
    for end in range(len(history) - 1, 0, -1):  # the latest of equally long ones
        match = 0
        while match < min(end, MAX_MATCH) and history[end - 1 - match] == history[-1 - match]:
            match += 1
        if match >= MIN_MATCH and match > best:
            best, behind = match, end
    tokens = list(history)
    if best:
        for i in range(n):
            tokens.append(tokens[behind + i])
    return best, tokens[len(history) :]


@given(st.lists(st.integers(0, 2), max_size=90), st.integers(1, 7))
def test_a_draft_follows_the_longest_earlier_occurrence_of_the_end(history: list[int], n: int) -> None:
    assert look_up_draft(history, n) == naive_draft(history, n)


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 300), st.lists(st.integers(0, 2), max_size=30))
def test_an_occurrence_is_found_however_far_back(old: list[int], gap: int, new: list[int]) -> None:
    history = [*range(100, 500), *old, *range(3, 3 + gap), *new]
    assert look_up_draft(history, 7) == naive_draft(history, 7)


def test_without_an_earlier_occurrence_there_is_no_draft() -> None:
    assert look_up_draft([1, 2, 3, 4, 5, 1, 2], 7) == (0, [])
    assert look_up_draft([1, 2, 3, 4, 5, 1, 2, 3], 7) == (3, [4, 5, 1, 2, 3, 4, 5])
    assert look_up_draft([1, 2, 3, 4, 5, 1, 2, 3], 0) == (0, [])


def answers(files: ModelFiles, requests: Sequence[Request], *, drafts: bool) -> tuple[list[object], int]:
    """What each request gets when all run at once, and how many draft tokens were right."""

    async def main(engine: Engine) -> list[object]:
        results = await asyncio.gather(*(collect(engine, request) for request in requests))
        return [(ids, end.reason) for ids, end in results]

    with opened(files, OPTIONS if drafts else WITHOUT) as engine:
        found = asyncio.run(main(engine))
        stats = engine.stats()
        assert 0 <= stats.accepted <= stats.drafted
        return found, stats.accepted


def test_drafts_change_no_token(any_files: ModelFiles) -> None:
    """Tiny models fall into loops, which drafts follow; pages, windows, lengths and stop ids are crossed on the way."""
    loop = prompt(3, 5) * 30
    requests = [
        Request(loop, 200),
        Request(loop, 61, stop_ids=frozenset(range(20, 60))),
        Request(prompt(4, 70), 150, SamplingParams(temperature=0.2, seed=7)),
        Request(loop[:77], 90, SamplingParams(temperature=1.0, seed=8, top_p=0.9, n_logprobs=2)),
        Request(loop, 80, SamplingParams(repetition_penalty=1.1)),
    ]
    expected, none = answers(any_files, requests, drafts=False)
    assert none == 0
    together, n_right = answers(any_files, requests, drafts=True)
    assert together == expected
    assert n_right > 0
    for request, wanted in zip(requests, expected, strict=True):
        assert answers(any_files, [request], drafts=True)[0] == [wanted]


def test_drafts_keep_to_a_grammar(any_files: ModelFiles) -> None:
    items = {"type": "array", "items": {"enum": ["alpha beta", "gamma"]}, "minItems": 12, "maxItems": 12}
    schema = {"type": "object", "properties": {"words": items}, "required": ["words"], "additionalProperties": False}
    grammar = Grammar("json_schema", json.dumps(schema))
    requests = [
        Request(prompt(seed, 40), 400, SamplingParams(temperature=temperature, seed=seed), any_files.stop_ids, grammar)
        for seed, temperature in ((1, 0.0), (2, 1.0), (3, 0.3))
    ]
    expected, _ = answers(any_files, requests, drafts=False)
    got, n_right = answers(any_files, requests, drafts=True)
    assert got == expected
    assert n_right > 0

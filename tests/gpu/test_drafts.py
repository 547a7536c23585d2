"""Rows that are consecutive tokens of one sequence, and the drafts that need them: the same bits, the same tokens."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pointcode_local.engine import _native
from pointcode_local.engine._native import RowStatus, SamplingConfig, StepRow
from pointcode_local.engine.cuda.backend import megakernel_backend
from pointcode_local.engine.cuda.random_weights import north_mini, random_model
from pointcode_local.engine.kv_cache import FULL, PAGE_TOKENS, SLIDING, SequencePages
from pointcode_local.engine.weights import ModelWeights

from ..engine.desks import Desk
from .support import WINDOW, Bed, decode, needs_gpu, prompt_of

pytestmark = needs_gpu
LONG = 8192 + 2 * PAGE_TOKENS
Logits = NDArray[np.float32]


@pytest.fixture(scope="module", params=["lean", "shipped"])
def bed(request: pytest.FixtureRequest, weights: ModelWeights) -> Bed:
    return Bed.of(weights, request.param)


@pytest.fixture(scope="module")
def lean(weights: ModelWeights) -> Bed:
    return Bed.of(weights)


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A sequence with pages for all its tokens, and the tokens that a step may feed from `position` on."""

    pages: SequencePages
    tables: tuple[np.ndarray, np.ndarray]
    tokens: list[int]
    position: int

    @classmethod
    def of(cls, bed: Bed, length: int, n: int, seed: int) -> Text:
        """Random tokens, of which all but the last `n` are in the pages."""
        ids = prompt_of(length + n - 1, seed)
        pages, row = bed.start(ids[:length], n + 1)
        tables = np.asarray(pages.tables[FULL], np.int32), np.asarray(pages.tables[SLIDING], np.int32)
        return cls(pages, tables, ids[length - 1 :], row.position)

    def chain(self, begin: int, end: int) -> list[StepRow]:
        """Tokens [begin, end) as rows of one step."""
        full, sliding = self.tables
        return [
            StepRow(token=self.tokens[i], position=self.position + i, full_pages=full, sliding_pages=sliding)
            for i in range(begin, end)
        ]


def step(backend: _native.MegakernelBackend, rows: Sequence[StepRow]) -> Logits:
    """(rows, vocab) logits."""
    assert all(result.status == RowStatus.OK for result in backend.step(list(rows)))
    return np.stack([backend.logits(r) for r in range(len(rows))])


def one_by_one(backend: _native.MegakernelBackend, text: Text, n: int) -> Logits:
    return np.concatenate([step(backend, text.chain(i, i + 1)) for i in range(n)])


@pytest.mark.parametrize("length", [1, 58, 64, WINDOW - 3, 127, 190, 900])
def test_a_chain_at_any_border_has_the_bits_of_single_steps(bed: Bed, length: int) -> None:
    text = Text.of(bed, length, 8, seed=length)
    wanted = one_by_one(bed.backend, text, 8)
    for n in range(2, 9):
        assert np.array_equal(step(bed.backend, text.chain(0, n)), wanted[:n]), f"{n} tokens"
    assert np.array_equal(step(bed.backend, text.chain(3, 8)), wanted[3:])
    text.pages.release()


def test_chains_and_single_rows_of_one_step_do_not_know_of_each_other(bed: Bed) -> None:
    a, b, c = texts = [Text.of(bed, length, 5, seed=length) for length in (62, 126, 71)]
    wanted = [one_by_one(bed.backend, text, 4) for text in texts]
    together = step(bed.backend, [*a.chain(0, 4), *c.chain(0, 1), *b.chain(0, 3)])
    assert np.array_equal(together, np.concatenate([wanted[0], wanted[2][:1], wanted[1][:3]]))
    together = step(bed.backend, [*b.chain(1, 3), *c.chain(0, 4)])
    assert np.array_equal(together, np.concatenate([wanted[1][1:3], wanted[2]]))
    for text in texts:
        text.pages.release()


def test_full_size_layers_of_each_kind_at_the_window_and_at_8k() -> None:
    model = random_model(north_mini(5, 4096), torch.device("cuda", 0), seed=1)
    bed = Bed.around(model, LONG // PAGE_TOKENS)
    for pool in bed.kv.pools:
        pool.k.normal_()
        pool.v.normal_()
    backend = megakernel_backend(model, bed.kv, bed.schedules, LONG)
    dice = np.random.default_rng(0)
    tables = dice.permutation(LONG // PAGE_TOKENS).astype(np.int32), dice.permutation(LONG // PAGE_TOKENS)
    for position in (model.config.window - 3, 8192 - 4):
        text = Text(SequencePages(bed.kv), tables, prompt_of(8, position, 4096), position)
        wanted = one_by_one(backend, text, 8)
        for n in (2, 4, 8):
            assert np.array_equal(step(backend, text.chain(0, n)), wanted[:n]), f"{n} tokens at {position}"
    del backend, bed, model
    gc.collect()
    torch.cuda.empty_cache()


def test_guesses_right_and_wrong_for_300_steps_give_the_tokens_of_each_row_alone(lean: Bed) -> None:
    """Three sequences; every step takes some tokens that will come and then perhaps some that will not."""
    dice, n = np.random.default_rng(0), 260
    prompts = [prompt_of(length, seed=length) for length in (40, 66, 120)]
    sampling = SamplingConfig(temperature=0.7, seed=3)
    wanted = [decode(lean, [prompt], n, temperature=0.7, seed=3)[:, 0].tolist() for prompt in prompts]
    started = [lean.start(prompt, n + 9, sampling=sampling) for prompt in prompts]
    n_done = [0, 0, 0]
    while min(n_done) < n - 8:
        rows: list[StepRow] = []
        sizes = [int(dice.integers(1, most + 1)) for most in (3, 3, 2)]
        for r, (prompt, (pages, _)) in enumerate(zip(prompts, started, strict=True)):
            n_done[r] = done = min(n_done[r], n - 8)
            right = int(dice.integers(0, sizes[r]))
            fed = [prompt[-1], *wanted[r]][done : done + sizes[r]]
            fed[1 + right :] = [(token + 1) % 320 for token in fed[1 + right :]]
            full, sliding = (np.asarray(pages.tables[group], np.int32) for group in (FULL, SLIDING))
            rows += [
                StepRow(
                    token=token, position=len(prompt) - 1 + done + i, full_pages=full, sliding_pages=sliding,
                    sampling=sampling,
                )
                for i, token in enumerate(fed)
            ]  # fmt: skip
        results = iter(lean.backend.step(rows))
        for r, size in enumerate(sizes):
            chosen = [next(results).token for _ in range(size)]
            fed = [row.token for row in rows[sum(sizes[:r]) :][1:size]]
            kept = next((i for i, token in enumerate(fed) if token != chosen[i]), size - 1)
            assert chosen[: kept + 1] == wanted[r][n_done[r] :][: kept + 1]
            n_done[r] += kept + 1
    for pages, _ in started:
        pages.release()


# ------------------------------------------------------------------ through the decode service
ROWS: tuple[tuple[int, list[int], SamplingConfig, range], ...] = (
    (200, prompt_of(5, 3) * 30, SamplingConfig(), range(0)),
    (150, prompt_of(5, 3) * 20, SamplingConfig(n_logprobs=2), range(0)),
    (120, prompt_of(40, 4) * 2, SamplingConfig(temperature=0.3, seed=7), range(0)),
    (90, prompt_of(7, 5) * 9, SamplingConfig(temperature=1.0, seed=8, top_p=0.9, top_k=20), range(0, 320, 40)),
    (80, prompt_of(5, 6) * 20, SamplingConfig(repetition_penalty=1.1), range(0)),
    (100, prompt_of(6, 9) * 12, SamplingConfig(logit_bias=[(7, 4.0), (8, -3.0)]), range(0)),
)
"""New tokens, prompt, sampling and stop ids: texts that repeat themselves, so that drafts are found."""


def served(bed: Bed, rows: Sequence[int], *, drafts: bool, ahead: bool = True) -> tuple[dict[int, object], int]:
    """The records of these rows together, and how many draft tokens were kept."""
    desk = Desk.over(bed.backend, ahead=ahead)
    desk.service.set_drafts(drafts)
    held: list[SequencePages] = []
    for i in rows:
        n_new, prompt, sampling, stop = ROWS[i]
        pages, _ = bed.start(prompt, n_new + 1)
        held.append(pages)
        tables = np.asarray(pages.tables[FULL], np.int32), np.asarray(pages.tables[SLIDING], np.int32)
        torch.cuda.synchronize()
        desk.add(i + 1, prompt, n_new, tables, sampling, stop=stop)
    desk.run()
    desk.service.close()
    for pages in held:
        pages.release()
    assert 0 <= desk.service.accepted <= desk.service.drafted
    return dict(desk.records), desk.service.accepted


def test_drafts_change_no_record_of_any_row(bed: Bed) -> None:
    every = range(len(ROWS))
    wanted, none = served(bed, every, drafts=False)
    assert none == 0
    for ahead in (True, False):
        together, n_right = served(bed, every, drafts=True, ahead=ahead)
        assert together == wanted
        assert n_right > 0
    for i in every:
        assert served(bed, [i], drafts=True)[0] == {i + 1: wanted[i + 1]}


def test_a_text_that_stands_in_the_prompt_takes_fewer_steps(lean: Bed) -> None:
    """What the service looks drafts up in is made to hold the answer; the pages hold the prompt's own keys."""
    prompt, n_new = prompt_of(400, seed=1), 60
    told, tail = decode(lean, [prompt], n_new)[:, 0].tolist(), [1, 2, prompt[-1]]
    history = [*tail, *told, *prompt_of(len(prompt) - n_new - 6, seed=2), *tail]
    desk = Desk.over(lean.backend)
    desk.service.set_drafts(True)
    pages, _ = lean.start(prompt, n_new + 1)
    tables = np.asarray(pages.tables[FULL], np.int32), np.asarray(pages.tables[SLIDING], np.int32)
    torch.cuda.synchronize()
    desk.add(1, history, n_new, tables, SamplingConfig())
    desk.run()
    desk.service.close()
    pages.release()
    assert desk.tokens(1) == told
    assert desk.service.steps < n_new


# ------------------------------------------------------------------ through the whole engine
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from ..engine.tiny_models import make_tiny

    made = tmp_path_factory.mktemp("engine")
    yield make_tiny("cohere2_moe", made, dtype=torch.bfloat16, sliding_window=WINDOW)


def test_drafts_keep_to_a_grammar_and_change_no_text(folder: Path) -> None:
    pytest.importorskip("llguidance", reason="the engine's grammars need llguidance")
    from pointcode_local.engine.control import ControlLimits
    from pointcode_local.engine.engine import Engine
    from pointcode_local.engine.model_files import open_model
    from pointcode_local.engine.parts import EngineOptions
    from pointcode_local.engine.types import Grammar, Request, SamplingParams

    from ..engine.engines import collect, opened, prompt

    files = open_model(folder)
    items = {"type": "array", "items": {"enum": ["alpha beta", "gamma"]}, "minItems": 12, "maxItems": 12}
    schema = {"type": "object", "properties": {"words": items}, "required": ["words"], "additionalProperties": False}
    grammar = Grammar("json_schema", json.dumps(schema))
    requests = [
        Request(prompt(seed, 40), 300, SamplingParams(temperature=temperature, seed=seed), files.stop_ids, grammar)
        for seed, temperature in ((1, 0.0), (2, 1.0))
    ]
    requests += [Request(prompt(3, 5) * 30, 200), Request(prompt(4, 70), 150, SamplingParams(temperature=0.2, seed=7))]

    async def main(engine: Engine) -> list[object]:
        results = await asyncio.gather(*(collect(engine, request) for request in requests))
        return [(ids, end.reason) for ids, end in results]

    options = EngineOptions(backend="megakernel", kv_bytes=64 << 20, context_tokens=2048)
    found: list[list[object]] = []
    for drafts in (False, True):
        limits = ControlLimits(chunk_tokens=64, drafts=drafts)
        with opened(files, replace(options, limits=limits)) as engine:
            found.append(asyncio.run(main(engine)))
            assert (engine.stats().accepted > 0) == drafts
    assert found[0] == found[1]

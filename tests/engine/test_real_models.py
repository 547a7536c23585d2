"""Real models from their published files (marked tier: they are fetched on first use)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch

from pointcode_local.engine.download import pull
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.model_files import ModelFiles, open_model
from pointcode_local.engine.models.reference import GrowingKv, TorchModel
from pointcode_local.engine.parts import EngineOptions
from pointcode_local.engine.types import Request

from .engines import collect, opened

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

N_TOKENS = 64
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "# Sorts a list of numbers\nimport ",
    "1, 2, 3, 5, 8, 13,",
)


@pytest.fixture(scope="module", params=["smollm2-135m", "qwen2.5-coder-0.5b"])
def files(request: pytest.FixtureRequest) -> Iterator[ModelFiles]:
    yield open_model(pull(request.param))


def test_a_real_model_knows_a_fact(files: ModelFiles) -> None:
    model = TorchModel(files.weights, use_native=False)
    ids = files.tokenizer.encode(PROMPTS[0])
    logits = model.forward(ids, GrowingKv(model.config.n_layers))
    assert logits is not None
    assert files.tokenizer.decode([int(logits[0].argmax())]) == " Paris"


def test_greedy_tokens_of_the_engine_are_those_of_the_torch_reference(files: ModelFiles) -> None:
    """Each token is the reference's first choice after the tokens before it, so both write the same text."""
    prompts = [tuple(files.tokenizer.encode(text)) for text in PROMPTS]

    async def main(engine: Engine) -> list[list[int]]:
        return [(await collect(engine, Request(ids, N_TOKENS)))[0] for ids in prompts]

    with opened(files, EngineOptions(backend="cpu", context_tokens=2048)) as engine:
        answers = asyncio.run(main(engine))
    model = TorchModel(files.weights, use_native=False)
    for text, ids, answer in zip(PROMPTS, prompts, answers, strict=True):
        assert len(answer) == N_TOKENS
        logits = model.forward([*ids, *answer[:-1]], GrowingKv(model.config.n_layers), logits="all")
        assert logits is not None
        best = logits[len(ids) - 1 :].argmax(dim=1)
        assert torch.equal(best, torch.tensor(answer)), text

"""Tiny random models that the tests of the engine share: read-only. Who changes a folder makes one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from pointcode_local.engine.engine import Engine
from pointcode_local.engine.model_files import ModelFiles, open_model

from .engines import opened
from .tiny_models import Family, make_tiny

TinyModel = Callable[[Family], ModelFiles]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A family's model, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def made(family: Family) -> ModelFiles:
        return open_model(make_tiny(family, folder / family))

    return made


@pytest.fixture(scope="module")
def files(tiny_model: TinyModel) -> ModelFiles:
    """The simplest one."""
    return tiny_model("llama")


@pytest.fixture(scope="module", params=["qwen2", "llama", "cohere2_moe"])
def any_files(request: pytest.FixtureRequest, tiny_model: TinyModel) -> ModelFiles:
    """Each family's in turn."""
    return tiny_model(request.param)


@pytest.fixture
def engine(files: ModelFiles) -> Iterator[Engine]:
    """An engine over `files`, closed with balanced books."""
    with opened(files) as made:
        yield made

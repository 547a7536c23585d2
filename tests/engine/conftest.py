"""Tiny random models that the tests of the engine share: read-only. Who changes a folder makes one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from pointcode_local.engine import schedule_proofs
from pointcode_local.engine.engine import Engine
from pointcode_local.engine.memo import digest
from pointcode_local.engine.model_files import ModelFiles, open_model
from pointcode_local.engine.scheduler import Schedule
from pointcode_local.engine.tasks import ModelPlan

from .engines import opened
from .tiny_models import Family, make_tiny

TinyModel = Callable[[Family], ModelFiles]


@pytest.fixture(scope="session", autouse=True)
def schedules_are_proved_once() -> Iterator[None]:
    """A hundred engines have the same few schedules, and a proof takes longer than most tests: the checker sees each
    schedule when it comes first."""
    proved: set[bytes] = set()
    check = schedule_proofs.check

    def check_first(plan: ModelPlan, schedule: Schedule) -> None:
        key = digest(repr(plan).encode(), *schedule_proofs._content(schedule))
        if key not in proved:
            check(plan, schedule)
            proved.add(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_proofs, "check", check_first)
        yield


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

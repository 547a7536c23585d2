"""The model that the server's tests share; who breaks an engine makes one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pointcode_local.engine.chat_model import LocalChatModel

from .kit import Asked, tiny


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalChatModel]:
    with tiny(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def asked(model: LocalChatModel) -> Asked:
    return Asked(model)

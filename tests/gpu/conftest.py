"""What the tests on a GPU share."""

from __future__ import annotations

import pytest

from pointcode_local.engine.weights import ModelWeights

from .support import WINDOW, tiny_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> ModelWeights:
    """A tiny model whose sliding layers see WINDOW keys."""
    return tiny_weights(tmp_path_factory.mktemp("tiny"), sliding_window=WINDOW)

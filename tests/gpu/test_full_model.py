"""All 49 layers of the North Mini Code shape with random weights (61 GB on the card)."""

from __future__ import annotations

import pytest
import torch

from pointcode_local.engine.cuda.random_weights import north_mini, random_model

from .support import Bed, needs_gpu, soak

pytestmark = [*needs_gpu, pytest.mark.timeout(300)]


def test_rows_of_the_whole_model_come_and_go_without_changing_each_others_tokens() -> None:
    device = torch.device("cuda", 0)
    if torch.cuda.get_device_properties(device).total_memory < 70 << 30:
        pytest.skip("the model does not fit this card")
    assert soak(Bed.around(random_model(north_mini(), device), 200), 2000) > 30

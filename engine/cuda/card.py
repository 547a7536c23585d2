"""Facts of the card that the kernels are sized by."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=8)
def n_sms(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device. torch raises where there is none."""
    return torch.cuda.get_device_properties(device).multi_processor_count

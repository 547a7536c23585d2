"""How a model's authors want it to be sampled."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

from .model_files import ModelFiles
from .types import SamplingParams

_LOG = logging.getLogger(__name__)
RECOMMENDED = {"cohere2_moe": SamplingParams(temperature=1.0, top_p=0.95)}


def recommended_sampling(files: ModelFiles) -> SamplingParams:
    """What the model's authors recommend; greedy for small models, which lose more than they gain by variety."""
    if files.is_small:
        return SamplingParams()
    stated = files.path / "generation_config.json"
    if not stated.is_file():
        return RECOMMENDED.get(files.config.family, SamplingParams())
    return _sampling_of(stated) or RECOMMENDED.get(files.config.family, SamplingParams())


def _sampling_of(path: Path) -> SamplingParams | None:
    try:
        values = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        _LOG.warning("%s is not JSON", path)
        return None
    if "temperature" not in values:
        return None
    return SamplingParams(
        temperature=float(values["temperature"]),
        top_p=float(values.get("top_p") or 1.0),
        top_k=int(values.get("top_k") or 0),
    )

"""Reading a model folder's config.json (and the end-of-text ids of generation_config.json)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import cast

from .errors import ModelError
from .models import find_family
from .models.config import Family, ModelConfig
from .models.fields import Fields


def read_hf_config(folder: Path) -> tuple[ModelConfig, Family]:
    """The configuration in `folder`; raises ModelError when it is missing or describes what is not implemented."""
    values = read_json_object(folder / "config.json")
    if "text_config" in values and isinstance(values["text_config"], dict):  # repacks inside a multimodal wrapper
        values = cast("dict[str, object]", values["text_config"])
    family = find_family(str(values.get("model_type")))
    config = family.config_from_hf(values)
    generation = folder / "generation_config.json"
    if generation.exists():
        extra = Fields(read_json_object(generation), generation.name).ids("eos_token_id")
        config = dataclasses.replace(config, eos_ids=tuple(dict.fromkeys((*config.eos_ids, *extra))))
    return config, family


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in the file; raises ModelError when there is none."""
    try:
        parsed = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return cast("dict[str, object]", parsed)

"""The model families: one file each, named as config.json's model_type (and GGUF's architecture)."""

from __future__ import annotations

from importlib import import_module

from ..errors import ModelError
from .config import Family

FAMILY_NAMES = ("cohere2_moe", "llama", "qwen2")


def find_family(name: str) -> Family:
    """The family called `name`; raises ModelError, naming what was found and what is known, for any other."""
    if name not in FAMILY_NAMES:
        raise ModelError(f"the architecture {name!r} is not implemented (known: {', '.join(FAMILY_NAMES)})")
    family: Family = import_module(f".{name}", __package__).FAMILY
    return family

"""What an engine is made of, and how to open one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import _native
from .constrain import GrammarFactory
from .control import ControlLimits, Prefill
from .kv_cache import KvCache
from .kv_store import KvStore


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to open a model. None lets the machine decide.

    `kv_bytes` is the budget of the KV cache, `prefill_cache_bytes` what prefill may keep de-quantised, `cache_dir`
    where computed prefixes survive a restart (None: they do not).
    """

    backend: str = "auto"
    n_threads: int | None = None
    context_tokens: int | None = None
    kv_bytes: int | None = None
    prefill_cache_bytes: int | None = None
    cache_dir: Path | None = None
    limits: ControlLimits = ControlLimits()


DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of; `engine.assembly.assemble` builds it from a model on disk."""

    name: str
    vocab: int
    context_tokens: int
    n_threads: int
    kv: KvCache
    prefill: Prefill
    make_backend: Callable[[], _native.StepBackend]
    grammars: GrammarFactory | None = None
    store: KvStore | None = None
    salt: bytes = b""
    limits: ControlLimits = ControlLimits()
    backend: str = ""  # "megakernel", "torch", "cpu"
    step_bytes: Callable[[int, int], int] | None = None  # (rows, context tokens) to bytes that a step must read
    read_bytes_per_s: Callable[[], float] | None = None  # measures, or knows, what the memory gives; may take 1 s


def model_name(model: str | Path) -> str:
    """A model's public name: the last part of its path or id."""
    return Path(model).name.removesuffix(".gguf")

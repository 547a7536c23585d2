"""Models on this machine: which one is meant, fetching it, opening it in this process, and `pointcode model`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from pointcode_local.config import Places, Settings
from pointcode_local.engine import registry
from pointcode_local.engine.errors import (
    BackendError,
    BackendUnavailable,
    CapacityError,
    DownloadError,
    EngineError,
    RequestError,
    UnknownModel,
)
from pointcode_local.engine.types import ChatModel
from pointcode_local.exits import EXIT_ERROR, EXIT_TEMPORARY, EXIT_USAGE, complain
from pointcode_local.frontend import OnProgress, Progress
from pointcode_local.render import short_bytes
from pointcode_local.waiting import StderrLines

NO_ENGINE = "the engine of this installation does not load: reinstall pointcode-local, or use --endpoint URL"
BIG_MODEL = "north-mini-code"  # where there is a Hopper GPU and the model is on disk


def default_model() -> str:
    """The model to run when none is named: the big one where this machine can, else the embedded one."""
    from pointcode_local.engine.doctor import gpu_facts

    has_hopper = any(fact.verdict == "good" for fact in gpu_facts())
    return BIG_MODEL if has_hopper and registry.info(BIG_MODEL).path else registry.DEFAULT_MODEL


def chosen_model(settings: Settings) -> str:
    """Name, path or hub id of the model to run here."""
    return settings.model or default_model()


async def open_local_model(settings: Settings, places: Places, on_progress: OnProgress) -> ChatModel:
    """Open a model by path, name or hub id; a known one that is not on disk is fetched. Raises EngineError."""
    name = chosen_model(settings)
    await asyncio.to_thread(_fetch_if_missing, name, on_progress)
    on_progress(Progress(f"loading {name}"))
    return await asyncio.to_thread(_open, name, settings.backend, places.cache / "kv")


def _open(name: str, backend: str, cache_dir: Path) -> ChatModel:
    try:
        from pointcode_local.engine.chat_model import open_chat_model
        from pointcode_local.engine.parts import EngineOptions
    except ImportError as error:
        raise EngineError(f"{NO_ENGINE} ({error})") from error

    return open_chat_model(name, EngineOptions(backend=backend, cache_dir=cache_dir))


def _fetch_if_missing(name: str, on_progress: OnProgress) -> None:
    try:
        registry.resolve(name)
    except DownloadError:
        from pointcode_local.engine.download import pull

        pull(name, lambda done, total: on_progress(Progress(f"downloading {name}", done, total)))


def known_models() -> tuple[str, ...]:
    """Names of the models that are on disk."""
    return tuple(model.name for model in registry.list_models() if model.path is not None)


def describe(name: str) -> str:
    """One line on a model for `doctor`; raises EngineError when it cannot be opened as it is."""
    chosen = name or default_model()
    path = registry.resolve(chosen)
    return f"{chosen}: {path}"


# ----------------------------------------------------------------------------------------------- pointcode model
def run_command(options: argparse.Namespace, name: str) -> int:
    """`pointcode model list | pull [NAME] | info [NAME] | verify [NAME]`; `name` stands in where none is given."""
    handlers: dict[str, Callable[[argparse.Namespace, str], int]] = {
        "list": _list,
        "pull": _pull,
        "info": _info,
        "verify": _verify,
    }
    try:
        return handlers[options.action](options, options.name or name or registry.DEFAULT_MODEL)
    except EngineError as error:
        return complain(error, exit_code_of(error))


def exit_code_of(error: EngineError) -> int:
    """What a process ends with that the engine refused to serve."""
    match error:
        case UnknownModel() | RequestError() | BackendUnavailable():
            return EXIT_USAGE
        case CapacityError() | BackendError():
            return EXIT_TEMPORARY
        case _:
            return EXIT_ERROR


def _list(options: argparse.Namespace, name: str) -> int:
    for model in registry.list_models():
        if options.json:
            print(json.dumps(asdict(model), default=str))
            continue
        state = "on disk" if model.path else "not on disk"
        mark = "*" if model.is_default else " "
        print(f"{mark} {model.name:<24} {short_bytes(model.size_bytes):>9}  {state:<11}  {model.title}")
    return 0


def _info(options: argparse.Namespace, name: str) -> int:
    model = registry.info(name)
    record = {**asdict(model), "path": str(model.path) if model.path else None}
    if options.json:
        print(json.dumps(record))
    else:
        print("\n".join(f"{key:<12} {value}" for key, value in record.items()))
    return 0


def _pull(options: argparse.Namespace, name: str) -> int:
    from pointcode_local.engine.download import pull

    with _told(f"downloading {name}") as on_progress:
        path = pull(name, on_progress)
    print(path)
    return 0


def _verify(options: argparse.Namespace, name: str) -> int:
    with _told(f"checking {name}") as on_progress:
        found = registry.verify(name, on_progress)
    if options.json:
        print(json.dumps({**asdict(found), "ok": found.ok}, default=str))
    else:
        print(f"{found.path}: {'ok' if found.ok else 'DAMAGED'}  sha256 {found.actual_sha256}")
        if not found.ok:
            print(f"expected {found.expected_sha256}; delete the file and run: pointcode model pull {name}")
    return 0 if found.ok else EXIT_ERROR


@contextmanager
def _told(what: str) -> Generator[Callable[[int, int], None]]:
    """Takes (done, total) bytes and tells them on stderr, as a scripted run tells a download."""
    lines = StderrLines()
    try:
        yield lambda done, total: lines.opening(Progress(what, done, total))
    finally:
        lines.wait("")

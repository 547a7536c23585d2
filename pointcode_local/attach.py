"""Attaching to a running `pointcode serve` through its Unix socket, instead of loading the same model twice.

The socket's name is made from the model's path, so only a server of the same model is found. Its folder belongs to the
user alone: who can open it needs no key.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pointcode_local.config import Places, Settings
from pointcode_local.engine import registry
from pointcode_local.engine.errors import EngineError
from pointcode_local.engine.types import ChatModel
from pointcode_local.local_models import chosen_model

_LOG = logging.getLogger(__name__)
_MAX_PATH_BYTES = 100  # of a Unix socket; the system's limit is 108


def socket_of(places: Places, settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Where a server of the chosen model listens; None when the model is not on disk or no folder fits."""
    try:
        model = registry.resolve(chosen_model(settings))
    except EngineError:
        return None
    name = hashlib.blake2b(f"{model.resolve()}\0{settings.backend}".encode(), digest_size=8).hexdigest() + ".sock"
    folder = _folder(places, environment)
    return folder / name if len(os.fsencode(folder / name)) <= _MAX_PATH_BYTES else None


def _folder(places: Places, environment: Mapping[str, str]) -> Path:
    if environment.get("POINTCODE_HOME"):
        own = places.state / "run"
        if len(os.fsencode(own)) <= _MAX_PATH_BYTES - 24:
            return own
        digest = hashlib.blake2b(os.fsencode(own), digest_size=6).hexdigest()
        return Path("/tmp") / f"pointcode-{os.getuid()}" / digest
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) / "pointcode" if runtime else Path("/tmp") / f"pointcode-{os.getuid()}"


def is_private(path: Path) -> bool:
    """Whether the socket and its folder belong to this user alone."""
    try:
        found = (path.stat(), path.parent.stat())
    except OSError:
        return False
    private = all(entry.st_uid == os.getuid() and not entry.st_mode & 0o077 for entry in found)
    return private and stat.S_ISSOCK(found[0].st_mode)


async def attach(places: Places, settings: Settings, environment: Mapping[str, str]) -> ChatModel | None:
    """The model of a running server; None when there is none, when it does not answer, or has the wrong model."""
    path = socket_of(places, settings, environment)
    if path is None or not is_private(path):
        return None
    from pointcode_local.endpoint import EndpointModel

    model = EndpointModel("http://pointcode", uds=path, stall_timeout_s=settings.stall_timeout_s)
    await model.open()
    if model.is_known:
        _LOG.info("attached to the server at %s", path)
        return model
    await model.aclose()
    _LOG.info("nobody answers at %s; loading the model", path)
    return None

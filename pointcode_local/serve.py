"""`pointcode serve`: the model of this machine as an OpenAI- and Anthropic-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pointcode_local.attach import socket_of
from pointcode_local.compose import Setup, prepare
from pointcode_local.config import Settings
from pointcode_local.engine import registry
from pointcode_local.engine.errors import DownloadError, EngineError
from pointcode_local.engine.sockets import listen_tcp, listen_unix
from pointcode_local.exits import EXIT_ERROR, UsageError, complain
from pointcode_local.frontend import Progress
from pointcode_local.local_models import NO_ENGINE, chosen_model, exit_code_of, open_local_model

if TYPE_CHECKING:
    from pointcode_local.engine.chat_model import LocalChatModel
    from pointcode_local.engine.http.state import ServerOptions

_LOG = logging.getLogger(__name__)


def run(options: argparse.Namespace) -> int:
    """Serves until it is told to stop; returns the exit code."""
    setup = prepare(options, os.environ)
    if options.endpoint:
        raise UsageError("serve runs the model of this machine; --endpoint is for clients")
    key = options.api_key or os.environ.get("POINTCODE_API_KEY", "")
    if not is_loopback(options.host) and not key:
        raise UsageError(f"--host {options.host} can be reached from other machines: give an --api-key")
    try:
        registry.resolve(chosen_model(setup.settings))
    except DownloadError:
        pass  # it is known, and will be fetched
    except EngineError as error:
        return complain(error, exit_code_of(error))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        listener = listen_tcp(options.host, options.port)
    except OSError as error:
        raise UsageError(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from error
    with listener:
        return asyncio.run(_serve(options, setup, key, listener))


async def _serve(options: argparse.Namespace, setup: Setup, key: str, listener: socket.socket) -> int:
    try:
        from pointcode_local.engine.server import create_app, run_server
    except ImportError as error:
        _LOG.error("%s (%s)", NO_ENGINE, error)
        return EXIT_ERROR
    settings = setup.settings
    try:
        model = cast("LocalChatModel", await open_local_model(settings, setup.places, _show_progress))
    except EngineError as error:
        _LOG.error("%s", error)
        return exit_code_of(error)
    path = socket_of(setup.places, settings, os.environ)
    local = _listen_for_attaching(path) if path is not None else None
    try:
        host, port = listener.getsockname()[:2]
        _LOG.info("%s answers at http://%s:%d/v1 (%s)", model.name, host, port, "API key" if key else "no API key")
        sockets = [listener] if local is None else [listener, local]
        app = create_app(model, server_options(options, settings, key))
        code = await run_server(app, sockets)
    finally:
        if local is not None and path is not None:
            path.unlink(missing_ok=True)
            local.close()
        await model.aclose()
    _LOG.log(logging.INFO if code == 0 else logging.CRITICAL, "the server has ended with code %d", code)
    return code


def _listen_for_attaching(path: Path) -> socket.socket | None:
    try:
        local = listen_unix(path)
    except OSError as error:
        _LOG.warning("no second pointcode can attach: %s: %s", path, error.strerror)
        return None
    if local is None:
        _LOG.warning("another server has %s: a second pointcode attaches to that one", path)
    return local


def server_options(options: argparse.Namespace, settings: Settings, key: str) -> ServerOptions:
    """Names, hosts and key from flags and settings."""
    from pointcode_local.engine.http.state import ServerOptions

    hosts = (*(ServerOptions().allowed_hosts or ()), options.host.lower(), *options.allowed_host)
    names = (*options.alias, settings.model, chosen_model(settings))
    aliases = tuple(name for name in names if name)
    return ServerOptions(key, aliases, hosts if is_loopback(options.host) else None)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _show_progress(progress: Progress) -> None:
    if not progress.total or progress.done in (0, progress.total):
        _LOG.info("%s", progress.text)

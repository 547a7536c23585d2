"""Listening sockets of the server; imports nothing heavy, so that a taken port is told before a model is loaded."""

from __future__ import annotations

import socket
from pathlib import Path

_BACKLOG = 256


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError when the address cannot be had."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: Path) -> socket.socket | None:
    """A listening Unix socket in a private folder; None when a living server has it. A stale one is replaced.

    Raises OSError when the folder cannot be had for this user alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    if answers(path):
        return None
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener


def answers(path: Path) -> bool:
    """Whether somebody listens on this Unix socket."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(1.0)
    try:
        probe.connect(str(path))
    except OSError:
        return False
    finally:
        probe.close()
    return True

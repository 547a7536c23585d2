"""The environment that commands get: the person's own, not the one pointcode itself was started in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).absolute().parent.parent
QUIET = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "GH_PAGER": "cat",
    "EDITOR": "false",  # fails at once instead of waiting for a terminal
    "VISUAL": "false",
    "GIT_EDITOR": "true",  # takes the proposed message, so that merge and rebase go on
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
}
DROPPED = (
    "POINTCODE_API_KEY",
    "SSH_ASKPASS",
    "GIT_ASKPASS",
    "SUDO_ASKPASS",
    "GPG_TTY",
    "COLUMNS",
    "LINES",
    "PYTHONHOME",
    "CDPATH",  # `cd src` must mean the workspace's own src
)


def command_environment(base: Mapping[str, str], workspace: Path) -> dict[str, str]:
    """`base` with pagers and editors made harmless, and without what belongs to our own installation."""
    env = {name: value for name, value in base.items() if name not in DROPPED}
    env.update(QUIET)
    _leave_own_venv(env, workspace)
    _leave_own_path(env)
    return env


def _leave_own_venv(env: dict[str, str], workspace: Path) -> None:
    """Undo the activation of the virtual environment that runs pointcode, unless it is the workspace's own."""
    venv = env.get("VIRTUAL_ENV")
    if not venv or os.path.realpath(venv) != os.path.realpath(sys.prefix):
        return
    if workspace in Path(os.path.realpath(venv)).parents:
        return
    del env["VIRTUAL_ENV"]
    env.pop("VIRTUAL_ENV_PROMPT", None)
    scripts = str(Path(venv) / "bin")
    env["PATH"] = os.pathsep.join(part for part in env.get("PATH", "").split(os.pathsep) if part.rstrip("/") != scripts)


def _leave_own_path(env: dict[str, str]) -> None:
    """Take the folders that hold our own package off PYTHONPATH."""
    parts = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    kept = [part for part in parts if not _holds_us(Path(part))]
    if kept:
        env["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        env.pop("PYTHONPATH", None)


def _holds_us(folder: Path) -> bool:
    return any(os.path.realpath(folder / name) == os.path.realpath(PACKAGE) for name in ("pointcode_local", ".")) or (
        (folder / "pointcode_local" / "tools").exists()
        and os.path.realpath(folder / "pointcode_local" / "tools") == os.path.realpath(Path(__file__).parent)
    )

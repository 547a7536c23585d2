"""Confining commands: writes only in the workspace and temporary folders, no network.

Landlock (Linux 5.13 and later) through system calls; TCP is closed where its ABI is at least 4. With bubblewrap on PATH
the network is a private one instead, so that local servers work, and guarded files are hidden. Nothing is confined
where neither works: `sandbox_status` says so, for the status line and `doctor`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
MIN_TCP_ABI = 4
HELPER = Path(__file__).absolute().parent / "sandbox_exec.py"


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """What a command may do: write below `writable` (absolute), use the network or not; `hidden` files look empty
    (bubblewrap only)."""

    writable: tuple[Path, ...]
    network: bool = False
    hidden: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What confinement this machine offers; `text` is one line for people."""

    kind: Literal["landlock", "bubblewrap", "none"]
    blocks_network: bool
    text: str


def default_policy(root: Path, *, network: bool = False, more: Sequence[Path] = ()) -> SandboxPolicy:
    """Writes in the workspace, the temporary folders and `more`."""
    temporary = {Path(os.path.realpath(tempfile.gettempdir())), Path("/tmp")}
    return SandboxPolicy((root, *sorted(temporary), *more), network)


@cache
def landlock_abi() -> int:
    """The kernel's Landlock ABI; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, int(abi))


@cache
def bubblewrap_path() -> str | None:
    """`bwrap`, when it is installed and may make namespaces here."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    probe = [path, "--ro-bind", "/", "/", "--unshare-net", "--dev", "/dev", "--proc", "/proc", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


def sandbox_status() -> SandboxStatus:
    """What commands run under when a policy is given."""
    if bubblewrap_path() is not None:
        return SandboxStatus("bubblewrap", True, "sandbox: bubblewrap (writes only in workspace and temp, no network)")
    abi = landlock_abi()
    if abi >= MIN_TCP_ABI:
        return SandboxStatus(
            "landlock",
            True,
            f"sandbox: Landlock ABI {abi} (writes only in workspace and temp, no TCP; UDP is not blocked)",
        )
    if abi > 0:
        return SandboxStatus(
            "landlock",
            False,
            f"sandbox: Landlock ABI {abi} (writes only in workspace and temp; network is NOT blocked)",
        )
    return SandboxStatus(
        "none", False, "no sandbox on this system (neither bubblewrap nor Landlock): commands are NOT confined"
    )


def wrapped(command: Sequence[str], policy: SandboxPolicy | None) -> list[str]:
    """The command line that runs `command` confined; unchanged without a policy or a sandbox."""
    if policy is None:
        return list(command)
    if (bwrap := bubblewrap_path()) is not None:
        return [bwrap, *_bubblewrap_options(policy), "--", *command]
    if landlock_abi() == 0:
        return list(command)
    plan = json.dumps({"writable": [str(path) for path in policy.writable], "network": policy.network})
    return [sys.executable, "-I", "-S", str(HELPER), plan, *command]


def _bubblewrap_options(policy: SandboxPolicy) -> list[str]:
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--die-with-parent"]
    for path in policy.writable:
        if path.exists():
            options += ["--bind", str(path), str(path)]
    for path in policy.hidden:
        if path.is_file():
            options += ["--ro-bind", "/dev/null", str(path)]
    return options if policy.network else [*options, "--unshare-net"]

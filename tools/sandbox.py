"""Confining commands: writes only in the workspace and temporary folders, no network.

Landlock (Linux 5.13 and later) through system calls, in a network namespace of its own where the kernel lets us make
one (local servers then work, the outside cannot be reached); otherwise Landlock closes TCP where its ABI is at least 4.
bubblewrap does the same where there is no Landlock. Nothing is confined where neither works: `sandbox_status` says so,
for the status line and `doctor`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
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
    """What a command may do: write below `writable` (absolute), use the network or not."""

    writable: tuple[Path, ...]
    network: bool = False


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
    probe = [path, *_bubblewrap_options(SandboxPolicy(())), "--", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


@cache
def makes_networks() -> bool:
    """Can a command be given a network namespace of its own here?"""
    if landlock_abi() == 0:
        return False
    plan = json.dumps({"writable": [], "network": False, "probe": True})
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(HELPER), plan], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def sandbox_status() -> SandboxStatus:
    """What commands run under when a policy is given."""
    abi = landlock_abi()
    writes = "writes only in the workspace and temporary folders"
    if abi and makes_networks():
        return SandboxStatus(
            "landlock", True, f"sandbox: Landlock ABI {abi} ({writes}, no network but a private loopback)"
        )
    if abi >= MIN_TCP_ABI:
        return SandboxStatus("landlock", True, f"sandbox: Landlock ABI {abi} ({writes}, no TCP; UDP is not blocked)")
    if bubblewrap_path() is not None:
        return SandboxStatus("bubblewrap", True, f"sandbox: bubblewrap ({writes}, no network but a private loopback)")
    if abi:
        return SandboxStatus("landlock", False, f"sandbox: Landlock ABI {abi} ({writes}; the network is NOT blocked)")
    return SandboxStatus(
        "none", False, "no sandbox on this system (neither Landlock nor bubblewrap): commands are NOT confined"
    )


def wrapped(command: Sequence[str], policy: SandboxPolicy | None) -> list[str]:
    """The command line that runs `command` confined; unchanged without a policy or a sandbox."""
    if policy is None:
        return list(command)
    match sandbox_status().kind:
        case "landlock":
            plan = {"writable": [str(path) for path in policy.writable], "network": policy.network}
            return [sys.executable, "-I", "-S", str(HELPER), json.dumps(plan), *command]
        case "bubblewrap":
            return [bubblewrap_path() or "bwrap", *_bubblewrap_options(policy), "--", *command]
        case "none":
            return list(command)


def confinement_note(policy: SandboxPolicy | None, shown: str) -> str:
    """A hint for the model when a failed command looks as if the sandbox had stopped it; "" otherwise."""
    if policy is None or sandbox_status().kind == "none" or not _STOPPED.search(shown):
        return ""
    network = "" if policy.network else ", and no network"
    return f"\n[it ran in the sandbox: writes only in the workspace and temporary folders{network}]"


_STOPPED = re.compile(
    r"(?i)permission denied|read-only file system|operation not permitted|resolve|unreachable|connection refused|"
    r"EACCES|EPERM|EROFS|getaddrinfo|name resolution|no such host"
)


def _bubblewrap_options(policy: SandboxPolicy) -> list[str]:
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]
    for path in policy.writable:
        if path.exists():
            options += ["--bind", str(path), str(path)]
    return options if policy.network else [*options, "--unshare-net"]

"""Confining commands: writes only in the workspace and temporary folders, no network.

Landlock (Linux 5.13 and later) through system calls, in a network namespace of its own where the kernel lets us make
one (local servers then work, the outside cannot be reached); otherwise Landlock closes TCP where its ABI is at least 4.
bubblewrap does the same where there is no Landlock. What git would run later (kept_git.py) is mounted read-only, in a
mount namespace of its own. Nothing is confined where neither works: `sandbox_status` says so,
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

from .kept_git import GitGuard, KeptGit, kept_git

LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture
MIN_TCP_ABI = 4
HELPER = Path(__file__).absolute().parent / "sandbox_exec.py"


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """What a command may do: write below `writable` (absolute), use the network or not.

    What git would run is kept in `repository` (absolute, links resolved), which lies in one of these folders.
    """

    writable: tuple[Path, ...]
    network: bool = False
    repository: Path | None = None

    def guard(self, *, copies: bool = True) -> GitGuard:
        """What is kept of the repository as it now is; reads folders, and may ask git. Without `copies` of the settings
        nobody needs to close it. Raises OSError."""
        kept = kept_git(self.repository) if self.repository is not None else KeptGit()
        return GitGuard(kept, copies=copies and sandbox_status().kind == "landlock" and makes_mounts())


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What confinement this machine offers; `text` is one line for people."""

    kind: Literal["landlock", "bubblewrap", "none"]
    blocks_network: bool
    text: str


def default_policy(root: Path, *, network: bool = False, more: Sequence[Path] = ()) -> SandboxPolicy:
    """Writes in the workspace (but for what git would run), the temporary folders and `more`."""
    temporary = {Path(os.path.realpath(tempfile.gettempdir())), Path("/tmp")}
    return SandboxPolicy((root, *sorted(temporary), *more), network, root)


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
    probe = [path, *_bubblewrap_options(SandboxPolicy(()), SandboxPolicy(()).guard(copies=False)), "--", "true"]
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
    return _can("network")


@cache
def makes_mounts() -> bool:
    """Can a command be given mounts of its own here, so that Landlock can keep a part of a writable folder?"""
    return landlock_abi() > 0 and _can("mounts")


def _can(what: str) -> bool:
    command = [sys.executable, "-I", "-S", str(HELPER), json.dumps({"probe": what})]
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def sandbox_status() -> SandboxStatus:
    """What commands run under when a policy is given."""
    abi = landlock_abi()
    writes = "writes only in the workspace and temporary folders"
    if abi and not makes_mounts():
        writes += "; git's hooks and settings are NOT kept"
    if abi and makes_networks():
        return SandboxStatus(
            "landlock", True, f"sandbox: Landlock ABI {abi} ({writes}, no network but a private loopback)"
        )
    if abi >= MIN_TCP_ABI:
        return SandboxStatus("landlock", True, f"sandbox: Landlock ABI {abi} ({writes}, no TCP; UDP is not blocked)")
    if bubblewrap_path() is not None:  # it makes mounts itself
        return SandboxStatus("bubblewrap", True, f"sandbox: bubblewrap ({writes}, no network but a private loopback)")
    if abi:
        return SandboxStatus("landlock", False, f"sandbox: Landlock ABI {abi} ({writes}; the network is NOT blocked)")
    return SandboxStatus(
        "none", False, "no sandbox on this system (neither Landlock nor bubblewrap): commands are NOT confined"
    )


def wrapped(command: Sequence[str], policy: SandboxPolicy | None, guard: GitGuard | None = None) -> list[str]:
    """The command line that runs `command` confined; unchanged without a policy or a sandbox.

    `guard` is for a caller that closes it when the command has ended; without one git's settings are read-only.
    """
    if policy is None:
        return list(command)
    git = policy.guard(copies=False) if guard is None else guard
    match sandbox_status().kind:
        case "landlock":
            plan = {
                "writable": [str(path) for path in policy.writable],
                "network": policy.network,
                "pinned": [str(path) for path in git.pinned],
                "read_only": [str(path) for path in git.read_only],
                "links": [[str(link), str(path)] for link, path in git.links],
            }
            return [sys.executable, "-I", "-S", str(HELPER), json.dumps(plan), *command]
        case "bubblewrap":
            return [bubblewrap_path() or "bwrap", *_bubblewrap_options(policy, git), "--", *command]
        case "none":
            return list(command)


def confinement_note(policy: SandboxPolicy | None, shown: str) -> str:
    """A hint for the model when a failed command looks as if the sandbox had stopped it; "" otherwise."""
    if policy is None or sandbox_status().kind == "none" or not _STOPPED.search(shown):
        return ""
    network = "" if policy.network else ", and no network"
    return f"\n[it ran in the sandbox: writes only in the workspace and temporary folders, not to git's hooks{network}]"


_STOPPED = re.compile(
    r"(?i)permission denied|read-only file system|operation not permitted|resolve|unreachable|connection refused|"
    r"resource busy|EACCES|EPERM|EROFS|EBUSY|getaddrinfo|name resolution|no such host"
)


def _bubblewrap_options(policy: SandboxPolicy, git: GitGuard) -> list[str]:
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]
    options += ["--cap-drop", "CAP_SYS_ADMIN"]  # or root could unmount what is mounted here
    for path in policy.writable:
        if path.exists():
            options += ["--bind", str(path), str(path)]
    for path in git.pinned:
        options += ["--bind", str(path), str(path)]
    for path in git.read_only:
        options += ["--ro-bind", str(path), str(path)]
    return options if policy.network else [*options, "--unshare-net"]

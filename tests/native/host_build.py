"""CUDA sources compiled for the host, over the emulated device of host_cuda/; what is made stays until they change."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATION = Path(__file__).parent / "host_cuda"
KEPT = ROOT / "build/emulation"
FLAGS = [
    "-std=c++20", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC", "-fno-semantic-interposition",
    "-Wno-unknown-pragmas", "-DPOINTCODE_HOST_CUDA", f"-I{EMULATION}", f"-I{ROOT / 'csrc'}",
]  # fmt: skip
LINKED = ["-shared", "-Wl,-Bsymbolic"]


def compiler() -> str | None:
    """The C++ compiler, or None."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def compiled(name: str, sources: Sequence[Path]) -> ctypes.CDLL:
    """The sources with an emulated device of their own, compiled side by side, since the test run waits for them."""
    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(_object, [*sources, *EMULATION.glob("*.cc")]))
    about = " ".join(made.name for made in objects)
    made = _kept(name, ".so", about, [*LINKED, *map(str, objects)])
    loaded = ctypes.CDLL(str(made))
    loaded.host_cuda_error.restype = ctypes.c_char_p
    return loaded


def _object(source: Path) -> Path:
    """The source and whatever it may include, compiled."""
    headers = sorted([*(ROOT / "csrc").glob("*.h"), *(ROOT / "csrc").glob("*.cuh"), *EMULATION.glob("*.h")])
    about = "".join(hashlib.sha256(read.read_bytes()).hexdigest() for read in [source, *headers])
    return _kept(source.stem, ".o", about, [*FLAGS, "-x", "c++", "-c", str(source)])


def _kept(name: str, suffix: str, about: str, arguments: list[str]) -> Path:
    """What the compiler made of these arguments, when `about` and the compiler were the same, or makes now."""
    command = [str(compiler()), *arguments]
    digest = hashlib.sha256("\0".join([*command, about]).encode()).hexdigest()[:16]
    made = KEPT / f"{name}-{digest}{suffix}"
    with _locked(f"{name}{suffix}"):
        if not made.exists():
            for old in KEPT.glob(f"{name}-*{suffix}"):
                old.unlink()
            done = subprocess.run([*command, "-o", f"{made}.new"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
            Path(f"{made}.new").rename(made)
    return made


@contextmanager
def _locked(name: str) -> Generator[None]:
    """One process and thread at a time."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

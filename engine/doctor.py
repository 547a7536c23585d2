"""Facts about this machine that decide how well the engine runs: GPU, toolchain, CPU, model, sandbox, terminal."""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import EngineError

Verdict = Literal["good", "poor", "missing"]
_COMMAND_TIMEOUT_S = 10.0
_HOPPER = "9.0"
_CPU_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "amx_tile")


@dataclass(frozen=True, slots=True)
class Fact:
    """One finding; `advice` says what to do about it, where something can be done."""

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""


def examine(
    find_model: Callable[[], str] | None = None,
    describe_sandbox: Callable[[], str] | None = None,
    environment: Mapping[str, str] = os.environ,
    find_server: Callable[[], str] | None = None,
) -> tuple[Fact, ...]:
    """All facts, in a fixed order. The callables describe what was found, or raise with the reason why nothing was;
    `find_server` where a server is used instead of a model of this machine."""
    facts = [*gpu_facts(), compiler_fact(), cpu_fact(), memory_fact(), native_fact()]
    if find_server is None:
        facts.append(_ask("model", find_model, "fetch one with `pointcode model pull`"))
    else:
        facts.append(_ask("endpoint", find_server, "start that server, or use another one"))
    facts.append(_ask("sandbox", describe_sandbox, "commands run without confinement; keep the mode on `ask`"))
    facts.append(terminal_fact(environment))
    return tuple(facts)


def gpu_facts() -> tuple[Fact, ...]:
    """One fact per GPU that the driver reports."""
    query = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader")
    output = _run(query)
    if output is None:
        return (Fact("gpu", "missing", "no NVIDIA driver answers", "decoding runs on the CPU backend"),)
    return tuple(_gpu_fact(line) for line in output.splitlines() if line.strip())


def has_gpu_driver() -> bool:
    """Can a GPU answer at all? Cheap: without a driver, nobody needs torch to say no."""
    if Path("/dev/kfd").exists():  # AMD's
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _gpu_fact(line: str) -> Fact:
    name, capability, memory, driver = (field.strip() for field in line.split(","))
    text = f"{name}, compute capability {capability}, {memory}, driver {driver}"
    if capability == _HOPPER:
        return Fact("gpu", "good", text)
    return Fact("gpu", "poor", text, "the megakernel needs a Hopper GPU (9.0); others use the torch backend")


def compiler_fact() -> Fact:
    """nvcc, which builds the megakernel."""
    output = _run(("nvcc", "--version"))
    if output is None:
        return Fact("nvcc", "missing", "nvcc is not on PATH", "only needed to build the megakernel")
    release = next((line.strip() for line in output.splitlines() if "release" in line), output.strip())
    return Fact("nvcc", "good", release)


def cpu_fact() -> Fact:
    """Model, cores that this process may use, and the instruction sets the CPU backend can choose from."""
    fields = _colon_fields(Path("/proc/cpuinfo"))
    flags = set(fields.get("flags", "").split())
    found = [feature for feature in _CPU_FEATURES if feature in flags]
    n_cores = len(os.sched_getaffinity(0))
    text = f"{fields.get('model name', 'unknown CPU')}, {n_cores} cores, {' '.join(found) or 'no AVX2'}"
    if "avx2" not in flags:
        return Fact("cpu", "poor", text, "without AVX2 decoding is several times slower")
    return Fact("cpu", "good", text)


def memory_fact() -> Fact:
    """Memory that can be used without swapping."""
    kib = _colon_fields(Path("/proc/meminfo")).get("MemAvailable", "").split()
    if not kib:
        return Fact("memory", "poor", "the available memory is not known")
    available_gb = int(kib[0]) * 1024 / 1e9
    verdict: Verdict = "good" if available_gb >= 2 else "poor"
    return Fact("memory", verdict, f"{available_gb:.1f} GB available", "" if verdict == "good" else "close programs")


def native_fact() -> Fact:
    """Whether the native extension can be imported."""
    try:
        module = importlib.import_module("._native", __package__)
    except ImportError as error:
        return Fact("native", "missing", f"the native extension does not load: {error}", "reinstall pointcode-local")
    backends = [name for name in ("CpuBackend", "MegakernelBackend") if hasattr(module, name)]
    return Fact("native", "good", f"native extension with {', '.join(backends) or 'no backend'}")


def terminal_fact(environment: Mapping[str, str]) -> Fact:
    """What the terminal says of itself."""
    columns, lines = shutil.get_terminal_size()
    term = environment.get("TERM", "")
    colour = environment.get("COLORTERM", "") or ("none" if environment.get("NO_COLOR") else "by TERM")
    text = f"TERM={term or '(unset)'}, colours: {colour}, {columns}x{lines}, {sys.stdout.encoding or 'no encoding'}"
    if term in ("", "dumb") or not sys.stdout.isatty():
        return Fact("terminal", "poor", text, "use --plain, or -p in scripts")
    if "utf" not in (sys.stdout.encoding or "").lower():
        return Fact("terminal", "poor", text, "set a UTF-8 locale")
    return Fact("terminal", "good", text)


def _ask(topic: str, describe: Callable[[], str] | None, advice: str) -> Fact:
    if describe is None:
        return Fact(topic, "missing", "not examined")
    try:
        return Fact(topic, "good", describe())
    except (EngineError, OSError, RuntimeError, ValueError, LookupError) as error:
        return Fact(topic, "missing", str(error), advice)


def _run(command: Iterable[str]) -> str | None:
    try:
        done = subprocess.run(
            tuple(command),
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _colon_fields(path: Path) -> dict[str, str]:
    """The first value of each `key : value` line; empty where the file cannot be read."""
    fields: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        key, found, value = line.partition(":")
        if found:
            fields.setdefault(key.strip(), value.strip())
    return fields

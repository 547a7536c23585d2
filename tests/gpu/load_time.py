"""From a model folder in memory to the first token: python -P -m tests.gpu.load_time [--runs 2] [--profile]

Writes a full-size checkpoint of random weights (61 GB) to a RAM disk, opens it in fresh processes, and deletes it.
Run 1 is a first start, the others find what it kept (proved schedules, compiled kernels). The table comes last: seconds
of each part of each run; indented parts are inside the part above. Needs memory for the checkpoint beside a few GB.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import io
import json
import logging
import pstats
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointcode_local.engine.engine import Engine
    from pointcode_local.engine.parts import EngineParts

_SPARE_BYTES = 1 << 30
_CONTEXT_TOKENS = 16384
_PROMPT_TOKENS = 100
_PROFILE_LINES = 45


# ------------------------------------------------------------------ the process that is measured
class Parts:
    """Seconds of each part of a start, in order; `inner` ones are logged by the engine inside the next outer one."""

    def __init__(self, started_s: float) -> None:
        self.outer: dict[str, float] = {}
        self.inner: dict[str, dict[str, float]] = {}
        self.lines: list[str] = []
        self._last_s = started_s
        self._found: dict[str, float] = {}
        listener = logging.Handler(logging.INFO)
        listener.emit = self._listen  # type: ignore[method-assign]
        for name in ("startup", "cuda.assembly"):
            logger = logging.getLogger(f"pointcode_local.engine.{name}")
            logger.addHandler(listener)
            logger.setLevel(logging.INFO)

    def _listen(self, record: logging.LogRecord) -> None:
        if record.name.endswith("startup") and isinstance(record.args, tuple):
            self._found[str(record.args[0])] = float(record.args[1])  # type: ignore[arg-type]
        else:
            self.lines.append(record.getMessage())

    def add(self, name: str) -> None:
        """What was done since the last call was this."""
        now_s = time.time()
        self.outer[name] = now_s - self._last_s
        self.inner[name], self._found = self._found, {}
        self._last_s = now_s


def measure(folder: Path, backend: str, started_s: float, cache_dir: Path, profile: bool) -> dict[str, Any]:
    """Opens the folder and asks for a token; seconds of each part, from the start of the process on."""
    parts = Parts(started_s)
    from pointcode_local.engine.assembly import assemble
    from pointcode_local.engine.engine import Engine
    from pointcode_local.engine.model_files import open_model
    from pointcode_local.engine.parts import EngineOptions

    parts.add("imports")
    files = open_model(folder, cache_dir)
    parts.add("open")
    options = EngineOptions(backend=backend, context_tokens=_CONTEXT_TOKENS, cache_dir=cache_dir)
    run = _profiled if profile else _plainly
    made = run("assemble", lambda: assemble(files, "load", options))
    parts.add("assemble")
    engine = Engine(_watched(made, run))
    parts.add("engine")
    for name in ("first token", "second request"):
        asyncio.run(_one_token(engine, f"{name} {started_s}"))
        parts.add(name)
    engine.close()
    total_s = sum(seconds for name, seconds in parts.outer.items() if name != "second request")
    return {
        "backend": made.backend,
        "to_first_token_s": total_s,
        "outer": parts.outer,
        "inner": parts.inner,
        "lines": parts.lines,
    }


Runner = Callable[[str, Callable[[], Any]], Any]


def _plainly(_name: str, work: Callable[[], Any]) -> Any:
    return work()


def _profiled(name: str, work: Callable[[], Any]) -> Any:
    """Prints what took longest in this thread, the calls that it made included."""
    profile = cProfile.Profile()
    try:
        return profile.runcall(work)
    finally:
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(_PROFILE_LINES)
        print(f"---- profile of {name}\n{text.getvalue()}", file=sys.stderr)


def _watched(made: EngineParts, run: Runner) -> EngineParts:
    """The same parts; their prefill and the making of the backend are timed."""
    from pointcode_local.engine.startup import timed

    def prefill(*arguments: Any) -> None:
        with timed("computing the prompt"):
            run("the prompt", lambda: made.prefill(*arguments))

    def make_backend() -> Any:
        with timed("making the backend"):
            return made.make_backend()

    return replace(made, prefill=prefill, make_backend=make_backend)


async def _one_token(engine: Engine, seed: str) -> None:
    """The seed makes a prompt that no earlier run left in the prefix cache."""
    from pointcode_local.engine.types import Request, TokensDecoded

    dice = random.Random(seed)
    request = Request(tuple(dice.randrange(20, 200) for _ in range(_PROMPT_TOKENS)), 1)
    async with aclosing(engine.stream(request)) as events:
        assert any([isinstance(event, TokensDecoded) async for event in events]), "no token came"


# ------------------------------------------------------------------ the process that prepares
def room(place: Path, n_bytes: int) -> None:
    """Makes the RAM disk large enough; SystemExit when that cannot be done."""
    if shutil.disk_usage(place).free < n_bytes:
        size = f"size={(n_bytes + shutil.disk_usage(place).used >> 20) + 1024}m"
        with suppress(OSError):
            subprocess.run(["mount", "-o", f"remount,{size}", str(place)], check=False)
    free = shutil.disk_usage(place).free
    if free < n_bytes:
        sys.exit(f"{place} has room for {free / 1e9:.1f} GB; {n_bytes / 1e9:.1f} GB are needed")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="load_time", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--place", type=Path, default=Path("/dev/shm"), help="a RAM disk")
    parser.add_argument("--layers", type=int, default=49, help="fewer layers for a quick look")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--runs", type=int, default=2, help="fresh processes, one after the other")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--profile", action="store_true", help="one more run, which prints what took longest")
    parser.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, default=Path(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.backend, options.started, options.cache, options.profile)))
        return 0
    from pointcode_local.engine.cuda.random_weights import north_mini

    from .full_checkpoint import checkpoint_bytes, write_checkpoint

    config = replace(north_mini(options.layers), n_experts=options.experts)
    room(options.place, checkpoint_bytes(config) + _SPARE_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="pointcode-load-", dir=options.place))
    cache = Path(tempfile.mkdtemp(prefix="pointcode-cache-"))
    try:
        begun_s = time.time()
        n_bytes = write_checkpoint(folder, config)
        took_s = time.time() - begun_s
        print(f"wrote {n_bytes / 1e9:.1f} GB in {took_s:.1f} s ({n_bytes / took_s / 1e9:.2f} GB/s)", flush=True)
        found = [_run(folder, options.backend, cache) for _ in range(options.runs)]
        if options.profile:
            _run(folder, options.backend, cache, "--profile")
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(cache)
    _print_table(found)
    return 0


def _run(folder: Path, backend: str, cache: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "tests.gpu.load_time", "--measure", str(folder), "--backend", backend, *more]
    command += ["--cache", str(cache), "--started", str(time.time())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the measured process failed ({done.returncode})")
    line = done.stdout.strip().splitlines()[-1]
    print(line, flush=True)
    return json.loads(line)


def _print_table(runs: Sequence[dict[str, Any]]) -> None:
    for i, run in enumerate(runs):
        for line in run["lines"]:
            print(f"run {i + 1}: {line}")

    def row(name: str, values: Sequence[float | None]) -> None:
        print(f"{name:42}" + "".join(f"{'' if value is None else f'{value:.2f}':>9}" for value in values))

    print(f"{'seconds':42}" + "".join(f"{f'run {i + 1}':>9}" for i in range(len(runs))))
    for part in dict.fromkeys(name for run in runs for name in run["outer"]):
        row(part, [run["outer"].get(part) for run in runs])
        for inner in dict.fromkeys(name for run in runs for name in run["inner"].get(part, {})):
            row("    " + inner, [run["inner"].get(part, {}).get(inner) for run in runs])
    row(f"to the first token ({runs[0]['backend']})", [run["to_first_token_s"] for run in runs])


if __name__ == "__main__":
    sys.exit(main())

"""From a model folder in memory to the first token: python -P -m tests.gpu.load_time [--layers 49] [--runs 2]

Writes a full-size checkpoint of random weights (61 GB) to a RAM disk, opens it in fresh processes, and deletes it. Each
process prints a line of JSON; the table comes last. Needs memory for the checkpoint beside a few GB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

_SPARE_BYTES = 1 << 30
_CONTEXT_TOKENS = 16384
_PROMPT_TOKENS = 100


# ------------------------------------------------------------------ the process that is measured
def measure(folder: Path, backend: str, started_s: float) -> dict[str, object]:
    """Opens the folder and asks for a token; seconds of each part, from the start of the process on."""
    marks: dict[str, float] = {"started": started_s}
    from pointcode_local.engine.assembly import assemble
    from pointcode_local.engine.engine import Engine
    from pointcode_local.engine.model_files import open_model
    from pointcode_local.engine.parts import EngineOptions

    marks["imports"] = time.time()
    loaded = _LoadLine()
    logging.getLogger("pointcode_local.engine.cuda.assembly").addHandler(loaded)
    logging.getLogger("pointcode_local.engine.cuda.assembly").setLevel(logging.INFO)
    files = open_model(folder)
    marks["open"] = time.time()
    parts = assemble(files, "load", EngineOptions(backend=backend, context_tokens=_CONTEXT_TOKENS))
    marks["assemble"] = time.time()
    engine = Engine(parts)
    marks["engine"] = time.time()
    for name in ("first token", "second request"):
        asyncio.run(_one_token(engine))
        marks[name] = time.time()
    engine.close()
    names = list(marks)
    seconds = {b: round(marks[b] - marks[a], 3) for a, b in zip(names, names[1:], strict=False)}
    total_s = round(marks["first token"] - marks["started"], 3)
    return {"backend": parts.backend, "seconds": seconds, "to_first_token_s": total_s, **loaded.found}


class _LoadLine(logging.Handler):
    """Keeps what the loader says of its speed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, object] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Looks for the loader's line."""
        if record.msg.startswith("loaded") and isinstance(record.args, tuple):
            gb, gb_per_s = record.args
            self.found = {"gb": gb, "gb_per_s": gb_per_s, "weights_s": round(float(gb) / float(gb_per_s), 3)}  # type: ignore[arg-type]


async def _one_token(engine: object) -> None:
    from pointcode_local.engine.engine import Engine
    from pointcode_local.engine.types import Request, TokensDecoded

    assert isinstance(engine, Engine)
    request = Request(tuple(range(20, 20 + _PROMPT_TOKENS)), 1)
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
    parser.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.backend, options.started)))
        return 0
    from pointcode_local.engine.cuda.random_weights import north_mini

    from .full_checkpoint import checkpoint_bytes, write_checkpoint

    config = replace(north_mini(options.layers), n_experts=options.experts)
    room(options.place, checkpoint_bytes(config) + _SPARE_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="pointcode-load-", dir=options.place))
    try:
        begun_s = time.time()
        n_bytes = write_checkpoint(folder, config)
        took_s = time.time() - begun_s
        print(f"wrote {n_bytes / 1e9:.1f} GB in {took_s:.1f} s ({n_bytes / took_s / 1e9:.2f} GB/s)", flush=True)
        found = [_run(folder, options.backend) for _ in range(options.runs)]
    finally:
        shutil.rmtree(folder)
    for i, one in enumerate(found):
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in one["seconds"].items())
        speed = f"weights {one['gb']:.1f} GB at {one['gb_per_s']:.2f} GB/s; " if "gb" in one else ""
        print(f"run {i + 1} ({one['backend']}): first token after {one['to_first_token_s']:.2f} s; {speed}{parts}")
    return 0


def _run(folder: Path, backend: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-P", "-m", "tests.gpu.load_time", "--measure", str(folder), "--backend", backend]
    done = subprocess.run([*command, "--started", str(time.time())], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the measured process failed ({done.returncode})")
    line = done.stdout.strip().splitlines()[-1]
    print(line, flush=True)
    return json.loads(line)


if __name__ == "__main__":
    sys.exit(main())

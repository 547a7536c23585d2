"""The server under a trace: first tokens, gaps while others are admitted, goodput, cache hits; llama.cpp in one run.

pointcode bench serve --model smollm2-135m --trace agent --peer --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from ..errors import BackendError
from ..registry import DEFAULT_MODEL, resolve
from .serve_run import ServeReport, play, report
from .serve_trace import Session, agent, shared_prefix


@contextmanager
def server(kind: str, model: Path, n_threads: int, n_slots: int, context_tokens: int) -> Generator[str]:
    """Runs a server in a process of its own and gives its base URL."""
    module = f"{__package__}.serve_child"
    command = [sys.executable, "-P", "-m", module, kind, "--model", str(model), "--threads", str(n_threads)]
    command += ["--slots", str(n_slots), "--context", str(context_tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        url = next((line.strip() for line in process.stdout if line.startswith("http")), "")
        try:
            if not url:
                raise BackendError(f"the server ({kind}) did not start")
            yield url
        finally:
            process.stdin.close()
            process.wait(60)


def measure(
    kind: str,
    model: Path,
    sessions: Sequence[Session],
    n_threads: int,
    limits: tuple[float, float],
    context_tokens: int,
) -> ServeReport:
    """Plays the sessions against a fresh server."""
    n_slots = min(8, len(sessions))
    with server(kind, model, n_threads, n_slots, context_tokens) as url:
        samples = asyncio.run(play(url, sessions))
    return report(kind, samples, *limits)


def describe(found: ServeReport) -> str:
    """The report for people."""
    return "\n".join(
        (
            f"{found.server}: {found.n_requests} requests in {found.duration_s:.1f} s, "
            f"{found.tokens_per_s:.1f} tok/s, goodput {found.goodput_tokens_per_s:.1f} tok/s, "
            f"{found.cache_hit_rate:.0%} of {found.prompt_tokens:,} prompt tokens from the cache",
            f"  first token   p50 {found.first_token_p50_s:.2f} s   p99 {found.first_token_p99_s:.2f} s",
            f"  gap           p50 {found.gap_p50_ms:.0f} ms   p99 {found.gap_p99_ms:.0f} ms",
            f"  … admitting   p50 {found.gap_admitting_p50_ms:.0f} ms   p99 {found.gap_admitting_p99_ms:.0f} ms",
        )
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmark's options."""
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--trace", choices=("shared", "agent"), default="shared")
    parser.add_argument(
        "--requests", type=int, default=12, help="requests of the shared trace, sessions of the agent's"
    )
    parser.add_argument("--turns", type=int, default=0, help="of each of the agent's sessions; 0: all")
    parser.add_argument("--rate", type=float, default=0.5, help="arrivals a second")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, default=4096, help="tokens of context of each slot of llama.cpp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first-token-limit", type=float, default=5.0, metavar="S", help="what goodput accepts")
    parser.add_argument("--gap-limit", type=float, default=500.0, metavar="MS", help="p99 that goodput accepts")
    parser.add_argument("--peer", action="store_true", help="also play it to llama.cpp's server (package xllamacpp)")
    parser.add_argument("--json", action="store_true")
    parser.epilog = "with --random-weights (which has a help of its own): what serving loses against the bare batch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--random-weights" in given:
        from .serve_loss import main as serve_random

        return serve_random(given)
    parser = argparse.ArgumentParser(prog="pointcode bench serve", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    options = parser.parse_args(arguments)
    path = resolve(options.model)
    if options.trace == "shared":
        sessions = shared_prefix(options.requests, options.rate, options.seed)
    else:
        sessions = agent(options.requests, 1 / options.rate, n_turns=options.turns)
    kinds = ["ours"]
    if options.peer and path.suffix == ".gguf" and find_spec("xllamacpp"):
        kinds.append("llamacpp")
    limits = (options.first_token_limit, options.gap_limit)
    found = [measure(kind, path, sessions, options.threads, limits, options.context) for kind in kinds]
    if options.json:
        about = {"model": options.model, "machine": platform.machine(), "threads": options.threads}
        print(json.dumps({**about, "trace": options.trace, "servers": [asdict(one) for one in found]}))
    else:
        print("\n".join(map(describe, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

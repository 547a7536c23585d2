"""What serving costs: the same batch through the decode service alone, then as concurrent streams over real HTTP.

pointcode bench serve --random-weights --streams 8 --context 8192 --tokens 1024 --json
Weights are made (or loaded) once; the clients are a process of their own. With random weights of North Mini Code's full
shape it needs a GPU and no checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ..chat_model import LocalChatModel
from ..engine import Engine
from ..errors import BackendError
from ..kv_cache import FULL, SLIDING, SequencePages
from ..model_files import ModelFiles
from ..models.config import ModelConfig
from ..parts import EngineOptions, EngineParts
from ..server import create_app, run_server
from ..sockets import listen_tcp
from .random_files import random_files
from .serve_load import LoadReport, prompt_ids
from .service_run import ServiceRow, run_service

ALLOWED_LOSS = 0.05
_SPARE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Load:
    """Streams at once, tokens of each prompt, tokens asked for; how often the batch runs without a server."""

    n_streams: int
    context_tokens: int
    n_tokens: int
    repeats: int


@dataclass(frozen=True, slots=True)
class LossReport:
    """Tokens a second of all streams: through the decode service alone (best of the repeats), and what clients get."""

    load: Load
    backend: str
    alone_tokens_per_s: float
    http: LoadReport
    loss: float

    def describe(self) -> str:
        """For people."""
        return (
            f"{self.load.n_streams} streams at {self.load.context_tokens} tokens ({self.backend}): "
            f"{self.alone_tokens_per_s:.1f} tok/s without a server, {self.http.tokens_per_s:.1f} tok/s over HTTP: "
            f"{self.loss:.1%} lost (allowed {ALLOWED_LOSS:.0%}; all live for {self.http.window_s:.1f} s, "
            f"{self.http.window_tokens} tokens; longest gap {self.http.longest_gap_ms:.0f} ms)"
        )


def measure_loss(parts: EngineParts, files: ModelFiles, load: Load) -> LossReport:
    """Both measurements over the same weights and prompts. The parts are used up. Raises BackendError."""
    alone = _alone(parts, load)
    http = asyncio.run(_over_http(parts, files, load))
    return LossReport(load, parts.backend, alone, http, 1 - http.tokens_per_s / alone)


def _alone(parts: EngineParts, load: Load) -> float:
    """Prompts are computed as the engine computes them, then the batch decodes."""
    prompts = [prompt_ids(r, load.context_tokens, parts.vocab) for r in range(load.n_streams)]
    started = [_prefilled(parts, prompt, load.n_tokens) for prompt in prompts]
    rows = [_service_row(prompt, pages) for prompt, pages in zip(prompts, started, strict=True)]
    backend = parts.make_backend()
    seconds = [run_service(backend, rows, load.n_tokens) for _ in range(load.repeats)]
    for pages in started:
        pages.release()
    return load.n_streams * load.n_tokens / min(seconds)


def _prefilled(parts: EngineParts, prompt: Sequence[int], n_new: int) -> SequencePages:
    pages, last = SequencePages(parts.kv), len(prompt) - 1  # the last token is the first step's
    for begin in range(0, last, parts.limits.chunk_tokens):
        end = min(begin + parts.limits.chunk_tokens, last)
        pages.grow(end)
        parts.prefill(prompt, begin, end, pages, lambda part: None)
        pages.slide(end)
    pages.grow(len(prompt) + n_new)
    return pages


def _service_row(prompt: Sequence[int], pages: SequencePages) -> ServiceRow:
    full, sliding = (np.maximum(np.asarray(pages.tables[group], np.int32), 0) for group in (FULL, SLIDING))
    return ServiceRow(np.asarray(prompt, np.int32), full, sliding)


async def _over_http(parts: EngineParts, files: ModelFiles, load: Load) -> LoadReport:
    chat = LocalChatModel(Engine(parts), files)
    stop = asyncio.Event()
    with listen_tcp("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(run_server(create_app(chat), [listener], stop=stop, signals=False))
        try:
            return await _client(f"http://127.0.0.1:{listener.getsockname()[1]}", parts.vocab, load)
        finally:
            stop.set()
            await serving
            await chat.aclose()


async def _client(url: str, vocab: int, load: Load) -> LoadReport:
    command = [sys.executable, "-P", "-m", f"{__package__}.serve_load", url, "--streams", str(load.n_streams)]
    command += ["--context", str(load.context_tokens), "--tokens", str(load.n_tokens), "--vocab", str(vocab)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    if child.returncode:
        raise BackendError("the clients' process failed")
    return LoadReport(**json.loads(output))


def random_parts(config: ModelConfig, load: Load) -> EngineParts:
    """An engine of random weights on the GPU that holds the load; raises BackendError where it cannot run."""
    from ..cuda.assembly import choose_backend, parts_with
    from ..cuda.random_weights import random_model

    context_tokens = load.context_tokens + load.n_tokens + _SPARE_TOKENS
    options = EngineOptions()
    # A prompt of random tokens has nothing to draft from; without drafts both measurements run the same steps.
    options = replace(options, limits=replace(options.limits, drafts=False, max_rows=load.n_streams))
    backend = choose_backend(config, "megakernel")
    made = parts_with(
        config, lambda device, packed: random_model(config, device, packed=packed), options, context_tokens, backend
    )
    return EngineParts(
        name="random-weights",
        vocab=config.vocab,
        context_tokens=context_tokens,
        n_threads=1,
        kv=made.kv,
        prefill=made.prefill,
        make_backend=made.make_backend,
        limits=made.limits,
        backend=backend,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit code says whether the loss is allowed."""
    from ..cuda.random_weights import north_mini

    parser = argparse.ArgumentParser(
        prog="pointcode bench serve --random-weights", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--random-weights", action="store_true", help="the only source of weights here")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--context", type=int, default=8192, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens that each stream asks for")
    parser.add_argument("--repeats", type=int, default=2, help="runs without a server")
    parser.add_argument("--layers", type=int, default=49, help="fewer layers for a quick look")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    load = Load(options.streams, options.context, options.tokens, options.repeats)
    config = north_mini(options.layers)
    begun_s = time.perf_counter()
    try:
        parts = random_parts(config, load)
        made_s = time.perf_counter() - begun_s
        found = measure_loss(parts, random_files(config), load)
    except BackendError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    seconds = {"weights_s": made_s, "total_s": time.perf_counter() - begun_s}
    if options.json:
        sys.stdout.write(json.dumps({"benchmark": "serve", **asdict(found), **seconds}) + "\n")
    else:
        sys.stdout.write(f"{found.describe()}\nweights in {made_s:.1f} s, all in {seconds['total_s']:.1f} s\n")
    return 0 if found.loss <= ALLOWED_LOSS else 1


if __name__ == "__main__":
    sys.exit(main())

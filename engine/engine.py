"""Engine: open a model, stream requests, close."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import _native
from .constrain import GrammarState, MaskWorker
from .control import ControlPlane
from .errors import ContextOverflow, RequestError
from .job import Job, Move
from .kv_cache import PAGE_TOKENS, PageCounts
from .parts import DEFAULT_OPTIONS, EngineOptions, EngineParts, model_name
from .prefix_cache import PrefixCache
from .sampling import check_sampling, native_sampling
from .streams import StreamHub
from .types import LiveRequest, Request, StreamFinished, TokenEvent


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Numbers for health checks and metrics.

    `busy_s` is time inside decode steps. `drafted` tokens were tried ahead in them, of which `accepted` were right.
    """

    steps: int
    busy_s: float
    n_rows: int
    n_waiting: int
    n_finished: int
    n_restarts: int
    n_preempted: int
    prefill_tokens: int
    prefill_s: float
    pages: tuple[PageCounts, ...]
    error: str | None
    drafted: int = 0
    accepted: int = 0
    requests: tuple[LiveRequest, ...] = ()
    prefill_layers: int = 0


class Engine:
    """A model that continues token ids. `stream` may be used from several tasks and event loops at once."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._service = _native.DecodeService()
        self._prefix = PrefixCache(parts.kv, parts.salt, parts.store)
        self._hub = StreamHub(self._service)
        self._masks = MaskWorker(self._service)
        self._control = ControlPlane(
            self._service,
            self._prefix,
            parts.prefill,
            parts.make_backend,
            parts.limits,
            parts.grammars.prepare if parts.grammars is not None else None,
        )
        self._numbers = itertools.count(1)
        # Also when the engine is dropped or the process ends: a thread must not wake up in a dying interpreter.
        self._stop = weakref.finalize(self, _stop_threads, self._control, self._service, self._masks)

    @classmethod
    def open(cls, model: str | Path, options: EngineOptions = DEFAULT_OPTIONS) -> Engine:
        """Opens a model by path, registered name or hub id. Raises ModelError, DownloadError, BackendError."""
        from .assembly import assemble
        from .model_files import open_model
        from .registry import resolve

        files = open_model(resolve(str(model)), options.cache_dir)
        return cls(assemble(files, model_name(model), options))

    @property
    def name(self) -> str:
        """The model's public name."""
        return self._parts.name

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self._parts.vocab

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus answer."""
        return min(self._parts.context_tokens, self._parts.kv.max_tokens)

    async def stream(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """Events of one request, StreamFinished last. Closing the iterator cancels within one step.

        Raises RequestError for what cannot be served, CapacityError when the queue is full or the prompt finds no
        pages, BackendError when the engine is closed.
        """
        request = self._checked(request)
        number = next(self._numbers)
        constraint = await self._constraint(request)
        with (
            self._hub.open(number, len(request.token_ids)) as stream,
            self._rows_of(number, constraint) as (move, states),
        ):
            job = Job(
                number,
                request,
                native_sampling(request.sampling),
                lambda item: self._hub.report(number, item),
                move,
                constraint,
            )
            try:
                self._control.submit(job)
                while True:
                    event = await stream.next()
                    yield _held_to(event, states) if isinstance(event, StreamFinished) else event
                    if isinstance(event, StreamFinished):
                        return
            finally:
                self._control.cancel(job)

    @contextmanager
    def _rows_of(self, number: int, state: GrammarState | None) -> Generator[tuple[Move, list[GrammarState]]]:
        """Makes the request's grammar known, and gives what a row that was taken out of the batch comes back with: a
        number of its own, so that late tokens and questions of the earlier row mean no other, and a grammar state.
        The list holds the states of all its rows.
        """
        rows = [number]
        states = [] if state is None else [state]

        def move(output: Sequence[int]) -> tuple[int, GrammarState | None]:
            row = next(self._numbers)
            rows.append(row)  # first: what is added for it below is removed with it, or not added any more
            self._hub.alias(number, row)
            moved = state.replayed(output) if state is not None else None
            if moved is not None:
                states.append(moved)
                self._masks.add_row(number, row, moved)
            return row, moved

        if state is not None:
            self._masks.add(number, state)
        try:
            yield move, states
        finally:
            for row in rows:
                self._masks.remove(row)

    def stats(self) -> EngineStats:
        """A snapshot, from any thread."""
        counters = self._control.counters
        return EngineStats(
            steps=self._service.steps,
            busy_s=self._service.busy_ns * 1e-9,
            n_rows=self._control.n_rows,
            n_waiting=self._control.n_waiting,
            n_finished=counters.n_finished,
            n_restarts=counters.n_restarts,
            n_preempted=counters.n_preempted,
            prefill_tokens=counters.prefill_tokens,
            prefill_s=counters.prefill_s,
            pages=tuple(pool.counts() for pool in self._parts.kv.pools),
            error=str(self._control.dead) if self._control.dead else None,
            drafted=self._service.drafted,
            accepted=self._service.accepted,
            requests=self._requests(),
            prefill_layers=counters.prefill_layers,
        )

    def _requests(self) -> tuple[LiveRequest, ...]:
        n_new = self._hub.n_tokens()
        return tuple(replace(r, new_tokens=n_new.get(r.id, 0)) for r in self._control.requests())

    @property
    def backend(self) -> str:
        """What decodes: "megakernel", "torch" or "cpu"; "" for parts put together by hand."""
        return self._parts.backend

    @property
    def n_threads(self) -> int:
        """Threads of the CPU backend."""
        return self._parts.n_threads

    @property
    def page_tokens(self) -> int:
        """Tokens of a KV page."""
        return PAGE_TOKENS

    @property
    def max_rows(self) -> int:
        """Requests that are decoded at once."""
        return self._parts.limits.max_rows

    def step_bytes(self, n_rows: int, context_tokens: int) -> int:
        """Bytes that a step of `n_rows` rows of this length must read; 0 where that is not known."""
        count = self._parts.step_bytes
        return count(max(1, n_rows), context_tokens) if count else 0

    def read_bytes_per_s(self) -> float:
        """Bytes a second that the memory gives, measured on a CPU (up to a second); 0 where that is not known."""
        measure = self._parts.read_bytes_per_s
        return measure() if measure else 0.0

    def close(self) -> None:
        """Ends all requests, saves the prefix cache, frees threads and memory. Idempotent."""
        if self._stop() is None:
            return
        self._prefix.save()

    def schema_problem(self, schema: Mapping[str, object]) -> str:
        """Why no output can be held to this JSON schema; "" when it can be. Takes milliseconds, or seconds."""
        return self._parts.grammars.problem_of(schema) if self._parts.grammars is not None else ""

    def check_length(self, n_prompt: int) -> None:
        """Raises ContextOverflow for a prompt of so many tokens that none can follow."""
        if n_prompt >= self.context_tokens:
            raise ContextOverflow(
                f"the prompt has {n_prompt} tokens, but the context holds {self.context_tokens} with the answer",
                prompt_tokens=n_prompt,
                context_tokens=self.context_tokens,
            )

    def check(self) -> None:
        """Raises AssertionError when the page books do not balance; only while no request is under way."""
        self._prefix.check()

    def _checked(self, request: Request) -> Request:
        n_prompt = len(request.token_ids)
        if n_prompt == 0:
            raise RequestError("the prompt is empty")
        self.check_length(n_prompt)
        if request.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {request.max_tokens}")
        bad = next((t for t in (*request.token_ids, *request.stop_ids) if not 0 <= t < self.vocab), None)
        if bad is not None:
            raise RequestError(f"token {bad} is outside the vocabulary of {self.vocab}")
        check_sampling(request.sampling, self.vocab)
        return replace(request, max_tokens=min(request.max_tokens, self.context_tokens - n_prompt))

    async def _constraint(self, request: Request) -> GrammarState | None:
        """Compiled in a thread of its own: a large schema must not hold up the streams of this event loop."""
        if request.grammar is None:
            return None
        if self._parts.grammars is None:
            raise RequestError("this engine has no tokenizer and cannot apply a grammar")
        return await asyncio.to_thread(self._parts.grammars.compile, request.grammar, request.stop_ids)


def _held_to(end: StreamFinished, states: Sequence[GrammarState]) -> StreamFinished:
    """The end, as an error where the output could not be held to its grammar any more."""
    problem = next((state.problem for state in states if state.problem), "")
    if not problem or end.reason == "error":
        return end
    return replace(end, reason="error", error=f"the output cannot be held to its grammar: {problem}")


def _stop_threads(control: ControlPlane, service: _native.DecodeService, masks: MaskWorker) -> bool:
    control.close()
    service.close()
    masks.close()
    return True

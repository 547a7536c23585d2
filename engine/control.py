"""The control plane: one thread that admits requests, computes prompts in chunks, and changes the batch while the
decode thread is parked.

A request is *waiting*, then *prefilling* (at most one at a time, others go on decoding), then a *row* of the batch.
Only this thread touches pages and the prefix cache.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from . import _native
from ._native import Notice, RowEnd
from .control_parts import ControlCounters, ControlLimits, Prefill, PrefillCancelled
from .errors import BackendError, CapacityError, EngineError
from .job import Job
from .kv_cache import FULL, PAGE_TOKENS, SLIDING, SequencePages
from .prefix_cache import PrefixCache
from .types import LiveRequest
from .waiting import WaitingJobs

_LOG = logging.getLogger(__name__)
PARK_TIMEOUT_S = 60.0  # longer than any bounded wait inside a backend
IDLE_WAIT_S = 1.0  # everything that matters wakes the thread; a scripted prompt comes sooner after the start
SAVED_PAGES = 4  # new pages worth a write of the prefix file while the process lives
RESERVE_TOKENS = 4 * PAGE_TOKENS  # pages a row gets ahead of its position


class ControlPlane:
    """Owns the thread. `make_backend` builds the decode backend, at the start and after a failure."""

    def __init__(
        self,
        service: _native.DecodeService,
        prefix: PrefixCache,
        prefill: Prefill,
        make_backend: Callable[[], _native.StepBackend],
        limits: ControlLimits,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.counters = ControlCounters()
        self.dead: EngineError | None = None
        self._service = service
        self._prefix = prefix
        self._prefill = prefill
        self._make_backend = make_backend
        self._limits = limits
        self._prepare = prepare  # what later requests need; done in the first idle moment
        self._waiting = WaitingJobs(limits.max_waiting)
        self._ready: list[Job] = []
        self._rows: dict[int, Job] = {}
        self._starved = False  # the prefilling job waits for a row to end
        self._closing = False
        self._saved = False
        with self._parked():
            self._set_backend()
        self._thread = threading.Thread(target=self._run, name="engine-control", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread
    def submit(self, job: Job) -> None:
        """Queues a job; raises CapacityError when the queue is full, BackendError when the engine is dead or closed."""
        self._waiting.add(job)
        self._service.wake()

    def cancel(self, job: Job) -> None:
        """Marks a job; it stops within one decode step or one layer of prefill. Harmless when it has ended."""
        job.cancelled = True
        self._service.cancel(job.row)
        self._service.wake()

    @property
    def n_waiting(self) -> int:
        """Requests that are not in the batch yet."""
        return len(self._waiting) + len(self._ready)

    @property
    def n_rows(self) -> int:
        """Requests in the batch."""
        return len(self._rows)

    def requests(self) -> list[LiveRequest]:
        """What is under way, oldest first; a snapshot, from any thread."""
        waiting = self._waiting.all()
        rows = [job.live("writing") for job in [*self._rows.values(), *self._ready]]
        held = [job.live("waiting" if job.pages is None else "reading") for job in waiting]
        return sorted((*rows, *held), key=lambda request: request.id)

    def close(self) -> None:
        """Stops the thread; requests that are under way end with an error."""
        self._closing = True
        self._waiting.refuse("the engine is closed")
        self._service.wake()
        self._thread.join()

    # ------------------------------------------------------------------ the loop
    def _run(self) -> None:
        error: EngineError = BackendError("the control plane failed")  # what a fault of ours looks like from outside
        try:
            while not self._closing:
                busy = self._next_to_prefill() is not None
                self._turn(self._service.wait_notices(0.0 if busy else IDLE_WAIT_S))
            error = BackendError("the engine is closed")
        except EngineError as failure:
            error = failure
        finally:
            self._die(error)

    def _turn(self, notices: int) -> None:
        if not notices:
            self._use_idle_moment()
        self._drop_cancelled()
        if notices & (Notice.ENDED | Notice.PAGES | Notice.FAILED):
            with self._parked():
                self._retire_rows()
                if notices & Notice.FAILED:
                    self._restart()
                self._extend_rows()
            self._starved = False
        self._make_room()
        job = self._next_to_prefill()
        if job is not None:
            self._advance(job)
        if self._ready:
            with self._parked():
                self._retire_rows()
                self._join_rows()

    def _use_idle_moment(self) -> None:
        """The first one after a longer prompt writes it to disk, in case the process is killed later."""
        if self._rows or self._waiting:
            return
        if not self._saved and self._prefix.n_unsaved >= SAVED_PAGES:
            self._saved = self._prefix.save()
        prepare, self._prepare = self._prepare, None
        if prepare is not None:
            try:
                prepare()
            except (OSError, ImportError, MemoryError) as error:  # the first request that needs it tries again
                _LOG.warning("nothing could be prepared: %s", error)

    @contextmanager
    def _parked(self) -> Generator[None]:
        if not self._service.park(PARK_TIMEOUT_S):
            raise BackendError(f"the decode step did not end within {PARK_TIMEOUT_S:.0f} s")
        yield
        self._service.resume()

    def _die(self, error: EngineError) -> None:
        """Ends every job. The rows' pages are released only where the service is parked (it may hang in a step)."""
        self.dead = error
        self._waiting.refuse(f"the engine stopped: {error}", error)
        waiting = self._waiting.take_all()
        _LOG.info("the control plane stops: %s", error)
        parked = self._service.park(PARK_TIMEOUT_S if self._closing else 0.0)
        if parked and self._closing:
            self._retire_rows()  # an answer that has just ended is still to be saved
        for job in [*waiting, *self._ready, *self._rows.values()]:
            if parked and job.pages is not None:
                if job.row in self._rows:
                    self._service.remove_row(job.row)
                job.release()
            job.report(error)
        self._ready.clear()
        self._rows.clear()
        self._closing = True

    # ------------------------------------------------------------------ prefill
    def _next_to_prefill(self) -> Job | None:
        """The most urgent waiting job, if a place in the batch is free for it."""
        return None if self._starved or self._is_full else self._waiting.most_urgent()

    @property
    def _is_full(self) -> bool:
        return len(self._rows) + len(self._ready) >= self._limits.max_rows

    def _drop_cancelled(self) -> None:
        dropped = [job for job in self._ready if job.cancelled]  # asked once: any thread may cancel meanwhile
        self._ready = [job for job in self._ready if job not in dropped]
        for job in [*self._waiting.take_cancelled(), *dropped]:
            job.release()
            self._starved = False  # there are more pages now, or it was the one that wanted them

    def _advance(self, job: Job) -> None:
        """One chunk of the job's prompt; makes it ready after the last."""
        ids = job.request.token_ids
        if job.pages is None:
            job.pages = self._prefix.attach(ids)
            job.n_done = job.n_cached = job.pages.n_valid
            job.report_progress()
        try:
            end = self._cover_chunk(job, job.pages)
            self._compute(job, job.pages, end)
        except PrefillCancelled:
            return  # dropped in the next turn
        except CapacityError as error:
            self._starve(job, error)
            return
        # torch: out of memory, a CUDA fault; it is imported for the first long prompt, which needs files
        except (RuntimeError, MemoryError, OSError, ImportError) as error:
            self._give_up(job, BackendError(f"computing the prompt failed: {error}"))
            return
        if job.n_done == job.n_prefill:
            self._waiting.remove(job)
            if job.constraint is not None:
                job.first_masks = job.constraint.start()
            self._ready.append(job)

    def _cover_chunk(self, job: Job, pages: SequencePages) -> int:
        """Takes pages for the next chunk, long while nobody decodes, and returns its end; or raises CapacityError."""
        if not self._rows and not self._ready:
            with suppress(CapacityError):
                return self._cover(job, pages, self._limits.longest_chunk)
        return self._cover(job, pages, self._limits.chunk_tokens)

    def _cover(self, job: Job, pages: SequencePages, n_tokens: int) -> int:
        end = min(job.n_prefill, job.n_done + n_tokens)
        pages.grow(end + (min(RESERVE_TOKENS, job.request.max_tokens) if end == job.n_prefill else 0))
        return end

    def _compute(self, job: Job, pages: SequencePages, end: int) -> None:
        if end == job.n_done:
            return
        ids = job.request.token_ids
        start_s = time.perf_counter()
        self._service.set_shared(True)
        try:
            self._prefill(ids, job.n_done, end, pages, lambda part: self._at_layer(job, end, part))
        finally:
            self._service.set_shared(False)
        self.counters.add_chunk(end - job.n_done, time.perf_counter() - start_s)
        job.n_done = end
        self._prefix.register(ids, pages, end)
        pages.slide(end)
        job.report_progress()

    def _at_layer(self, job: Job, end: int, part: float) -> None:
        self.counters.prefill_layers += 1
        if job.cancelled or self._closing:
            raise PrefillCancelled
        job.report_within_chunk(round(part * (end - job.n_done)), self._limits.progress_s)

    def _starve(self, job: Job, error: CapacityError) -> None:
        """No page is free: take those of less urgent prompts and rows, else wait for a row to end, else give up."""
        if self._reclaim_from_waiting(except_for=job) or self._preempt_below(job.request.priority):
            return
        if self._rows or self._ready:
            self._starved = True
            return
        self._give_up(job, error)

    def _give_up(self, job: Job, error: EngineError) -> None:
        self._waiting.remove(job)
        job.release()
        job.report(error)

    def _reclaim_from_waiting(self, except_for: Job | None) -> bool:
        """Releases the pages of half-computed prompts (the prefix cache keeps its own); True when there were any."""
        holders = [job for job in self._waiting.all() if job.pages is not None and job is not except_for]
        for job in holders:
            job.release()
        return bool(holders)

    # ------------------------------------------------------------------ batch changes (parked)
    def _join_rows(self) -> None:
        for job in self._ready:
            assert job.pages is not None
            self._service.add_row(
                job.row,
                np.asarray(job.request.token_ids, np.int32),
                job.request.max_tokens,
                sorted(job.request.stop_ids),
                job.sampling,
                *job.pages.arrays(),
                *job.first_masks,
            )
            self._rows[job.row] = job
            if job.cancelled:  # set before the row existed: mark it now
                self._service.cancel(job.row)
        self._ready.clear()

    def _retire_rows(self) -> None:
        for request, end, n_cached, _, _ in self._service.rows():
            if end == RowEnd.RUNNING:
                continue
            job = self._rows.pop(request)
            assert job.pages is not None
            ids = self._service.remove_row(request)
            if end == RowEnd.NAN:
                self._prefix.forget(job.pages)
            elif end != RowEnd.BACKEND:
                self._prefix.register(ids, job.pages, n_cached)
                self._prefix.register_rest(ids, job.pages, n_cached)
            job.release()
            self.counters.n_finished += 1

    def _extend_rows(self) -> None:
        for row, end, position, n_generated, n_pages in self._service.rows():
            job = self._rows.get(row)
            if job is None or job.pages is None or end != RowEnd.RUNNING:
                continue
            wanted = position + min(RESERVE_TOKENS, job.request.max_tokens - n_generated)
            if wanted <= n_pages * PAGE_TOKENS:
                continue
            job.pages.slide(position)
            if self._grow(job, job.pages, position + 1, wanted):
                for group, table in zip((FULL, SLIDING), job.pages.arrays(), strict=True):
                    self._service.set_pages(row, group, table)

    def _grow(self, job: Job, pages: SequencePages, least: int, wanted: int) -> bool:
        """To `wanted` tokens if possible, else to `least`, else with the pages of half-computed prompts and of less
        urgent rows. False: this row is the least urgent; it has left the batch and comes back when pages are free.
        """
        for n_tokens in (wanted, least):
            with suppress(CapacityError):
                pages.grow(n_tokens)
                return True
        self._reclaim_from_waiting(except_for=None)
        while True:
            try:
                pages.grow(least)
                return True
            except CapacityError as error:
                victim = max(self._rows.values(), key=lambda row: row.urgency)
                if victim is job and len(self._rows) == 1:
                    self._service.remove_row(self._rows.pop(job.row).row)
                    job.release()
                    job.report(error)
                    return False
                self._preempt(victim)
                if victim is job:
                    return False

    # ------------------------------------------------------------------ preemption by recompute
    def _make_room(self) -> None:
        """Takes a row out of a full batch when a more urgent request waits."""
        urgent = self._waiting.most_urgent() if self._is_full else None
        if urgent is not None:
            self._preempt_below(urgent.request.priority)

    def _preempt_below(self, priority: int) -> bool:
        """Takes the least urgent row with a lower priority out of the batch; False when there is none."""
        if all(job.request.priority >= priority for job in self._rows.values()):
            return False
        with self._parked():
            self._retire_rows()
            rows = [job for job in self._rows.values() if job.request.priority < priority]
            if rows:
                self._preempt(max(rows, key=lambda job: job.urgency))
        self._starved = False
        return True

    def _preempt(self, job: Job) -> None:
        """The row waits again, its output as part of its prompt; what it has computed stays cached while room is."""
        assert job.pages is not None
        position, n_generated = next((p, n) for row, _, p, n, _ in self._service.rows() if row == job.row)
        ids = self._service.remove_row(self._rows.pop(job.row).row)
        self._prefix.register(ids, job.pages, position)
        self._prefix.register_rest(ids, job.pages, position)
        job.release()
        job.n_earlier += n_generated
        job.request = replace(job.request, token_ids=tuple(ids), max_tokens=job.request.max_tokens - n_generated)
        job.row, job.constraint = job.move(ids[len(ids) - job.n_earlier :])
        self.counters.n_preempted += 1
        self._waiting.add_back(job)

    def _restart(self) -> None:
        _LOG.warning("the decode backend failed and is rebuilt: %s", self._service.error)
        self.counters.n_restarts += 1
        self._service.set_backend(None)
        self._set_backend()

    def _set_backend(self) -> None:
        try:
            self._service.set_backend(self._make_backend())
            self._service.set_drafts(self._limits.drafts)
        except RuntimeError as error:
            raise BackendError(f"the decode backend could not be built: {error}") from error

"""The requests that are not in the batch yet: any thread adds one, the control thread serves them."""

from __future__ import annotations

import threading

from .errors import BackendError, CapacityError, EngineError
from .job import Job


class WaitingJobs:
    """At most `limit` of a priority or above wait; a job that was in the batch and comes back always has a place."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs: list[Job] = []
        self._refusal: tuple[str, EngineError | None] | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """A new one; raises CapacityError when too many wait, BackendError after `refuse`."""
        with self._lock:
            if self._refusal is not None:
                message, cause = self._refusal
                raise BackendError(message) from cause
            n_before = sum(other.request.priority >= job.request.priority for other in self._jobs)
            if n_before >= self._limit:  # a flood of others must not shut out the person at the keyboard
                raise CapacityError(f"{n_before} requests are waiting already; try again later")
            self._jobs.append(job)

    def add_back(self, job: Job) -> None:
        """One that had to leave the batch."""
        with self._lock:
            self._jobs.append(job)

    def refuse(self, message: str, cause: EngineError | None = None) -> None:
        """From now on `add` raises this."""
        with self._lock:
            self._refusal = message, cause

    def all(self) -> list[Job]:
        """Those that wait now."""
        with self._lock:
            return list(self._jobs)

    def most_urgent(self) -> Job | None:
        """The next one to serve."""
        return min(self.all(), key=lambda job: job.urgency, default=None)

    def remove(self, job: Job) -> None:
        """It waits no more."""
        with self._lock:
            self._jobs.remove(job)

    def take_cancelled(self) -> list[Job]:
        """Removes those that nobody wants any more."""
        with self._lock:
            dropped = [job for job in self._jobs if job.cancelled]  # asked once: any thread may cancel meanwhile
            self._jobs = [job for job in self._jobs if job not in dropped]
        return dropped

    def take_all(self) -> list[Job]:
        """Removes all."""
        with self._lock:
            taken, self._jobs = self._jobs, []
        return taken

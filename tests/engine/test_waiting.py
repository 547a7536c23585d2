"""The queue before the batch: who is refused, who goes first, what a cancel does."""

from __future__ import annotations

import pytest

from pointcode_local.engine._native import SamplingConfig
from pointcode_local.engine.errors import BackendError, CapacityError
from pointcode_local.engine.job import Job
from pointcode_local.engine.types import Request
from pointcode_local.engine.waiting import WaitingJobs


def job(number: int, priority: int = 0) -> Job:
    request = Request((1, 2), 1, priority=priority)
    return Job(number, request, SamplingConfig(), report=lambda outcome: None, move=lambda ids: (number, None))


def test_the_most_urgent_is_the_oldest_of_the_highest_priority() -> None:
    waiting = WaitingJobs(9)
    for made in (job(1), job(3, priority=1), job(2, priority=1)):
        waiting.add(made)
    assert waiting.most_urgent() is waiting.all()[2]
    assert WaitingJobs(9).most_urgent() is None


def test_a_full_queue_refuses_but_neither_the_more_urgent_nor_who_comes_back() -> None:
    waiting = WaitingJobs(2)
    waiting.add(job(1))
    waiting.add(job(2))
    with pytest.raises(CapacityError, match="2 requests are waiting"):
        waiting.add(job(3))
    waiting.add(job(4, priority=1))
    waiting.add_back(job(5))
    assert [made.id for made in waiting.all()] == [1, 2, 4, 5]


def test_a_closed_queue_says_why_and_gives_up_what_it_holds() -> None:
    waiting, cause = WaitingJobs(2), BackendError("no power")
    waiting.add(job(1))
    waiting.refuse("the engine stopped: no power", cause)
    with pytest.raises(BackendError, match="no power") as caught:
        waiting.add(job(2))
    assert caught.value.__cause__ is cause
    assert [made.id for made in waiting.take_all()] == [1]
    assert not len(waiting)


class CancelledMeanwhile(Job):
    """Cancelled by another thread just after it was looked at."""

    @property
    def cancelled(self) -> bool:  # type: ignore[override]
        looked, self.n_earlier = self.n_earlier, self.n_earlier + 1
        return looked > 0

    @cancelled.setter
    def cancelled(self, value: bool) -> None:  # type: ignore[override]
        pass


def test_a_cancelled_one_is_handed_over_once_and_never_lost() -> None:
    waiting = WaitingJobs(3)
    kept, dropped = job(1), job(2)
    meanwhile = CancelledMeanwhile(3, *(getattr(kept, name) for name in ("request", "sampling", "report", "move")))
    for made in (kept, dropped, meanwhile):
        waiting.add(made)
    dropped.cancelled = True
    assert waiting.take_cancelled() == [dropped]
    assert waiting.all() == [kept, meanwhile]
    assert waiting.take_cancelled() == [meanwhile]

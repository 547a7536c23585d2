"""Schedules that an earlier process proved with the same checker need no second proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from . import schedule_check, schedule_fields, task_access, tasks
from .memo import Proofs, digest, source_digest
from .schedule_check import check
from .scheduler import Schedule
from .tasks import ModelPlan


def prove(plan: ModelPlan, schedules: Sequence[Schedule], proofs: Proofs | None = None) -> None:
    """Returns if all are sound, ScheduleError for one that must not run. Those that `proofs` knows are not checked."""
    proofs = proofs or Proofs(None)
    proof = source_digest(schedule_check.__file__, schedule_fields.__file__, task_access.__file__, tasks.__file__)
    base = digest(proof, repr(plan).encode())
    keys = [digest(base, *_content(schedule)) for schedule in schedules]
    for schedule, key in zip(schedules, keys, strict=True):
        if not proofs.has(key):
            check(plan, schedule)
    proofs.add(keys)


def _content(schedule: Schedule) -> tuple[bytes, ...]:
    """All of a schedule, as bytes."""
    arrays = {"tasks": schedule.tasks, "offsets": schedule.offsets}
    rest = {f.name: getattr(schedule, f.name) for f in fields(schedule) if f.name not in arrays}
    return (*(a.tobytes() for a in arrays.values()), repr(rest).encode())

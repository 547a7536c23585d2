"""`/jobs`: the commands that the model left running, and how to end one."""

from __future__ import annotations

from collections.abc import Sequence

from pointcode_local.frontend import Host, HostError, JobInfo
from pointcode_local.render import one_line, short_seconds

_SHOWN_CHARS = 200


async def jobs_command(host: Host, argument: str) -> str:
    """What `/jobs` (argument "") or `/jobs stop N` has to tell. Raises HostError."""
    match argument.split():
        case []:
            return jobs_text(host.jobs())
        case ["stop", id]:
            return await host.stop_job(id)
        case _:
            raise HostError("usage: /jobs, or /jobs stop N")


def jobs_text(jobs: Sequence[JobInfo]) -> str:
    """Each with its last line of output below it."""
    lines: list[str] = []
    for job in jobs:
        lines.append(f"{job.id}, for {short_seconds(job.age_s)}: {one_line(job.command, _SHOWN_CHARS)}")
        if last := one_line(job.last_line, _SHOWN_CHARS):
            lines.append(f"    {last}")
    if not lines:
        return "The model left no command running."
    return "\n".join([*lines, "/jobs stop N ends one."])

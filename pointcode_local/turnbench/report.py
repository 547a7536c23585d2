"""What `pointcode bench turn` reports: a record of each task, and sums by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pointcode_local.engine.types import Message
from pointcode_local.headless import Report
from pointcode_local.turnbench.task import Task


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """How one task went. `problem` is why it failed; `transcript` is what the model saw after the system prompt."""

    id: str  # family/name
    prompt: str
    passed: bool
    problem: str
    outcome: str
    answer: str
    turns: int  # model calls
    n_tool_calls: int
    n_tool_errors: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    decode_s: float
    seconds: float
    time_to_first_token_s: float
    changed_files: tuple[str, ...]
    transcript: tuple[dict[str, Any], ...]

    @property
    def family(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]


def record_of(
    family: str, task: Task, report: Report, seconds: float, problem: str, messages: Sequence[Message]
) -> TaskRecord:
    """The record of a task that was played."""
    result = report.result(seconds)
    usage, outcome = result["usage"], str(result["outcome"])
    if problem and outcome not in ("done", "denied"):
        problem = f"{outcome}: {result['error'] or 'it took too long'}; {problem}"
    return TaskRecord(
        id=f"{family}/{task.name}",
        prompt=task.prompt,
        passed=not problem,
        problem=problem,
        outcome=outcome,
        answer=str(result["result"]),
        turns=int(result["turns"]),
        n_tool_calls=len(result["tool_calls"]),
        n_tool_errors=sum(call["is_error"] for call in result["tool_calls"]),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["cached_tokens"],
        completion_tokens=usage["completion_tokens"],
        decode_s=round(report.decode_s, 3),
        seconds=round(seconds, 2),
        time_to_first_token_s=usage["time_to_first_token"],
        changed_files=tuple(result["changed_files"]),
        transcript=tuple(_shown(message) for message in messages[1:]),
    )


def _shown(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return shown


def summary(records: Sequence[TaskRecord]) -> dict[str, dict[str, Any]]:
    """The sums of each family, and of all under "all"."""
    families = dict.fromkeys(record.family for record in records)
    sums = {family: _sums([record for record in records if record.family == family]) for family in families}
    return {**sums, "all": _sums(records)}


def _sums(records: Sequence[TaskRecord]) -> dict[str, Any]:
    n_passed, n_tokens = sum(r.passed for r in records), sum(r.completion_tokens for r in records)
    n_prompt, n_cached = sum(r.prompt_tokens for r in records), sum(r.cached_tokens for r in records)
    decode_s = sum(r.decode_s for r in records)
    return {
        "tasks": len(records),
        "passed": n_passed,
        "pass_rate": round(n_passed / len(records), 4),
        "turns": sum(r.turns for r in records),
        "tool_calls": sum(r.n_tool_calls for r in records),
        "tool_errors": sum(r.n_tool_errors for r in records),
        "prompt_tokens": n_prompt,
        "cached_tokens": n_cached,
        "cached_share": round(n_cached / n_prompt, 4) if n_prompt else 0.0,
        "completion_tokens": n_tokens,
        "tokens_per_second": round(n_tokens / decode_s, 2) if decode_s else 0.0,
        "seconds": round(sum(r.seconds for r in records), 1),
    }


def table(model: str, records: Sequence[TaskRecord]) -> str:
    """The report for people."""
    lines = [f"{model}: {'family':<11}{'passed':>9}{'rate':>7}{'turns':>7}{'calls':>7}{'prompt':>9}{'cached':>8}"]
    lines[0] += f"{'tokens':>8}{'tok/s':>7}{'s':>8}"
    indent = " " * (len(model) + 2)
    for family, sums in summary(records).items():
        lines.append(
            f"{indent}{family:<11}{sums['passed']:>4} / {sums['tasks']:<2}{sums['pass_rate']:>7.0%}{sums['turns']:>7}"
            f"{sums['tool_calls']:>7}{sums['prompt_tokens']:>9,}{sums['cached_share']:>8.0%}"
            f"{sums['completion_tokens']:>8,}{sums['tokens_per_second']:>7.1f}{sums['seconds']:>8.1f}"
        )
    return "\n".join([*lines, *(f"  {r.id}: {r.problem}" for r in records if not r.passed)])

"""The scripted mode `pointcode -p`: one prompt, the result on stdout, progress on stderr, an exit code; it never asks.

Formats: `text` (the answer alone), `json` (one object), `stream-json` (one event a line, the object last).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionStarted,
    ErrorRaised,
    Outcome,
    ToolFinished,
    ToolStarted,
    TurnFinished,
    UsageChanged,
)
from pointcode_local.exits import EXIT_CANCELLED, EXIT_DENIED, EXIT_DONE, EXIT_ERROR, EXIT_LIMIT, EXIT_TEMPORARY
from pointcode_local.records import to_line, to_record
from pointcode_local.signals import on_signals
from pointcode_local.waiting import StderrLines

_ENDS = ("[exit code ", "[ended by signal ", "[timed out ")  # of the tool `shell`
Format = Literal["text", "json", "stream-json"]
EXIT_CODES: dict[Outcome, int] = {
    "done": EXIT_DONE,
    "error": EXIT_ERROR,
    "denied": EXIT_DENIED,
    "limit": EXIT_LIMIT,
    "cancelled": EXIT_CANCELLED,
}


class AgentLike(Protocol):
    """The part of the agent that the scripted mode uses."""

    def run(self, prompt: str) -> AsyncGenerator[AgentEvent, None]:
        """Play one turn."""
        ...

    def cancel(self) -> None:
        """Stop it."""
        ...


@dataclass(slots=True)
class Report:
    """What the result object tells, gathered from the events."""

    session_id: str
    started_s: float
    end: TurnFinished | None = None
    temporary: bool = False
    last_text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    decode_s: float = 0.0
    first_token_s: float = 0.0
    order: list[str] = field(default_factory=list[str])
    finished: dict[str, ToolFinished] = field(default_factory=dict[str, ToolFinished])
    changed_files: dict[str, None] = field(default_factory=dict[str, None])

    def take(self, event: AgentEvent) -> None:
        """Gather one event."""
        match event:
            case AssistantMessage():
                self.order += [call[0] for call in event.tool_calls]
                self.last_text = event.text or self.last_text
            case ToolFinished():
                self.finished[event.call_id] = event
                self.changed_files.update(dict.fromkeys([*(diff.path for diff in event.diffs), *event.changed]))
            case UsageChanged():
                self._add_usage(event)
            case ErrorRaised():
                self.temporary = event.temporary
            case TurnFinished():
                self.end = event
            case _:
                pass

    def _add_usage(self, event: UsageChanged) -> None:
        if not self.first_token_s:
            self.first_token_s = event.time_to_first_token_s
        self.prompt_tokens += event.prompt_tokens
        self.cached_tokens += event.cached_tokens
        self.completion_tokens += event.completion_tokens
        if event.tokens_per_second > 0:
            self.decode_s += event.completion_tokens / event.tokens_per_second

    @property
    def exit_code(self) -> int:
        """The process's exit code."""
        outcome = self.end.outcome if self.end else "error"
        return EXIT_TEMPORARY if outcome == "error" and self.temporary else EXIT_CODES[outcome]

    def result(self, seconds: float) -> dict[str, Any]:
        """The result object."""
        end = self.end or TurnFinished("error", "", 0, "the turn did not end")
        calls = [self.finished[i] for i in dict.fromkeys([*self.order, *self.finished]) if i in self.finished]
        return {
            "result": end.text or self.last_text if end.outcome != "done" else end.text,
            "session_id": self.session_id,
            "outcome": end.outcome,
            "error": end.error,
            "turns": end.turns,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
                "seconds": round(seconds, 3),
                "tokens_per_second": round(self.completion_tokens / self.decode_s, 2) if self.decode_s > 0 else 0.0,
                "time_to_first_token": round(self.first_token_s, 4),
            },
            "tool_calls": [
                {"name": c.name, "arguments": c.arguments, "is_error": c.is_error, "text": c.text} for c in calls
            ],
            "denied": [{"name": c.name, "arguments": c.arguments, "reason": c.denied} for c in calls if c.denied],
            "changed_files": list(self.changed_files),
        }


class Output:
    """Standard output as bytes. `write` says whether somebody still reads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_terminal = os.isatty(fd)
        self.closed = False
        self.problem = ""

    def write(self, data: bytes) -> bool:
        """Write everything; False from the first write on that nobody read."""
        view = memoryview(data)
        try:
            while view and not self.closed:
                view = view[os.write(self._fd, view) :]
        except BlockingIOError:
            os.set_blocking(self._fd, True)
            return self.write(bytes(view))
        except OSError as error:  # closed pipe, closed descriptor, full disk
            self.closed, self.problem = True, error.strerror or str(error)
        return not self.closed


def describe(event: AgentEvent) -> str:
    """The progress line of an event for stderr; "" when there is none."""
    match event:
        case ToolStarted():
            return f"> {event.title}"
        case ToolFinished() if event.denied:
            return f"! {event.name} denied: {event.denied}"
        case ToolFinished() if event.is_error:
            return f"! {event.name}: {_why(event.text)}"
        case CompactionStarted():
            return f"~ the context is nearly full ({event.context_tokens:,} tokens): shortening the conversation"
        case ErrorRaised():
            return f"error: {event.message}"
        case _:
            return ""


def _why(text: str) -> str:
    """The line of a failed call that says why: a command's end stands below what it printed."""
    lines = text.strip().splitlines() or ["failed"]
    end = next((line.strip("[]") for line in reversed(lines) if line.startswith(_ENDS)), lines[0])
    return end[:200]


def speed_line(usage: dict[str, Any]) -> str:
    """How fast the turn was; "" when no token was decoded."""
    if not usage["tokens_per_second"]:
        return ""
    return (
        f"first token {usage['time_to_first_token']:.2f} s, {usage['tokens_per_second']:.1f} tok/s, "
        f"{usage['completion_tokens']:,} tokens in {usage['seconds']:.1f} s"
    )


def printable(text: str) -> str:
    """Without control characters, for a terminal."""
    return "".join(c if c.isprintable() or c in "\t " else "\ufffd" for c in text)


def _inert(text: str) -> str:
    """An answer as a terminal may show it; pipes and files get every byte."""
    from pointcode_local.render import plain

    return plain(text)


async def run_headless(
    agent: AgentLike,
    prompt: str,
    *,
    session_id: str,
    output_format: Format,
    output: Output,
    told: StderrLines,
) -> int:
    """Play `prompt` and print; returns the exit code. SIGINT, SIGTERM and a reader that goes away cancel the turn."""
    report = Report(session_id, time.monotonic())
    with on_signals(agent.cancel):
        async with aclosing(agent.run(prompt)) as events:
            async for event in events:
                report.take(event)
                if output_format != "stream-json":  # whose lines say more, perhaps on the same terminal
                    told.playing(event)
                if line := describe(event):
                    told.line(printable(line))
                if output_format == "stream-json" and not output.write(to_line(to_record(event))):
                    agent.cancel()
    told.wait("")
    end = report.end
    if end is not None and end.outcome not in ("done", "error"):  # an error was told when it happened
        told.line(printable(f"{end.outcome}: {end.error or _hint(end.outcome)}"))
    result = report.result(time.monotonic() - report.started_s)
    if speed := speed_line(result["usage"]):
        told.line(speed)
    if output_format == "text":
        text = _inert(str(result["result"])) if output.is_terminal else str(result["result"])
        output.write((text if text.endswith("\n") or not text else text + "\n").encode("utf-8", "replace"))
    else:
        output.write(to_line({"type": "result", **result} if output_format == "stream-json" else result))
    if output.closed:
        told.line(f"error: standard output was closed: {output.problem}")
        return report.exit_code or EXIT_ERROR
    return report.exit_code


def _hint(outcome: Outcome) -> str:
    hints = {"denied": "a needed permission was not given (see --permission-mode)", "cancelled": "stopped by a signal"}
    return hints.get(outcome, "the turn ended early")


def read_prompt(argument: str) -> str:
    """The prompt itself, or with "-" all of stdin (invalid UTF-8 replaced)."""
    if argument != "-":
        return argument
    return sys.stdin.buffer.read().decode("utf-8", "replace")

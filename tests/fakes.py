"""Fakes that play scripts through the real parts: a model, a clock, tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pointcode_local.engine.types import (
    AnswerText,
    ChatDelta,
    ChatFinished,
    ChatRequest,
    FinishReason,
    Message,
    ReasoningText,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallReady,
    ToolSpec,
    Usage,
)
from pointcode_local.tools.base import Access, FileChange, Tool, ToolContext, ToolResult
from pointcode_local.verdict import Decision


class FakeClock:
    """A clock that moves when it is told to; `sleep` moves it and returns at once."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self.now_s = start_s
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


Step = Sequence[ChatDelta | Exception | Callable[[], Any]]
USAGE = Usage(prompt_tokens=100, cached_tokens=40, completion_tokens=10, time_to_first_token_s=0.5, decode_s=1.0)


def say(*pieces: str, reasoning: str = "", reason: FinishReason = "stop") -> Step:
    """An answer in pieces."""
    thought = [ReasoningText(reasoning)] if reasoning else []
    return [*thought, *(AnswerText(piece) for piece in pieces), ChatFinished(reason, USAGE)]


def call(name: str, /, *, call_id: str = "", text: str = "", **arguments: Any) -> Step:
    """One tool call."""
    return calls((name, json.dumps(arguments)), ids=[call_id], text=text)


def calls(*named: tuple[str, str], ids: Sequence[str] = (), text: str = "") -> Step:
    """Several tool calls in one reply; arguments as written."""
    out: list[ChatDelta] = [AnswerText(text)] if text else []
    for i, (name, written) in enumerate(named):
        call_id = ids[i] if i < len(ids) else ""
        out += [ToolCallBegun(i, call_id, name), ToolCallArguments(i, written)]
        out.append(ToolCallReady(i, ToolCall(call_id, name, written)))
    return [*out, ChatFinished("tool_calls", USAGE)]


def cut_call(name: str, written: str) -> Step:
    """A call that was cut at the token limit."""
    return [ToolCallBegun(0, "", name), ToolCallArguments(0, written), ChatFinished("length", USAGE)]


class ScriptedModel:
    """A ChatModel that plays a script, one step a request, and keeps the requests. A step is a list of deltas; an
    exception in it is raised, a callable is called (and awaited). A token is four characters."""

    def __init__(self, *steps: Step, context_tokens: int = 32_768, is_small: bool = False) -> None:
        self.steps = list(steps)
        self.requests: list[ChatRequest] = []
        self.n_closed = 0  # streams that were closed before their end
        self._context_tokens = context_tokens
        self._is_small = is_small

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @property
    def is_small(self) -> bool:
        return self._is_small

    async def stream(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        step = self.steps.pop(0) if self.steps else say("Done.")
        try:
            for item in step:
                if isinstance(item, Exception):
                    raise item
                if callable(item):
                    result = item()
                    if asyncio.iscoroutine(result):
                        await result
                    continue
                yield item
                await asyncio.sleep(0)
        except GeneratorExit:
            self.n_closed += 1
            raise

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        n_chars = sum(len(m.content) + sum(len(c.name + c.arguments) for c in m.tool_calls) + 16 for m in messages)
        return (n_chars + sum(len(json.dumps(dict(t.parameters))) for t in tools)) // 4

    async def aclose(self) -> None:
        return


@dataclass(slots=True)
class FakeTool:
    """A tool whose `work` is a function of its arguments; a coroutine function is awaited."""

    name: str
    work: Callable[..., Any] = lambda **arguments: "ok"
    access: Access = "read"
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    description: str = "A tool for tests."
    contexts: list[ToolContext] = field(default_factory=list[ToolContext])

    def title(self, arguments: Mapping[str, Any]) -> str:
        return f"{self.name} {json.dumps(dict(arguments))}"

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return (arguments["path"],) if "path" in arguments else ()

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        return ()

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        self.contexts.append(context)
        result = self.work(**arguments)
        if asyncio.iscoroutine(result):
            result = await result
        return result if isinstance(result, ToolResult) else ToolResult(str(result))


class FakePolicy:
    """Allows everything but what `verdicts` says by tool name."""

    def __init__(self, mode: str = "ask", **verdicts: str) -> None:
        self.mode = mode
        self.verdicts = verdicts
        self.remembered: list[str] = []

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Decision:
        verdict: Any = self.verdicts.get(tool.name, "allow")
        return (
            Decision(verdict, f"{tool.name} needs it", f"{tool.name}(*)") if verdict != "allow" else Decision("allow")
        )

    def remember(self, rule: str) -> None:
        self.remembered.append(rule)
        self.allow_for_session(rule)

    def allow_for_session(self, rule: str) -> None:
        self.verdicts.pop(rule.split("(")[0], None)

    def may_read(self, path: Path) -> bool:
        return path.name != "secret.txt"

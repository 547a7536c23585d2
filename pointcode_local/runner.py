"""Runs the tool calls of one reply: arguments, permission, checkpoint, the tool itself, and the result for the model.

Calls start as soon as they are complete, while the model still writes. Reading calls run side by side; a call that may
change something waits for all before it, and all after it wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pointcode_local.arguments import ArgumentError, as_far_as_readable, parse_arguments
from pointcode_local.calls import known_name
from pointcode_local.checkpoints import Checkpoints
from pointcode_local.engine.types import ToolCall, ToolSpec
from pointcode_local.events import (
    AgentEvent,
    ErrorRaised,
    FileDiff,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
    TodoChanged,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from pointcode_local.tools.arguments import find_tool, usage, validate
from pointcode_local.tools.base import NO_OUTPUT, FileChange, Tool, ToolContext, ToolError, ToolResult
from pointcode_local.tree_watch import TreeWatch
from pointcode_local.unified import call_change
from pointcode_local.verdict import Decision, Policy

log = logging.getLogger(__name__)
INTERRUPTED = "[interrupted by the user before it ended; it may have done part of its work]"
MAX_PARTIAL_CHARS = 20_000
STOP_TIMEOUT_S = 2.0


class Hooks(Protocol):
    """Commands of the person that see calls."""

    async def before(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Why a permitted call must not run; "" when it may."""
        ...

    async def after(self, tool: str, arguments: Mapping[str, Any], result: ToolResult) -> ToolResult:
        """The result as the model gets it."""
        ...


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a session and what decides about them. `withheld`: names that exist but are not offered, and why."""

    tools: Mapping[str, Tool]
    policy: Policy
    workspace: Any  # tools.workspace.Workspace
    root: Path  # the workspace's folder
    withheld: Mapping[str, str] = field(default_factory=dict[str, str])
    checkpoints: Checkpoints | None = None
    watch: TreeWatch | None = None  # sees what commands change
    interactive: bool = False
    sandbox: Callable[[bool], Any] = lambda agreed: None  # the tools.sandbox.SandboxPolicy for a call, if any
    hooks: Hooks | None = None
    prepare: Callable[[Tool, Mapping[str, Any]], Awaitable[None]] | None = None  # awaited before a preview or a run
    going_on: Callable[[], str] = lambda: ""  # what runs beside the conversation, for the model

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them, in their fixed order."""
        return tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in self.tools.values())

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Tool name -> JSON schema."""
        return {name: tool.parameters for name, tool in self.tools.items()}


@dataclass(frozen=True, slots=True)
class Conduct:
    """What a runner needs of its agent: where events go, how a person is asked, how results are cut to fit."""

    emit: Callable[[AgentEvent], None]
    wait_answer: Callable[[str], Awaitable[str]]
    cut_result: Callable[[str], str]
    turn: int


class CallRunner:
    """The calls of one reply."""

    def __init__(self, toolbox: Toolbox, conduct: Conduct) -> None:
        self._box = toolbox
        self._do = conduct
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[str, ToolCall] = {}
        self._exclusive: list[asyncio.Task[None]] = []
        self._arguments: dict[str, dict[str, Any]] = {}
        self._progress: dict[str, list[str]] = {}
        self._changed: dict[str, tuple[str, ...]] = {}  # by call: what a command changed
        self._asking = asyncio.Lock()
        self._agreed: set[str] = set()  # calls that the person agreed to, by an answer or a rule
        self._asked: dict[str, Decision] = {}  # by call: what the person agreed to
        self.finished: dict[str, ToolFinished] = {}

    def start(self, call: ToolCall) -> None:
        """Begin a call; its events follow."""
        tool = self._box.tools.get(known_name(call.name, self._box.tools))
        exclusive = tool is not None and tool.access in ("write", "execute")
        before = list(self._tasks.values()) if exclusive else list(self._exclusive)
        task = asyncio.create_task(self._run(call, before), name=f"call {call.id}")
        self._tasks[call.id], self._calls[call.id] = task, call
        if exclusive:
            self._exclusive.append(task)

    def fail(self, call: ToolCall, text: str) -> None:
        """Give a call that is not run its result."""
        self._calls[call.id] = call
        self._finish(call, ToolResult(text, is_error=True))

    async def wait(self) -> list[ToolFinished]:
        """Wait for all calls; their results in call order."""
        if self._tasks:
            await asyncio.gather(*self._tasks.values())
        return [self.finished[call_id] for call_id in self._calls]

    async def interrupt(self) -> None:
        """Stop what runs (within STOP_TIMEOUT_S) and give every call without a result an "interrupted" one."""
        running = [task for task in self._tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=STOP_TIMEOUT_S)
        for call in self._calls.values():
            if call.id not in self.finished:
                output = "".join(self._progress.get(call.id, ()))
                self._finish(call, ToolResult(f"{INTERRUPTED}\n{output}".rstrip(), is_error=True))

    async def _run(self, call: ToolCall, before: list[asyncio.Task[None]]) -> None:
        name = known_name(call.name, self._box.tools)
        if not name:
            return self._refuse_unknown(call)
        tool = self._box.tools[name]
        arguments = _fitted(tool, call.arguments)
        if isinstance(arguments, str):
            return self._finish(call, ToolResult(f"Error: {arguments}", is_error=True))
        self._arguments[call.id] = arguments
        if before:
            await asyncio.wait(before)
        try:
            reason = await self._refusal(call, tool, arguments)
        except ToolError as error:  # it would fail whatever the person says: nobody is asked
            return self._finish(call, ToolResult(str(error), is_error=True))
        if reason:
            text = f"Denied: {reason}. Do not try to get around this; go on without it, or say what you need."
            return self._finish(call, ToolResult(text, is_error=True), denied=reason)
        if self._box.hooks and (objection := await self._box.hooks.before(tool.name, arguments)):
            return self._finish(call, ToolResult(f"Not run: {objection}", is_error=True))
        judged = await self._judged(tool, arguments)
        if not self._still_stands(call, judged):
            text = (
                "Not run: what it works on changed after it was agreed to (a link or the mode). Look, and call again."
            )
            return self._finish(call, ToolResult(text, is_error=True))
        return self._finish(call, await self._execute(call, tool, arguments, judged.paths))

    async def _judged(self, tool: Tool, arguments: dict[str, Any]) -> Decision:
        """What the policy says. For a command it may have to look through the folder: nothing waits for that."""
        if tool.access == "execute":
            return await asyncio.to_thread(self._box.policy.decide, tool, arguments)
        return self._box.policy.decide(tool, arguments)

    def _still_stands(self, call: ToolCall, now: Decision) -> bool:
        """Is what was decided still so after the person or a hook took their time? Links may have been swapped."""
        asked = self._asked.get(call.id)
        return now.verdict == "allow" or (now.verdict == "ask" and asked is not None and now.reason == asked.reason)

    def _refuse_unknown(self, call: ToolCall) -> None:
        withheld = known_name(call.name, self._box.withheld)
        if withheld:
            reason = self._box.withheld[withheld]
            return self._finish(call, ToolResult(f"Denied: {reason}.", is_error=True), denied=reason)
        problem = find_tool(self._box.tools.values(), call.name)
        return self._finish(call, ToolResult(f"Error: {problem}", is_error=True))

    async def _refusal(self, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> str:
        """Why the call must not run; "" when it may. Asks the person, one question at a time. Raises ToolError when
        the question can be spared: the call would only fail."""
        async with self._asking:
            decision = await self._judged(tool, arguments)
            if decision.verdict == "deny":
                return decision.reason or "a rule forbids it"
            if self._box.prepare is not None:
                await self._box.prepare(tool, arguments)
            if decision.verdict == "allow":
                if decision.agreed:
                    self._agreed.add(call.id)
                return ""
            diffs = self._diffs(await asyncio.to_thread(self._preview, call, tool, arguments))
            self._do.emit(
                PermissionAsked(
                    call.id, tool.name, arguments, tool.title(arguments), decision.reason, decision.rule, diffs
                )
            )
            answer = "deny"
            try:
                if self._box.interactive:
                    answer = await self._do.wait_answer(call.id)
            finally:
                known = answer if answer in ("once", "session", "always") else "deny"
                self._do.emit(PermissionAnswered(call.id, known))
            if decision.rule:
                self._remember(decision.rule, known)
            if known != "deny":
                self._agreed.add(call.id)
                self._asked[call.id] = decision
                return ""
            return (
                "the user said no"
                if self._box.interactive
                else f"permission needed and nobody to ask: {decision.reason or 'not allowed by a rule'}"
            )

    def _remember(self, rule: str, answer: str) -> None:
        try:
            if answer == "session":
                self._box.policy.allow_for_session(rule)
            elif answer == "always":
                self._box.policy.remember(rule)
        except (OSError, ValueError) as error:
            at_least = '"always" holds in this session only, it' if answer == "always" else "the answer"
            self._do.emit(ErrorRaised(f"{at_least} could not be kept: {error}"))

    def _preview(self, call: ToolCall, tool: Tool, arguments: dict[str, Any]) -> tuple[FileChange, ...]:
        try:
            return tool.preview(self._context(call), arguments)
        except ToolError:
            if all(map(self._box.policy.may_read, self._touched(tool, arguments))):  # else the reason is not to be told
                raise
            return ()
        except Exception:  # part of the tool runner: a preview that fails must not fail the call
            log.exception("preview of %s failed", tool.name)
            return ()

    def _context(self, call: ToolCall, judged: frozenset[Path] | None = None) -> ToolContext:
        async def ask(question: str, options: tuple[str, ...]) -> str:
            return await self._question(call, question, options)

        return ToolContext(
            workspace=self._box.workspace,
            call_id=call.id,
            on_output=lambda text: self._on_output(call.id, text),
            ask=ask if self._box.interactive else None,
            on_todo=lambda items: self._do.emit(TodoChanged(items)),
            sandbox=self._box.sandbox(call.id in self._agreed),
            reveal=call.id in self._asked and self._asked[call.id].secret,
            judged=judged,
        )

    async def _question(self, call: ToolCall, question: str, options: tuple[str, ...]) -> str:
        async with self._asking:
            self._do.emit(QuestionAsked(call.id, question, options))
            answer = ""
            try:
                answer = await self._do.wait_answer(call.id)
            finally:
                self._do.emit(QuestionAnswered(call.id, answer))
            return answer

    def _on_output(self, call_id: str, text: str) -> None:
        parts = self._progress.setdefault(call_id, [])
        parts.append(text)
        if sum(map(len, parts[-64:])) > MAX_PARTIAL_CHARS and len(parts) > 1:
            parts[:] = ["".join(parts)[-MAX_PARTIAL_CHARS:]]
        self._do.emit(ToolProgress(call_id, text))

    async def _execute(
        self, call: ToolCall, tool: Tool, arguments: dict[str, Any], judged: frozenset[Path] | None
    ) -> ToolResult:
        self._do.emit(ToolStarted(call.id, tool.name, arguments, tool.title(arguments)))
        touched = self._touched(tool, arguments)
        try:
            self._keep_originals(touched)
        except OSError as error:  # a full disk, an unreadable file, a name that no file can have
            reason = error.strerror or str(error)
            return ToolResult(f"Error: {tool.name} was not run, it could not be undone: {reason}", is_error=True)
        try:
            async with self._watched(call, tool, goes_on=arguments.get("background") is True):
                result = await tool.run(self._context(call, judged), arguments)
            return await self._box.hooks.after(tool.name, arguments, result) if self._box.hooks else result
        except Exception as error:  # the tool runner: a bug in a tool is a result, not the end of the turn
            log.exception("tool %s failed", tool.name)
            return ToolResult(f"Error: {tool.name} failed inside: {type(error).__name__}: {error}", is_error=True)
        finally:
            self._note_outcome(touched)

    @asynccontextmanager
    async def _watched(self, call: ToolCall, tool: Tool, *, goes_on: bool) -> AsyncGenerator[None, None]:
        """Keep what a command changes, so that it can be undone. One that needs no agreement changes nothing. What one
        changes that `goes_on` in the background nobody will know."""
        kept, watch = self._box.checkpoints, self._box.watch
        may_change = call.id in self._agreed or self._box.policy.mode == "auto"
        if kept is None or watch is None or tool.access != "execute" or not may_change:
            yield
            return
        await asyncio.to_thread(watch.before)
        try:
            yield
        finally:
            try:
                changes = await asyncio.to_thread(watch.after)
                changes = replace(changes, is_whole=changes.is_whole and not goes_on)
                self._changed[call.id] = tuple(self._shown(change.path) for change in changes.files)
                kept.commanded(self._do.turn, changes)
            except OSError as error:
                log.warning("what the command changed cannot be undone: %s", error)

    def _keep_originals(self, touched: list[Path]) -> None:
        if self._box.checkpoints and touched:
            self._box.checkpoints.before(self._do.turn, touched)

    def _note_outcome(self, touched: list[Path]) -> None:
        """Without the note, undo leaves the file alone and says so."""
        if self._box.checkpoints and touched:
            try:
                self._box.checkpoints.after(self._do.turn, touched)
            except OSError as error:
                log.warning("the change cannot be undone: %s", error)

    def _touched(self, tool: Tool, arguments: dict[str, Any]) -> list[Path]:
        if tool.access != "write":
            return []
        out: dict[Path, None] = {}
        for path in tool.paths(arguments):
            try:
                named = self._box.root / Path(path).expanduser()
                above = named.parent.resolve() / named.name
                if above.is_symlink():
                    out[above] = None  # the link itself may go
                out[named.resolve()] = None
            except (OSError, RuntimeError, ValueError):  # the tool will say what is wrong with it
                continue
        return list(out)

    def _finish(self, call: ToolCall, result: ToolResult, denied: str = "") -> None:
        if call.id in self.finished:
            return
        arguments = self._arguments.get(call.id)
        if arguments is None:
            arguments = as_far_as_readable(call.arguments)
        text = self._do.cut_result(result.text) or NO_OUTPUT
        name = known_name(call.name, self._box.tools) or call.name
        if len(text) < len(result.text):
            self._forget_read(name, arguments)
        diffs, changed = self._diffs(result.changes), self._changed.get(call.id, ())
        event = ToolFinished(call.id, name, arguments, text, result.is_error, diffs, denied, changed)
        self.finished[call.id] = event
        self._do.emit(event)

    def _forget_read(self, name: str, arguments: dict[str, Any]) -> None:
        """The model sees only a part of what the tool showed: it does not know the whole file after all."""
        tool = self._box.tools.get(name)
        if tool is None or tool.access != "read" or self._box.workspace is None:
            return
        for path in tool.paths(arguments):
            with suppress(ToolError):
                self._box.workspace.note_cut(self._box.workspace.resolve(path).path)

    def _diffs(self, changes: tuple[FileChange, ...]) -> tuple[FileDiff, ...]:
        return tuple(call_change(self._shown(c.path), c.before, c.after) for c in changes)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._box.root)) if path.is_relative_to(self._box.root) else str(path)


def _fitted(tool: Tool, written: str) -> dict[str, Any] | str:
    """The arguments with the schema's names and types, or what is wrong with them."""
    try:
        return validate(tool, parse_arguments(written))
    except ArgumentError as error:
        return f"{error}. {usage(tool)}"

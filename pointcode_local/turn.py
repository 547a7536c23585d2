"""One prompt being worked on: model call, tool calls, results, until the model answers or something ends the turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from pointcode_local import context_files
from pointcode_local.calls import TextCall, find_calls
from pointcode_local.compaction import TRIES, compact, cut_results
from pointcode_local.conversation import Conversation
from pointcode_local.engine.errors import BackendError, ContextOverflow
from pointcode_local.engine.types import ChatModel, ChatRequest, Message, SamplingParams, ToolCall
from pointcode_local.events import (
    AgentEvent,
    CompactionFinished,
    CompactionStarted,
    ContextAdded,
    Outcome,
    Steered,
    ToolFinished,
    UsageChanged,
)
from pointcode_local.loop_guard import NOTE as LOOP_NOTE
from pointcode_local.loop_guard import LoopGuard
from pointcode_local.replies import Reply, read_reply
from pointcode_local.runner import CallRunner, Conduct, Toolbox
from pointcode_local.second_chances import CUT_CALL, NOTES, STUCK, STUCK_CALL
from pointcode_local.steps import LedSteps
from pointcode_local.window import Window

MAX_BROKEN = 3  # broken streams in a row before the turn gives up
MAX_SECOND_CHANCES = 2  # replies in a row that were empty, cut or unclear


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """`max_turns` bounds the model calls of a prompt; `max_reasoning_chars` the thinking before a reply must begin."""

    max_turns: int = 200
    max_reasoning_chars: int = 120_000
    max_tokens: int | None = None


class Stop(Exception):
    """Ends a turn with an outcome."""

    def __init__(self, outcome: Outcome, error: str | None = None, *, temporary: bool = False) -> None:
        super().__init__(error)
        self.outcome: Outcome = outcome
        self.error = error
        self.temporary = temporary


@dataclass(slots=True)
class Core:
    """What a turn shares with its agent. `emit` logs an event, folds it into the conversation and shows it."""

    model: ChatModel
    box: Toolbox
    conversation: Conversation
    window: Window
    limits: AgentLimits
    emit: Callable[[AgentEvent], None]
    wait_answer: Callable[[str], Awaitable[str]]
    sampling: SamplingParams | None = None
    steers: list[str] = field(default_factory=list[str])
    held: list[ContextAdded] = field(default_factory=list[ContextAdded])  # for the next model call
    changed: list[str] = field(default_factory=list[str])  # files that a small model changed, the last at the end
    calls_properly: bool = False  # the model has made calls through the call channel, and is no small one
    wanted_room: int = 0  # tokens that should be left before a model call; less means: compact

    def take_steers(self) -> list[str]:
        """The messages to put before the next model call; they are taken off the list."""
        taken, self.steers = self.steers, []
        return taken

    def take_held(self) -> list[ContextAdded]:
        """What came in while a turn ran and is not in the history yet; it is taken off the list."""
        taken, self.held = self.held, []
        return taken


class Turn:
    """One prompt being worked on."""

    may_count = True  # lines that differ in their numbers only are no repetition

    def __init__(self, core: Core, number: int, prompt: str = "", later_steps: Sequence[str] = ()) -> None:
        self._core = core
        self._number = number
        self._steps = LedSteps(prompt, later_steps, frozenset(spec.name for spec in core.box.specs))
        self._guard = LoopGuard()
        self._reply: Reply | None = None  # until it is in the history
        self._runner: CallRunner | None = None
        self._n_broken = 0
        self._n_chances = 0
        self._n_overflows = 0
        self.n_calls = 0
        self.text = ""
        self.denied = False
        self.gave_up = ""  # why the model did not do all of it, although the turn came to its end

    async def play(self) -> None:
        """Model calls and tool calls until an answer; raises Stop for every other end."""
        core = self._core
        self._check_prompt_fits()
        while True:
            self._take_steers()
            if self.n_calls >= core.limits.max_turns:
                raise Stop("limit", f"stopped after {self.n_calls} model calls (the limit of turns)")
            await self._make_room()
            if await self._ask() and not core.steers:
                if (step := self._steps.begin_next()) is None:
                    return
                core.emit(Steered(step))
                self._guard = LoopGuard()

    def _take_steers(self) -> None:
        for event in self._core.take_held():
            self._core.emit(event)
        steers = self._core.take_steers()
        for text in steers:
            self._core.emit(Steered(text))
            for mention in context_files.mentions(text, self._core.box.root, self._core.box.policy.may_read):
                self._core.emit(mention)

    def _check_prompt_fits(self) -> None:
        window, messages = self._core.window, self._core.conversation.messages
        alone = (messages[0], messages[-1])
        if window.room(alone) < 0 and not (window.forget() and window.room(alone) >= 0):
            raise Stop(
                "error",
                f"the prompt takes about {window.count(alone):,} tokens and the model's context is {window.limit:,}; "
                "use a shorter prompt, or a model with a longer context",
            )

    async def _make_room(self) -> None:
        """Compact when the context is nearly full: at most TRIES times, then the turn ends with an error."""
        core = self._core
        left = core.window.room(core.conversation.messages)
        if left < 0 and (cut := cut_results(core.conversation, core.window)) is not None:
            core.emit(cut)
            self._forget_files()
            left = core.window.room(core.conversation.messages)
        if left >= core.wanted_room:
            return
        for attempt in range(TRIES):
            await self.compact(attempt)
            left = core.window.room(core.conversation.messages)
            if left >= 0:
                core.wanted_room = min(core.window.working_room, left // 2)
                return
        self._give_up(core.conversation.messages)

    async def compact(self, attempt: int = 0, *, hard: bool = False) -> None:
        """Shorten the conversation."""
        core = self._core
        n_before = core.window.count(core.conversation.messages)
        core.emit(CompactionStarted(n_before))
        end: CompactionFinished | None = None
        try:
            end = await compact(
                core.model, core.conversation, core.box.specs, core.window, attempt, hard=hard, also=core.box.going_on()
            )
        finally:
            core.emit(end or CompactionFinished(n_before, ""))
        if end is not None:
            self._forget_files()

    def _forget_files(self) -> None:
        """Of what the model has read not all is in its context any more."""
        if self._core.box.workspace is not None:
            self._core.box.workspace.forget_all()

    def _give_up(self, messages: Sequence[Message]) -> NoReturn:
        n_tokens, limit = self._core.window.count(messages), self._core.window.limit
        raise Stop(
            "error",
            f"the conversation takes about {n_tokens:,} tokens and the model's context is {limit:,}; nothing more can "
            "be left out. Use a shorter prompt, or a model with a longer context.",
        )

    async def _ask(self) -> bool:
        """One model call with its tool calls; True when the turn is done."""
        core = self._core
        messages = core.conversation.messages
        choice = self._steps.tool_choice if core.model.is_small else "auto"
        request = ChatRequest(messages, core.box.specs, core.limits.max_tokens, core.sampling, tool_choice=choice)
        return await self._read(request) and await self._conclude()

    def _begin_runner(self) -> CallRunner:
        core, cut = self._core, self._core.window.cut_result
        conduct = Conduct(
            core.emit, core.wait_answer, lambda text: cut(text, core.conversation.messages_so_far), self._number
        )
        self._runner = CallRunner(core.box, conduct)
        return self._runner

    async def _read(self, request: ChatRequest) -> bool:
        """Read one reply; False when it must be asked for again."""
        core = self._core
        self._reply = reply = Reply(core.conversation.used_ids(), may_count=self.may_count)
        runner = self._begin_runner()
        self.n_calls += 1
        try:
            await read_reply(
                core.model.stream(request), reply, core.emit, runner.start, core.limits.max_reasoning_chars
            )
            if reply.finish == "error":
                raise BackendError(reply.error or "the model's stream ended with an error")
        except ContextOverflow as error:
            await self._overflowed(error)
            return False
        except BackendError as error:
            await self._broken(error)
            return False
        self._n_broken = self._n_overflows = 0
        core.window.settle(reply.usage.prompt_tokens, request.messages)
        self._report_usage()
        return True

    async def _overflowed(self, error: ContextOverflow) -> None:
        """The server counts more than we do, or the reply itself filled the context: learn, and make room."""
        assert self._reply is not None
        self.n_calls -= self._reply.is_empty
        await self._keep_what_came()
        self._n_overflows += 1
        if self._n_overflows > TRIES:
            raise Stop("error", f"the prompt does not fit the model's context: {error}")
        self._core.window.learn(error, self._core.conversation.messages)

    async def _broken(self, error: BackendError) -> None:
        """The stream broke: what came is kept, calls that were complete count, and the model is asked to go on."""
        reply, runner = self._reply, self._runner
        assert reply is not None and runner is not None
        self._n_broken += 1
        if self._n_broken >= MAX_BROKEN:
            raise Stop("error", str(error), temporary=True)
        await self._keep_what_came()
        if not reply.is_empty:
            self._core.emit(ContextAdded("note", NOTES["broken"]))

    async def _keep_what_came(self) -> None:
        """Of a reply that was not finished: its text, and its complete calls, which may be under way. An empty one is
        noted too: what comes behind it comes behind the prompt it was asked with, also when the log is read again."""
        runner = self._runner
        assert runner is not None
        self._settle_cut_calls()
        self._put_in_history()
        self.denied = any(result.denied for result in await runner.wait()) or self.denied
        self._runner = None

    def _report_usage(self) -> None:
        reply, core = self._reply, self._core
        assert reply is not None
        if reply.is_stuck:  # its end, with the figures, was not waited for
            return
        usage = reply.usage
        n_context = usage.prompt_tokens + usage.completion_tokens
        core.emit(
            UsageChanged(
                usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.time_to_first_token_s,
                usage.tokens_per_second, n_context, core.window.limit,
            )
        )  # fmt: skip

    async def _conclude(self) -> bool:
        """Judge a complete reply: an answer, calls, or something that deserves a second chance."""
        core, reply, runner = self._core, self._reply, self._runner
        assert reply is not None and runner is not None
        if not reply.calls:
            found = find_calls(reply.text, core.box.schemas)
            if found.problem == "cut":
                return self._second_chance("cut")
            # Who makes calls in the proper way quotes what looks like one, e.g. from a file.
            is_quoted = core.calls_properly and bool(found.calls) and not found.tagged
            if (found.problem == "doubtful" or is_quoted) and self._n_chances < 1:
                return self._second_chance("doubtful")
            if not found.calls or is_quoted:
                return self._answer()
            self._put_in_history(found.text, self._start_text_calls(found.calls))
        else:
            core.calls_properly = not core.model.is_small
            self._settle_cut_calls()
            self._put_in_history()
        results = await runner.wait()
        self._runner = None
        if core.model.is_small:
            if self._steps.only_repeats(results):
                return True
            self.text = self._steps.take(results) or self.text
        self._take_results(results, was_cut=bool(reply.cut_calls))
        return False

    def _answer(self) -> bool:
        reply = self._reply
        assert reply is not None
        if reply.is_empty:
            return self._second_chance("thinking" if reply.reasoning else "empty")
        was_cut = reply.finish == "length"
        self.text = reply.text
        self._put_in_history()
        self._runner = None
        if was_cut:
            raise Stop("limit", STUCK if reply.is_stuck else "the answer was cut at the token limit")
        return True

    def _second_chance(self, kind: str) -> bool:
        reply = self._reply
        assert reply is not None
        self._n_chances += 1
        was_length = reply.finish == "length"
        self._put_in_history()
        self._runner = None
        if self._n_chances >= MAX_SECOND_CHANCES:
            self.text = reply.text
            if was_length or kind == "cut":
                raise Stop("limit", "the model's replies were cut at the token limit")
            raise Stop("limit", "the model gave no answer: its replies were empty")
        self._core.emit(ContextAdded("note", NOTES[kind]))
        return False

    def _start_text_calls(self, calls: tuple[TextCall, ...]) -> tuple[ToolCall, ...]:
        reply, runner = self._reply, self._runner
        assert reply is not None and runner is not None
        started = tuple(ToolCall(reply.new_id(), call.name, call.arguments) for call in calls)
        for call in started:
            runner.start(call)
        return started

    def _settle_cut_calls(self) -> None:
        reply, runner = self._reply, self._runner
        assert reply is not None and runner is not None
        for call in reply.cut_calls:
            runner.fail(call, STUCK_CALL if reply.is_stuck else CUT_CALL)

    def _reply_done(self) -> None:
        """The reply is used otherwise than as a message of the history."""
        self._reply = self._runner = None

    def _put_in_history(self, text: str | None = None, calls: tuple[ToolCall, ...] | None = None) -> None:
        reply, self._reply = self._reply, None
        assert reply is not None
        self._core.emit(reply.message(text, calls))

    def _take_results(self, results: Sequence[ToolFinished], *, was_cut: bool) -> None:
        self.denied = self.denied or any(result.denied for result in results)
        self._n_chances = self._n_chances + 1 if was_cut else 0
        if was_cut and self._n_chances >= MAX_SECOND_CHANCES:
            raise Stop("limit", "the model's calls were cut at the token limit")
        verdict = self._guard.judge([(result.name, result.arguments, result.text) for result in results])
        if verdict == "stop":
            names = ", ".join(dict.fromkeys(result.name for result in results))
            raise Stop("limit", f"stopped: the model repeats the same calls ({names}) with the same results")
        if verdict == "warn":
            self._core.emit(ContextAdded("note", LOOP_NOTE))

    async def abandon(self) -> None:
        """End what is open after a cancel or an error: calls get results, a partial reply goes into the history."""
        reply, runner = self._reply, self._runner
        if reply is not None and not reply.is_empty and runner is not None:
            for call in reply.cut_calls:
                runner.fail(call, "[interrupted before the call was complete; it was not run]")
            self.text = reply.text
            self._put_in_history()
        if runner is not None:
            await runner.interrupt()
        self._reply = self._runner = None

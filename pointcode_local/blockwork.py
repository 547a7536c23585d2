"""What a small model's turn is made of: files written as blocks, answers, commands, their place in the history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pointcode_local.asked import first_line, unmet
from pointcode_local.blockparts import call_of, summary, until_stuck, wanted_text
from pointcode_local.blocks import as_blocks, block_body, fence_of, language, shown_file, without_markers
from pointcode_local.engine.types import ChatRequest, SamplingParams, ToolCall
from pointcode_local.events import AssistantMessage, ContextAdded, TextDelta, ToolFinished
from pointcode_local.orders import Order, is_test
from pointcode_local.pyimports import offered, unbound_names
from pointcode_local.replies import Reply
from pointcode_local.second_chances import STUCK
from pointcode_local.shown_files import MAX_HITS, Files, Part, fault_note, part_of
from pointcode_local.turn import Core, Stop, Turn

MAX_ANSWER_TOKENS = 1024
MAX_FILE_TOKENS = 2048
TRIES = 3
MAX_SOUGHT = 5  # names whose files are looked for
SECOND_TRY = SamplingParams(temperature=0.7, top_p=0.9, seed=1)  # what was wrong once is not said word by word again


class BlockWork(Turn):
    """The pieces; `BlockTurn` says which of them a prompt takes."""

    may_count = False

    def __init__(self, core: Core, number: int, prompt: str, later_steps: Sequence[str]) -> None:
        super().__init__(core, number, prompt, later_steps)
        self._prompt = prompt
        self._later = later_steps
        self._sampling = core.sampling
        self._results: list[str] = []  # what was done, for the answer
        self._about: tuple[str, ...] = ()  # the files of the step, and those of them that are to be written
        self._targets: tuple[str, ...] = ()

    async def _write_all(
        self, text: str, order: Order, files: Files, targets: Sequence[str], part: Part | None = None
    ) -> None:
        """The targets, one after the other; `part`: what of each is to be written anew."""
        if why := next(filter(None, map(files.not_to_be_written, targets)), ""):
            self.gave_up = why
            self._conclude_with(summary((), why))
            return
        parts = {name: part or part_of(files.text(name) or "", text) for name in targets}
        for name in dict.fromkeys([*order.shown, *targets]):
            self._show_file(name, files.text(name), None if part else parts.get(name))
        self._about, self._targets = (*order.shown, *targets), tuple(targets)
        before = {name: fault_note(name, files.text(name) or "") for name in targets}
        done: list[ToolFinished] = []
        problem = ""
        for name in targets:
            results, problem = await self._write(text, name, parts[name], files, is_only=len(targets) == 1)
            done += results
            self.gave_up = problem or self.gave_up
            if self.denied:
                break
        left = {name: fault for name in targets if done and (fault := fault_note(name, files.text(name) or ""))}
        if done and not left and (lacks := self._unmet(text, targets[0], files)):
            left[targets[0]] = lacks[0].upper() + lacks[1:] if lacks.startswith("the ") else lacks
        self.gave_up = next((fault for name, fault in left.items() if not before[name]), self.gave_up)
        self._conclude_with("\n".join([summary(done, problem), *(f"{fault}." for fault in left.values())]))

    async def _write(
        self, text: str, name: str, part: Part, files: Files, *, is_only: bool
    ) -> tuple[list[ToolFinished], str]:
        """One file, written anew by the model; another try when it changed nothing or broke the syntax.

        Also what was wrong when no tries were left; the same text as before is not: it may be as it should.
        """
        results: list[ToolFinished] = []
        hint = problem = ""
        self._sampling = self._core.sampling
        for attempt in range(TRIES):
            result, hint, problem = await self._attempt(text, name, part, files, hint)
            results += [result] if result else []
            is_too_long = result is None and problem and attempt > 0  # twice: it takes minutes each time
            if not hint or self.denied or is_too_long or (result is None and not is_only):
                break
            self._sampling = replace(SECOND_TRY, seed=attempt + 1)
            part = part_of(files.text(name) or "", text) if result else part
        self._sampling = self._core.sampling
        return results, problem

    async def _attempt(
        self, text: str, name: str, part: Part, files: Files, hint: str
    ) -> tuple[ToolFinished | None, str, str]:
        """The result of the call that came of it (None: no call), what to tell the model before another try, and what
        to tell the person if there is none."""
        present, fence = files.text(name), fence_of(part.text, name)
        wanted = wanted_text(name, part, is_new=present is None)
        limit = (
            min(MAX_FILE_TOKENS, self._core.window.count_text(part.text) * 2 + 512) if part.text else MAX_FILE_TOKENS
        )
        head = part.head if present is not None else first_line(text, name)
        begun = f"{name}:\n{fence}{language(name)}\n{head}"
        reply = await self._ask_for(f"{hint}{wanted}", begun, f"\n{fence}", limit)
        body = block_body(reply.text)
        if body is not None and reply.is_stuck and present is None:
            body = until_stuck(name, body)
        elif reply.finish == "length":
            body = None
        if body is None:
            self._put_in_history(reply.text + f"\n{fence}", ())
            if reply.is_stuck:
                return None, "That only repeats itself. ", f"the model only repeated itself at {name}"
            why = "was cut at the token limit" if reply.finish == "length" else "did not come"
            return None, "That was cut: it is too long. ", f"the text of {name} {why}"
        known = await asyncio.to_thread(self._offered, files, name, body)
        call = call_of(name, body, part, present, text, known)
        if call is None:
            self._put_in_history(reply.text + f"\n{fence}", ())
            return None, f"That is the same text as before. {text}\n\n", ""
        said = f"{name}:\n{fence}{language(name)}\n{body}" if reply.is_stuck else f"{reply.text}\n"
        (result,) = await self._run(reply, said + fence, call)
        if reply.is_stuck:
            self.gave_up = f"the model only repeated itself at the end of {name}"
        if result.is_error:
            return result, f"{result.text}\n\n", f"{name} could not be written"
        if problem := fault_note(name, files.text(name) or ""):
            return result, f"{problem}. Mend it. ", ""
        lacks = self._unmet(text, name, files)
        return result, f"{lacks}. {text}\n\n" if lacks else "", ""

    def _unmet(self, text: str, name: str, files: Files) -> str:
        """What the order names for its only file and what that lacks."""
        return unmet(text, name, files.text(name) or "") if len(self._targets) == 1 else ""

    def _offered(self, files: Files, name: str, body: str) -> dict[str, str]:
        """Names that other Python files define, with their modules: all of this step's files, and what the new text
        binds nowhere where one file alone defines it."""
        if not name.endswith(".py"):
            return {}
        missing = set(unbound_names(body)[:MAX_SOUGHT])
        found: dict[str, set[str]] = {}
        for other in files.holding(sorted(missing))[:MAX_HITS]:
            if other != name and not is_test(other):
                for one, module in offered(other, files.text(other) or "").items():
                    found.setdefault(one, set()).add(module)
        names = {one: modules.pop() for one, modules in found.items() if one in missing and len(modules) == 1}
        for other in self._about:
            if other != name and not is_test(other):
                names |= offered(other, files.text(other) or "")
        return names

    def _show_file(self, name: str, text: str | None, part: Part | None = None) -> None:
        if text is None or (not text.strip() and part is not None):
            return
        shown = part or part_of(text, "")
        title = name if shown.is_whole else f"{name}, lines {shown.first + 1} to {shown.last}"
        faults = fault_note(name, text)
        self._core.emit(ContextAdded(name, shown_file(title, shown.text) + (f"\n{faults}" if faults else "")))

    def _is_in_view(self, name: str, text: str) -> bool:
        """Whether the conversation shows the file as it is: with an earlier question, or as it was written."""
        for message in reversed(self._core.conversation.history):
            at = message.content.rfind(f"{name}:\n```")
            if at >= 0:
                return message.content.startswith(shown_file(name, text), at)
        return False

    async def _answer_to(self, wanted: str, begun: str = "") -> str:
        """A free answer of the model, which begins with `begun`: front ends have seen it, the history does not have it
        yet."""
        reply = await self._ask_for(wanted, begun, "", MAX_ANSWER_TOKENS)
        self._reply_done()
        if reply.finish == "length":
            raise Stop("limit", STUCK if reply.is_stuck else "the answer was cut at the token limit")
        answer = without_markers(reply.text)
        if not answer.strip():
            answer = "I have no answer."
            self.gave_up = "the model gave no answer: its reply was empty"
            self._core.emit(TextDelta(answer))
        return answer

    def _conclude_with(self, text: str, unshown: str | None = None) -> None:
        """Put the step's answer into the history, and before the front end what it has not shown of it (None: all)."""
        self._results.append(text)
        if left := text if unshown is None else unshown:
            self._core.emit(TextDelta(left))
        self._core.emit(AssistantMessage(text, "", ()))
        self.text = "\n".join(self._results)

    async def _ask_for(self, wanted: str, prefix: str, stop: str, max_tokens: int, pattern: str = "") -> Reply:
        """One reply of the model; `wanted` is said to it after the order."""
        core = self._core
        if wanted:
            core.emit(ContextAdded("note", wanted, after=True))
        if not self.n_calls:
            self._check_prompt_fits()
        while True:
            if self.n_calls >= core.limits.max_turns:
                raise Stop("limit", f"stopped after {self.n_calls} model calls (the limit of turns)")
            await self._make_room()
            request = ChatRequest(
                as_blocks(core.conversation.messages),
                (),
                min(max_tokens, core.limits.max_tokens or max_tokens),
                self._sampling,
                stop=(stop,) if stop else (),
                reply_prefix=prefix,
                reply_pattern=pattern,
            )
            if await self._read(request) and self._reply is not None:
                return self._reply

    async def _run_as_is(self, command: str) -> ToolFinished:
        said = Reply(self._core.conversation.used_ids())
        self._begin_runner()
        (result,) = await self._run(said, f"```sh\n{command}\n```", ("shell", {"command": command}))
        return result

    async def _run(self, reply: Reply, said: str, *wanted: tuple[str, Mapping[str, Any]]) -> list[ToolFinished]:
        """Run calls in the name of a reply; both go into the history."""
        runner = self._runner
        assert runner is not None
        calls = tuple(ToolCall(reply.new_id(), name, json.dumps(arguments)) for name, arguments in wanted)
        self._reply = reply
        for call in calls:
            runner.start(call)
        self._put_in_history(said, calls)
        results = await runner.wait()
        self._runner = None
        self.denied = self.denied or any(result.denied for result in results)
        for result in results:
            for path in (diff.path for diff in result.diffs if diff.after is not None):
                self._core.changed[:] = [*(other for other in self._core.changed if other != path), path]
        return results

"""A turn with a small model: its orders are read for it, the form of each reply is set, and blocks become calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pointcode_local.blockparts import call_of, command_pattern, summary, told, until_stuck, wanted_text, what_ran
from pointcode_local.blocks import as_blocks, block_body, fence_of, language, shown_file, without_markers
from pointcode_local.commandlines import PROGRAMS, asks_for_tests, given_command, test_command
from pointcode_local.context_files import mentions
from pointcode_local.engine.types import ChatRequest, SamplingParams, ToolCall
from pointcode_local.events import AssistantMessage, ContextAdded, Steered, TextDelta, ToolFinished
from pointcode_local.failing import asks_to_fix, blamed, is_about_failing_tests, subjects
from pointcode_local.merge import as_edit
from pointcode_local.orders import (
    Order,
    identifiers,
    is_test,
    proper_names,
    read_order,
    rename_candidates,
    rename_words,
    wants_answer,
    whole_word,
)
from pointcode_local.piped import GIVEN
from pointcode_local.replies import Reply
from pointcode_local.shown_files import (
    LISTING,
    MAX_SHOWN_CHARS,
    MAX_SMALL_FOLDER,
    Files,
    Part,
    fault_note,
    part_of,
)
from pointcode_local.smalltalk import ABOUT, is_small_talk
from pointcode_local.turn import STUCK, Core, Stop, Turn

MAX_ANSWER_TOKENS = 1024
MAX_FILE_TOKENS = 2048
MAX_COMMAND_TOKENS = 160
COMMAND_TRIES = 2
TRIES = 3
SECOND_TRY = SamplingParams(
    temperature=0.7, top_p=0.9, seed=1
)  # what was wrong once is not to be repeated word by word
_MISTAKE = re.compile(
    r"(?i)command not found|no such file|invalid option|unrecognized|usage:|cannot stat|missing operand"
)


class BlockTurn(Turn):
    """Plays the steps of a prompt one by one."""

    may_count = False

    def __init__(self, core: Core, number: int, prompt: str = "", later_steps: Sequence[str] = ()) -> None:
        super().__init__(core, number, prompt, later_steps)
        self._prompt = prompt
        self._sampling = core.sampling
        self._results: list[str] = []  # what was done, for the answer

    async def play(self) -> None:
        """Each step to its end; then the answer. Raises Stop for every other end."""
        orders = [self._prompt, *self._later_steps]
        while orders:
            await self._step(orders.pop(0))
            orders[:0] = self._core.take_steers()
            if orders:
                self._core.emit(Steered(orders[0]))

    async def _step(self, text: str) -> None:
        box = self._core.box
        files = await asyncio.to_thread(Files, box.root, box.policy.may_read)
        may_write = box.policy.mode != "plan" and {"write", "edit"} <= set(box.tools)
        if may_write and "shell" in box.tools and (command := self._given_command(text, files)):
            await self._run_given(text, command, files)
            return
        changed = [name for name in self._core.changed if name in files.names]
        order = read_order(text, files.names, changed, can_run="shell" in box.tools)
        kind = order.kind if may_write else "question"
        if kind in ("change", "create") and is_about_failing_tests(text):
            order = await self._about_subject(order, text, files)
        if kind != "command" and (no_text := files.no_text(order.shown)):
            self._conclude_with(no_text)
            return
        self._add_mentions(text, () if kind == "command" else (*order.shown, *order.targets))
        match kind:
            case "command":
                await self._command(text, order, files)
            case "rename" if await self._rename(text, order, files):
                pass
            case "create" | "change" | "rename" if targets := order.targets or await self._found(text, files):
                await self._write_all(text, order, files, targets)
            case _:
                await self._question(text, order, files)

    # ------------------------------------------------------------------------------------------- files
    async def _found(self, text: str, files: Files) -> tuple[str, ...]:
        """The file that an order to change means when it names none: where its names are defined, or stand."""
        home = await asyncio.to_thread(files.home, [*identifiers(text), *proper_names(text)])
        return (home,) if home else ()

    def _add_mentions(self, text: str, shown: Sequence[str]) -> None:
        """What the order mentions as `@path` and what is not shown anyway: folders, files elsewhere."""
        box = self._core.box
        for mention in self._core.window.fitted(mentions(text, box.root, box.policy.may_read)):
            if mention.source.removeprefix("@").removeprefix("./") not in shown:
                self._core.emit(mention)

    async def _write_all(self, text: str, order: Order, files: Files, targets: Sequence[str]) -> None:
        parts = {name: part_of(files.text(name) or "", text) for name in targets}
        for name in dict.fromkeys([*order.shown, *targets]):
            self._show_file(name, files.text(name), parts.get(name))
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
        self.gave_up = next((fault for name, fault in left.items() if not before[name]), self.gave_up)
        self._conclude_with("\n".join([summary(done, problem), *(f"{fault}." for fault in left.values())]))

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
        reply = await self._ask_for(f"{hint}{wanted}", f"{name}:\n{fence}{language(name)}\n", f"\n{fence}", limit)
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
        call = call_of(name, body, part, present, text)
        if call is None:
            self._put_in_history(reply.text + f"\n{fence}", ())
            return None, f"That is the same text as before. {text}\n\n", ""
        said = f"{name}:\n{fence}{language(name)}\n{body}" if reply.is_stuck else f"{reply.text}\n"
        (result,) = await self._run(reply, said + fence, call)
        if reply.is_stuck:
            self.gave_up = f"the model only repeated itself at the end of {name}"
        if result.is_error:
            return result, f"{result.text}\n\n", f"{name} could not be written"
        problem = fault_note(name, files.text(name) or "")
        return result, f"{problem}. Mend it. " if problem else "", ""

    async def _rename(self, text: str, order: Order, files: Files) -> bool:
        """A renamed word, in all its places; False when it is not clear which."""
        names = order.targets or await asyncio.to_thread(files.holding, rename_candidates(text)[0])
        bodies = {name: body for name in names if (body := files.text(name)) is not None}
        old, new = rename_words(text, *bodies.values())
        if not old or not new:
            return False
        word = whole_word(old)
        calls = [
            ("edit", {"path": name, "edits": [edit]})
            for name, body in bodies.items()
            if (edit := as_edit(body, word.sub(lambda _: new, body))) is not None
        ]
        if not calls:
            return False
        said = Reply(self._core.conversation.used_ids())
        self._begin_runner()
        results = await self._run(said, f"Renaming {old} to {new}.", *calls)
        cut = (
            f"\nOnly the first {len(files.names):,} files were looked at." if files.is_cut and not order.targets else ""
        )
        self._conclude_with(summary(results) + cut)
        return True

    # ------------------------------------------------------------------------------------------- commands, questions
    def _given_command(self, text: str, files: Files) -> str:
        """The command that an order spells out, or that runs the project's tests; "" for none."""
        if command := given_command(text, self._is_program):
            return command
        return test_command(files.names, files.text) if asks_for_tests(text) else ""

    def _is_program(self, word: str) -> bool:
        path = self._core.box.root / word
        return word in PROGRAMS or ("/" in word and path.is_file() and os.access(path, os.X_OK))

    async def _run_given(self, text: str, command: str, files: Files) -> None:
        """Run a command as the person gave it; then mend what failed, if that was asked for."""
        result = await self._run_as_is(command)
        if self.denied:
            self._conclude_with(told(result))
            return
        if not asks_to_fix(text):
            await self._tell(text, command, result, wants_answer=wants_answer(text.replace(command, "")))
            return
        ran = what_ran(command, result.text.strip())
        tests, sources = blamed(result.text, files.names, files.text) if result.is_error else ([], [])
        unclear = "\n\nI cannot tell which file is to blame." if result.is_error and not sources else ""
        self._conclude_with(ran + unclear)
        if not sources:
            return
        wish = f"Fix {sources[0]} so that this works."
        self._core.emit(Steered(wish))
        before = files.text(sources[0])
        await self._write_all(wish, Order("change", (sources[0],), (*tests[:1], sources[0])), files, sources[:1])
        if not self.denied and files.text(sources[0]) != before:
            self._conclude_with(what_ran(command, (await self._run_as_is(command)).text.strip()))

    async def _run_as_is(self, command: str) -> ToolFinished:
        said = Reply(self._core.conversation.used_ids())
        self._begin_runner()
        (result,) = await self._run(said, f"```sh\n{command}\n```", ("shell", {"command": command}))
        return result

    async def _about_subject(self, order: Order, text: str, files: Files) -> Order:
        """An order to mend a failing test is about what the test tests, not about the test."""
        named = order.targets or await self._found(text, files)
        tests = [name for name in named if is_test(name)]
        if not tests or len(tests) < len(named):
            return order
        tested = [one for test in tests for one in subjects(test, files.text(test) or "", files.names)]
        return Order("change", tuple(tested[:1]), (*tests, *tested[:1])) if tested else order

    async def _command(self, text: str, order: Order, files: Files) -> None:
        self._core.emit(ContextAdded("files", files.listing()))
        hint, command = "", ""
        results: list[ToolFinished] = []
        for _ in range(COMMAND_TRIES):
            wanted = f"{hint}Write the shell command for this."
            reply = await self._ask_for(wanted, "```sh\n", "\n```", MAX_COMMAND_TOKENS, pattern=command_pattern(text))
            command = (block_body(reply.text) or "").strip()
            results = await self._run(reply, f"```sh\n{command}\n```", ("shell", {"command": command}))
            if self.denied or not _MISTAKE.search(results[-1].text):
                break
            hint = "That command did not work. "
        if self.denied:
            self._conclude_with(told(results[-1]))
        else:
            await self._tell(text, command, results[-1], wants_answer=order.wants_answer)

    async def _tell(self, text: str, command: str, result: ToolFinished, *, wants_answer: bool) -> None:
        """What was run and printed, behind a sentence of the model where the order asks for one."""
        said = await self._answer_to(f"Answer in a sentence: {text}") if wants_answer else ""
        answer = "" if said.startswith("```") or said.strip() in text else f"{said}\n\n"
        ran = what_ran(command, result.text.strip())
        self._conclude_with(answer + ran, unshown=f"\n\n{ran}" if said else ran)

    async def _question(self, text: str, order: Order, files: Files) -> None:
        core = self._core
        if is_small_talk(text):
            core.emit(ContextAdded("note", ABOUT))
            self._conclude_with(await self._answer_to(""), unshown="")
            return
        shown = list(order.shown)
        given = any(one.startswith(GIVEN) for one in core.conversation.pending)
        is_given = given or "\n" in text.strip()  # the question is about what was piped in, or pasted
        hits = [] if shown else await asyncio.to_thread(files.hits, identifiers(text))
        if hits:
            lines = "\n".join(f"{name}:{number}: {line}" for name, number, line in hits)
            core.emit(ContextAdded("search", f"Lines of the files that match:\n{lines}"))
        elif not shown and not is_given and len(files.names) <= MAX_SMALL_FOLDER:
            shown = files.names
        left = 2 * MAX_SHOWN_CHARS
        for name in shown:
            body = files.text(name)
            if body is not None and len(body) <= left and not self._is_in_view(name, body):
                self._show_file(name, body)
                left -= len(body)
        was_listed = any(LISTING in message.content for message in core.conversation.history)
        if not shown and not hits and not is_given and not was_listed:
            core.emit(ContextAdded("files", files.listing()))
            self._show_file(files.readme, files.text(files.readme) if files.readme else None)
        self._conclude_with(await self._answer_to(""), unshown="")

    async def _answer_to(self, wanted: str) -> str:
        """A free answer of the model: front ends have seen it, the history does not have it yet."""
        reply = await self._ask_for(wanted, "", "", MAX_ANSWER_TOKENS)
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

    # ------------------------------------------------------------------------------------------- model and tools
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

"""A turn with a small model: its orders are read for it, the form of each reply is set, and blocks become calls."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import replace

from pointcode_local.asked import new_parameter
from pointcode_local.blockparts import command_pattern, printed, renamed, summary, told, what_ran
from pointcode_local.blocks import block_body
from pointcode_local.blockwork import BlockWork
from pointcode_local.commandlines import (
    PROGRAMS,
    asks_for_tests,
    given_command,
    plain_command,
    test_command,
    what_is_missing,
)
from pointcode_local.context_files import mentions
from pointcode_local.counted import asks_for_names, counted
from pointcode_local.events import ContextAdded, Steered, ToolFinished
from pointcode_local.failing import asks_to_fix, blamed, failed_check, is_about_failing_tests, subjects
from pointcode_local.focus import called_names, function_part, unused_names, with_parameter
from pointcode_local.merge import as_edit
from pointcode_local.orders import (
    Order,
    identifiers,
    is_test,
    no_such_file,
    proper_names,
    read_order,
    rename_candidates,
    rename_words,
    wants_answer,
    whole_word,
)
from pointcode_local.piped import GIVEN
from pointcode_local.replies import Reply
from pointcode_local.shown_files import LISTING, MAX_SHOWN_CHARS, MAX_SMALL_FOLDER, Files, Part
from pointcode_local.smalltalk import ABOUT, is_small_talk

MAX_COMMAND_TOKENS = 160
COMMAND_TRIES = 2
MEND_TRIES = 2
PLAN = "I would"  # begins the answer to an order where nothing may be changed; asked for a plan it says the order again
UNDONE = (
    "Nothing was done now: the model said again what it had done before. Say what is to be changed, and in which file."
)
_CLAIM = re.compile(r"(?:Creat|Edit|Renam)\w* [^\n]*(?:\(\d[\d,]* lines?\)|: \d+ replacements?| in \d+ places?)")
_RUN_IT = re.compile(r"\b((?:run|execute|start)\s+)it\b", re.IGNORECASE)
_INNER = re.compile(r"\b(?:docstrings?|comments?)\b", re.IGNORECASE)
_TELL = re.compile(r"\W*(?:please\s+)?(?:review|summari[sz]e|explain|describe)\b[^\n]{0,80}\Z", re.IGNORECASE)
_MISTAKE = re.compile(
    r"(?i)command not found|no such file|invalid option|unrecognized|usage:|cannot stat|missing operand"
)


class BlockTurn(BlockWork):
    """Plays the steps of a prompt one by one."""

    async def play(self) -> None:
        """Each step to its end; then the answer. Raises Stop for every other end."""
        orders = [self._prompt, *self._later]
        while orders:
            await self._step(orders.pop(0))
            orders[:0] = self._core.take_steers()
            if orders:
                self._core.emit(Steered(orders[0]))

    async def _step(self, text: str) -> None:
        box = self._core.box
        files = await asyncio.to_thread(Files, box.root, box.policy.may_read, text)
        may_write = box.policy.mode != "plan" and {"write", "edit"} <= set(box.tools)
        if may_write and "shell" in box.tools and (command := self._given_command(text, files)):
            await self._run_given(text, command, files)
            return
        if not self._is_given(text) and (missing := what_is_missing(text, files.names)):
            self._conclude_with(missing)
            return
        changed = [name for name in self._core.changed if name in files.names]
        order = read_order(text, files.names, changed, can_run="shell" in box.tools)
        kind = order.kind if may_write else "question"
        if (name := no_such_file(text, files.names, order)) and not files.is_there(name):
            self._conclude_with(f"There is no file {name} in this folder.")
            return
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
                await self._write_all(text, order, files, targets, self._function_part(text, files, targets))
            case _:
                is_plan = box.policy.mode == "plan" and order.kind in ("create", "change", "rename")
                shown = order.shown or (await self._found(text, files) if is_plan else ())
                await self._question(text, replace(order, shown=shown), files, PLAN if is_plan else "")

    # ------------------------------------------------------------------------------------------- files
    async def _found(self, text: str, files: Files) -> tuple[str, ...]:
        """The file that an order to change means when it names none: where its names are defined, or stand."""
        home = await asyncio.to_thread(files.home, [*identifiers(text), *proper_names(text)])
        return (home,) if home else ()

    def _function_part(self, text: str, files: Files, targets: Sequence[str]) -> Part | None:
        """Of a file the only function that the order names, when a docstring or comment belongs into it, or (Python)
        a parameter with a default."""
        name, default = new_parameter(text)
        has_no_part = not name and not _INNER.search(text)
        body = files.text(targets[0]) if len(targets) == 1 else None
        if body is None or has_no_part:
            return None
        part = function_part(targets[0], body, re.findall(r"[A-Za-z_]\w*", text))
        return with_parameter(part, name, default) if part and name else part

    def _add_mentions(self, text: str, shown: Sequence[str]) -> None:
        """What the order mentions as `@path` and what is not shown anyway: folders, files elsewhere."""
        box = self._core.box
        for mention in self._core.window.fitted(mentions(text, box.root, box.policy.may_read)):
            if mention.source.removeprefix("@").removeprefix("./") not in shown:
                self._core.emit(mention)

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
        failed = any(result.is_error for result in results)
        places = {str(call["path"]): len(word.findall(bodies[str(call["path"])])) for _, call in calls}
        self._conclude_with((summary(results) if failed else renamed(old, new, places)) + cut)
        return True

    # ------------------------------------------------------------------------------------------- commands, questions
    def _given_command(self, text: str, files: Files) -> str:
        """The command that an order spells out, or that runs the project's tests; "" for none."""
        changed = [name for name in self._core.changed if name in files.names]
        meant = _RUN_IT.sub(lambda found: f"{found[1]}{changed[-1]}", text, count=1) if changed else text
        if command := given_command(text, self._is_program) or plain_command(meant, files.names):
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
        for _ in range(MEND_TRIES):
            if not await self._mend(command, result, files):
                break
            result = await self._run_as_is(command)
        else:
            self._tell_ran(command, result)
        if result.is_error and not self.denied:
            self.gave_up = f"`{command}` still fails"

    async def _mend(self, command: str, result: ToolFinished, files: Files) -> bool:
        """Change the file that is to blame for what a command printed. False when there is no more to be done."""
        tests, sources = blamed(result.text, files.names, files.text) if result.is_error else ([], [])
        if not sources:
            unclear = "I cannot tell which file is to blame." if result.is_error else ""
            self._tell_ran(command, result, unclear)
            return False
        source, (check, error) = sources[0], failed_check(result.text)
        why = (f"`{check}` gives `{error}`" if check else f"`{error}`") if error else ""
        self._tell_ran(command, result, f"{why}. I change {source}." if why else f"I change {source}.")
        before = files.text(source)
        part = function_part(source, before or "", called_names(check))
        wish = f"Change {source} so that this works{': ' if why else ''}{why}."
        if part is not None and source.endswith(".py") and (unused := unused_names(part.text)):
            wish += f" Make use of {unused[0]}."
        self._core.emit(ContextAdded("note", wish, after=True))
        await self._write_all(wish, Order("change", (source,), (*tests[:1], source)), files, (source,), part)
        return not self.denied and files.text(source) != before

    def _tell_ran(self, command: str, result: ToolFinished, more: str = "") -> None:
        output, more = result.text.strip(), f"\n\n{more}" if more else ""
        self._conclude_with(what_ran(command, output) + more, unshown=printed(output) + more)

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
        output = result.text.strip()
        shown = printed(output)
        self._conclude_with(answer + what_ran(command, output), unshown=f"\n\n{shown}" if said else shown)

    async def _question(self, text: str, order: Order, files: Files, begun: str) -> None:
        core = self._core
        if is_small_talk(text):
            core.emit(ContextAdded("note", ABOUT))
            self._conclude_with(await self._answer_to(""), unshown="")
            return
        shown = list(order.shown)
        is_given = self._is_given(text)
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
        if asks_for_names(text) and (told := " ".join(filter(None, (counted(n, files.text(n) or "") for n in shown)))):
            core.emit(ContextAdded("note", told))
        was_listed = any(LISTING in message.content for message in core.conversation.history)
        if not shown and not hits and not is_given and not was_listed:
            core.emit(ContextAdded("files", files.listing()))
            self._show_file(files.readme, files.text(files.readme) if files.readme else None)
        if not begun and is_given and _TELL.match(text):
            begun = "This"  # else it says the text again
        answer = await self._answer_to("", begun)
        if _CLAIM.match(answer) and not wants_answer(text):
            self.gave_up = "the model said again what it had done before"
            self._conclude_with(UNDONE, unshown=f"\n\n{UNDONE}")
        else:
            self._conclude_with(answer, unshown="")

    def _is_given(self, text: str) -> bool:
        """Whether it is about what was piped in, or pasted."""
        return "\n" in text.strip() or any(one.startswith(GIVEN) for one in self._core.conversation.pending)

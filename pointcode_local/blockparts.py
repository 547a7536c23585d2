"""Pieces of a small model's turn without state: what it is told, the call of a block, what is said of results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pointcode_local.blocks import fence_of, language
from pointcode_local.commandlines import known_programs
from pointcode_local.events import ToolFinished
from pointcode_local.header import with_head
from pointcode_local.merge import as_edit, merged, with_stray_bytes
from pointcode_local.pyimports import with_imports
from pointcode_local.render import plural
from pointcode_local.shown_files import Part, fault_note
from pointcode_local.tools.base import NO_OUTPUT

MAX_SHOWN_OUTPUT = 2000  # characters


def wanted_text(name: str, part: Part, *, is_new: bool) -> str:
    """What the model is asked to write: a new file, a whole one, or some lines of one."""
    if is_new:
        return f"Write the whole file {name}."
    if part.is_whole:
        rest = " Keep all other lines." if len(part.text.split("\n")) > 2 else ""  # a line alone has no others
        return f"Write the whole file {name} with this change.{rest}"
    return f"Write lines {part.first + 1} to {part.last} of {name} again with this change. Keep all other lines."


def until_stuck(name: str, body: str) -> str | None:
    """The new file up to where the model only repeated itself; None when that is no file of its kind."""
    whole = body[: body.rstrip("\n").rfind("\n") + 1]  # the last line is cut anywhere
    return whole if whole.strip() and not fault_note(name, whole) else None


def call_of(
    name: str, body: str, part: Part, present: str | None, order: str, known: Mapping[str, str]
) -> tuple[str, dict[str, Any]] | None:
    """The call that makes the file what the model wrote; None when nothing changes. `known`: names of the project that
    Python code may have forgotten to import, with their modules."""
    is_python = language(name) == "python"
    if present is None:
        return "write", {"path": name, "content": with_imports(body, "", known) if is_python else body}
    if not present.strip():
        return "edit", {"path": name, "edits": [{"old": present, "new": body}]}
    lines = present.splitlines(keepends=True)
    if is_python and part.first == 0:
        body = with_head(part.text, body, order)
    new = merged(part.text, with_stray_bytes(part.text, body), order)
    whole = "".join(lines[: part.first]) + new + "".join(lines[part.last :])
    edit = as_edit(present, with_imports(whole, present, known) if is_python and whole != present else whole)
    return None if edit is None else ("edit", {"path": name, "edits": [edit]})


def command_pattern(order: str) -> str:
    """Lines that begin with a program of this machine, or one that the order names as ./it, up to the block's end."""
    own = re.findall(r"(?<!\S)\./[\w./-]*\w", order)
    known = "|".join(re.escape(name) for name in (*known_programs(), *own))
    line = rf"({known})( [^\n`]*)?"
    return rf"{line}(\n{line}){{0,3}}\n```"


def what_ran(command: str, output: str) -> str:
    """What was run and what came of it."""
    if "\n" in command:
        return f"Ran these commands:\n```sh\n{command}\n```\n{printed(output)}"
    if output == NO_OUTPUT:
        return f"Ran `{command}`, which printed nothing."
    return f"Ran `{command}`, which printed:\n{_output(output)}"


def printed(output: str) -> str:
    """The same where the command itself is in view already."""
    return "It printed nothing." if output == NO_OUTPUT else f"It printed:\n{_output(output)}"


def _output(text: str) -> str:
    shown = (
        text
        if len(text) <= MAX_SHOWN_OUTPUT
        else f"{text[: MAX_SHOWN_OUTPUT // 2]}\n…\n{text[-MAX_SHOWN_OUTPUT // 2 :]}"
    )
    return f"{fence_of(shown)}\n{shown}\n{fence_of(shown)}"


def told(result: ToolFinished) -> str:
    """What came of a call, for the person: the advice that goes to the model with a refusal is left out."""
    return f"Denied: {result.denied}." if result.denied else result.text.strip()


def renamed(old: str, new: str, places: Mapping[str, int]) -> str:
    """What was renamed where; `places`: how often by file."""
    total = sum(places.values())
    where = ", ".join(f"{name} ({n})" for name, n in places.items()) if len(places) > 1 else next(iter(places))
    return f"Renamed {old} to {new} in {plural(total, 'place')}: {where}."


def _made(result: ToolFinished) -> str:
    """Of a change the first line: faults that are left in the file are told apart from it."""
    return told(result) if result.is_error else told(result).partition("\n")[0]


def summary(results: Sequence[ToolFinished], why_not: str = "") -> str:
    """What was done, from the last result of each file, as a list of several; else that nothing was, and why."""
    last = {str(result.arguments.get("path", result.call_id)): _made(result) for result in results}
    if len(last) > 1:
        return "\n".join(f"- {one}" for one in last.values())
    return "".join(last.values()) or f"Nothing was changed: {why_not or 'the new text was the same as before'}."

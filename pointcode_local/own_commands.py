"""Slash commands that the person or the project wrote: Markdown files whose text becomes the prompt.

`NAME.md` in the `commands` folder beside the person's settings, or in the project's `.pointcode/commands`. `$ARGUMENTS`
stands for what follows the name. A file is text and nothing else: it runs nothing, and what it asks for needs the same
permissions as if it had been typed. Built-in commands and the person's own go before the project's.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pointcode_local.complete import COMMANDS, SlashCommand
from pointcode_local.tools.regular import read_regular

MAX_BYTES = 64 * 1024
MAX_COMMANDS = 100
MAX_SUMMARY = 60  # characters
PROJECT_FOLDER = Path(".pointcode", "commands")
ARGUMENTS = "$ARGUMENTS"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_FRONT = re.compile(r"\A---\n(.*?)^---\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """A command as it stands in its file."""

    command: SlashCommand
    text: str

    def prompt(self, argument: str) -> str:
        """The prompt that it makes; an argument that the text has no place for comes last."""
        if ARGUMENTS in self.text:
            return self.text.replace(ARGUMENTS, argument)
        return f"{self.text}\n\n{argument}" if argument else self.text


def own_commands(config: Path, cwd: Path) -> dict[str, OwnCommand]:
    """The commands there are, by name. Files that cannot be read, or hold no text, are none."""
    taken = {command.name for command in COMMANDS}
    found: dict[str, OwnCommand] = {}
    for folder, origin in ((config / "commands", "yours"), (_project_folder(cwd), "project")):
        for path in _files(folder):
            if path.stem not in taken and path.stem not in found and (text := _text(path)).strip():
                found[path.stem] = _parsed(path.stem, text, origin)
    return found


def _project_folder(cwd: Path) -> Path:
    """The nearest one from `cwd` up to the repository's root."""
    for folder in (cwd, *cwd.parents):
        if (folder / PROJECT_FOLDER).is_dir():
            return folder / PROJECT_FOLDER
        if (folder / ".git").exists():
            break
    return cwd / PROJECT_FOLDER


def _files(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    fitting = [path for path in paths if path.suffix == ".md" and _NAME.fullmatch(path.stem)]
    yield from fitting[:MAX_COMMANDS]


def _text(path: Path) -> str:
    """The text of a regular file that is no link: a project's link could lead to a secret."""
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
            return ""
        return read_regular(path, MAX_BYTES).decode("utf-8", "replace").replace("\r\n", "\n").removeprefix("\ufeff")
    except OSError:
        return ""


def _parsed(name: str, text: str, origin: str) -> OwnCommand:
    head = _FRONT.match(text)
    keys = dict(re.findall(r"^([\w-]+):[ \t]*(.*?)[ \t]*$", head[1], re.MULTILINE)) if head else {}
    body = text[head.end() :] if head else text
    first = next((line.strip(" #") for line in body.splitlines() if line.strip(" #")), "")
    summary = _one_line(keys.get("description", "").strip("\"'") or first)
    argument = _one_line(keys.get("argument-hint", "").strip("\"'")) or ("[text]" if ARGUMENTS in body else "")
    return OwnCommand(SlashCommand(name, f"{summary} ({origin})", argument), body.strip())


def _one_line(text: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= MAX_SUMMARY else line[: MAX_SUMMARY - 1] + "…"

"""Slash commands, `@path` completion and prompt history, shared by the interactive front ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

MAX_FILES = 200_000
MAX_HISTORY = 1000
MAX_MATCHES = 8
FILES_FRESH_S = 10.0
_SKIPPED_FOLDERS = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox"}
_MENTION = re.compile(r"""(?<![A-Za-z0-9_@.+/-])@(?:"([^"]*)|'([^']*)|([^\s@"']*))$""")


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command of the composer; `argument` describes what may follow, "" when nothing."""

    name: str
    summary: str
    argument: str = ""


COMMANDS = (
    SlashCommand("help", "keys and commands"),
    SlashCommand("clear", "start a new, empty session"),
    SlashCommand("compact", "shorten the conversation to the model's own notes"),
    SlashCommand("resume", "go back to an earlier session", "[id]"),
    SlashCommand("name", "name this session for lists", "<name>"),
    SlashCommand("undo", "restore the files that the last turn changed"),
    SlashCommand("redo", "change them again"),
    SlashCommand("diff", "what the assistant has changed in this session"),
    SlashCommand("map", "the definitions of this repository that are used most"),
    SlashCommand("mcp", "the MCP servers and what they offer"),
    SlashCommand("jobs", "the commands that the model left running; stop ends one", "[stop N]"),
    SlashCommand("mode", "how permissions are decided: ask, accept-edits, plan or auto", "[mode]"),
    SlashCommand("model", "show or change the model", "[name]"),
    SlashCommand("status", "model, context, speed, mode, sandbox, session and the settings in force"),
    SlashCommand("engine", "what the engine does now: speed, memory, batch"),
    SlashCommand("copy", "copy the last answer to the clipboard"),
    SlashCommand("theme", "choose the colours", "[name]"),
    SlashCommand("quit", "leave; the session is kept"),
)
MODE_MEANING = {
    "ask": "asks before it changes files or runs commands",
    "accept-edits": "edits files without asking, asks before commands",
    "plan": "only reads; nothing is changed",
    "auto": "never asks; commands run in the sandbox",
}


def parse_slash(text: str, own: Sequence[SlashCommand] = ()) -> tuple[str, str] | None:
    """(`name`, argument) when `text` is a known slash command or one of `own`, or a `/word` alone, which is rather a
    mistyped command than something for the model; a path such as `/etc/hosts is wrong` is not one."""
    match = re.fullmatch(r"/([a-z][a-z0-9_-]*)(?:\s+(.*))?", text.strip(), re.DOTALL)
    if match is None:
        return None
    name, argument = match.group(1), (match.group(2) or "").strip()
    is_known = any(command.name == name for command in (*COMMANDS, *own))
    return (name, argument) if is_known or not argument else None


def no_such_command(name: str, own: Sequence[SlashCommand] = ()) -> str:
    """What to say to a mistyped command."""
    close = get_close_matches(name, [command.name for command in (*COMMANDS, *own)], 1)
    return f"there is no command /{name}; " + (f"did you mean /{close[0]}?" if close else "/help lists them")


def commands_help(commands: Sequence[SlashCommand]) -> str:
    """The commands and what they do, one a line."""
    names = [f"/{command.name} {command.argument}".rstrip() for command in commands]
    width = max(map(len, names))
    lines = (f"  {name:<{width}}  {c.summary}" for name, c in zip(names, commands, strict=True))
    return "Commands\n" + "\n".join(lines)


def matching_commands(prefix: str, own: Sequence[SlashCommand] = ()) -> list[SlashCommand]:
    """Commands whose name begins with `prefix` (without the slash), `own` ones last."""
    return [command for command in (*COMMANDS, *own) if command.name.startswith(prefix)]


def mention_at(text_before_cursor: str) -> str | None:
    """The unfinished `@path` before the cursor without its `@` and quote, or None. It may follow a letter where words
    are not parted by spaces, but not a Latin one: that is an address."""
    match = _MENTION.search(text_before_cursor)
    return "".join(filter(None, match.groups())) if match else None


def mention_length(text_before_cursor: str) -> int:
    """How many characters before the cursor the unfinished mention takes, with its `@`."""
    match = _MENTION.search(text_before_cursor)
    return len(match.group()) if match else 0


def mention(name: str) -> str:
    """`@path`, quoted where it has to be."""
    if any(c.isspace() or c in "\"'`" for c in name):
        return f"@'{name}'" if '"' in name else f'@"{name}"'
    return f"@{name}"


def list_files(root: Path) -> list[str]:
    """Paths of the workspace relative to `root`: what git knows or would add, otherwise a walk. At most MAX_FILES."""
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
    ]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return list(_walk(root))
    if done.returncode != 0:
        return list(_walk(root))
    return [os.fsdecode(name) for name in done.stdout.split(b"\0")[:MAX_FILES] if name]


def _walk(root: Path) -> Iterator[str]:
    n_found = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118  (a Path per file is slow)
            n_found += 1
            if n_found >= MAX_FILES:
                return


def fuzzy_paths(query: str, paths: Sequence[str]) -> list[str]:
    """The best few: file names that begin with, then contain, the query; then paths; then subsequences."""
    wanted = query.lower()
    if not wanted:
        return sorted(paths[:2000], key=lambda path: (path.count("/"), path))[:MAX_MATCHES]
    loose = re.compile(".*?".join(map(re.escape, wanted)), re.DOTALL)
    ranked: list[tuple[int, int, str]] = []
    for path in paths:
        lowered = path.lower()
        if not loose.search(lowered):
            continue
        name = lowered.rpartition("/")[2]
        rank = 0 if name.startswith(wanted) else 1 if wanted in name else 2 if wanted in lowered else 3
        ranked.append((rank, len(path), path))
    return [path for _, _, path in sorted(ranked)[:MAX_MATCHES]]


class PathFinder:
    """Completes `@paths` beside the event loop; the list of files is read again after a while."""

    def __init__(self, cwd: Callable[[], Path], clock: Callable[[], float]) -> None:
        self._cwd = cwd
        self._clock = clock
        self._read_at = float("-inf")
        self._files: list[str] = []

    async def find(self, query: str) -> list[str]:
        """The best matches first."""
        if self._clock() - self._read_at > FILES_FRESH_S:
            self._files = await asyncio.to_thread(list_files, self._cwd())
            self._read_at = self._clock()
        return await asyncio.to_thread(fuzzy_paths, query, self._files)


class PromptHistory:
    """Earlier prompts, oldest first, kept in a JSON-lines file when one is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.entries: list[str] = list(_read_history(path))[-MAX_HISTORY:] if path else []

    def add(self, text: str) -> None:
        """Remember a prompt; a repetition of the last one, or an empty one, is not kept."""
        if not text.strip() or (self.entries and self.entries[-1] == text):
            return
        self.entries.append(text)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")
        except OSError:
            self._path = None  # a read-only home folder: history lasts for this run

    def search(self, needle: str) -> list[str]:
        """Entries that contain `needle`, newest first, each once."""
        lowered = needle.lower()
        return list(dict.fromkeys(entry for entry in reversed(self.entries) if lowered in entry.lower()))


def _read_history(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):  # damaged
            continue
        if isinstance(entry, str):
            yield entry

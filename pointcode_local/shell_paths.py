"""Which files a word of a command line may stand for, and which commands read or govern whole folders."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .shell_tree import base_name
from .tools.workspace import Workspace

MAX_WALKED = 20_000
# Of the network: no path of this machine. Not what is behind an `@` (`curl -F 'http://x=@file'`), nor one that goes up.
_ADDRESS = re.compile(r"(?i)\b(?:https?|wss?|ftps?|git|ssh)://(?!\S*/\.\.(?:/|$))[^\s@]*")


def pieces(word: str) -> Iterator[str]:
    """A word, and the parts of it that may be a path of their own (`--file=x`, `HEAD:x`, `-fx`, `a,b`)."""
    yield word
    yield from option_values(word)


def option_values(word: str) -> Iterator[str]:
    """The parts of a word that may be a path of their own: behind `=`, `:`, `,`, `@`, or a short option."""
    word = _ADDRESS.sub("_", word)
    parts = [part for part in re.split(r"[=:,@]", word) if part]
    if len(parts) > 1:
        yield from parts[1:] if word.startswith("-") else parts
    if re.match(r"-[A-Za-z][^-=]", word):
        yield word[2:]


def wider(pattern: str) -> str:
    """A glob that finds what the shell's finds, at least: Python reads `[^a]` and `[[:alpha:]]` in another way."""
    return re.sub(r"\[[!^]?\]?(?:\[([:.=]).*?\1\]|[^\]/])*\]", _wider_set, pattern)


def _wider_set(found: re.Match[str]) -> str:
    if re.fullmatch(r"\[!?[\w.]+\]", found.group(), re.ASCII):
        return found.group()
    leads = found.start() == 0 or found.string[found.start() - 1] == "/"
    return "[!.]" if leads else "?"  # a set never stands for the dot of a hidden name


def is_repository(folder: Path) -> bool:
    """Is it a bare git repository? Its settings can run something, and it may have come with the files."""
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def inside_bare_repository(folder: Path) -> bool:
    """Would git take its settings from a bare repository here, as it looks upwards?"""
    for each in (folder, *folder.parents):
        if os.path.lexists(each / ".git"):
            return False
        if is_repository(each):
            return True
    return False


def reads_folders(words: tuple[str, ...]) -> str:
    """Does a command read the files of whole folders? "hidden": those with a dot too; "plain": the others; "": no."""
    name = base_name(words[0])
    rest = [word.rstrip("\0") for word in words[1:]]
    match name:
        case "grep" | "egrep" | "fgrep" | "zgrep":
            found = any(
                re.fullmatch(r"-[A-Za-z]*[rR].*|--(dereference-)?rec.*|--directories=rec.*|-d", word) for word in rest
            )
        case "rg" | "ag" | "ack":
            if not any(re.fullmatch(r"--(hidden|no-ignore.*|unrestricted)|-[A-Za-z.]*[u.].*", word) for word in rest):
                return "plain"
            found = True
        case "git":
            found = "grep" in rest
        case "diff":
            found = any(re.fullmatch(r"-[A-Za-z]*r.*|--rec.*", word) for word in rest)
        case "find" | "fd":
            found = any(re.fullmatch(r"-(exec|ok)(dir)?|-x|-X|--exec.*", word) for word in rest)
        case "cp" | "scp":
            found = any(re.fullmatch(r"-[A-Za-z]*[rRa].*", word) for word in rest)
        case "tar" | "zip" | "7z" | "rsync" | "xargs":
            found = True
        case _:
            found = False
    return "hidden" if found else ""


def follows_links(name: str, words: list[str]) -> bool:
    """Does a command that reads whole folders go through the links in them too?"""
    match name:
        case "grep" | "egrep" | "fgrep":
            return any(re.fullmatch(r"-[A-Za-z]*R.*|--deref.*", word) for word in words)
        case "rg":
            return any(re.fullmatch(r"-[A-Za-z.]*L.*|--follow", word) for word in words)
        case "diff":
            return any(re.fullmatch(r"-[A-Za-z]*r.*|--rec.*", word) for word in words)
        case _:
            return False


def link_out(workspace: Workspace, folder: Path) -> str | None:
    """A link below the folder that leads out of the workspace."""
    count = 0
    for where, names, files in os.walk(folder):
        for name in names + files:
            path = Path(where, name)
            if path.is_symlink() and not workspace.resolve(str(path)).inside:
                return workspace.display(path)
        count += len(files)
        if count > MAX_WALKED:
            return None
    return None


def is_temporary(path: Path) -> bool:
    """Whether it lies in a folder for temporary files."""
    folders = {Path("/tmp"), Path(os.path.realpath(tempfile.gettempdir()))}
    return any(folder in path.parents for folder in folders)

"""What reaches the model beside the person's words: AGENTS.md files, `@path` mentions, and the folder it works in."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pointcode_local.events import ContextAdded
from pointcode_local.tools.base import ToolError
from pointcode_local.tools.filetext import WIDE_MARKS, decode, show_name, visible
from pointcode_local.tools.regular import as_on_disk, read_regular
from pointcode_local.tools.secrets import is_secret

MAX_RULES_BYTES = 32 * 1024
MAX_MENTION_BYTES = 64 * 1024
MAX_MENTIONS = 10
MAP_SOURCE = "repository map"
MAP_SHARE = 16  # the map takes at most this part of the room that is left
_MENTION = re.compile(r"""(?<![A-Za-z0-9_@.+/-])@(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'`]+))""")
_LATIN = re.compile(r"[\x21-\x7e]+")
_ENDS = ".,;:!?)]}。，、；：！？）】」』"
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tiff", ".ico", ".heic"})


def rules(cwd: Path, home: Path | None = None) -> list[ContextAdded]:
    """The AGENTS.md files from the repository's root down to `cwd` (and the person's own first), each once.

    Together they take at most MAX_RULES_BYTES: the deepest is kept whole first, then the next one up.
    """
    folders = _folders(cwd)
    texts = [(home / "AGENTS.md", _text(home / "AGENTS.md"))] if home else []
    texts += [(folder / "AGENTS.md", _text(folder / "AGENTS.md", within=folders[0])) for folder in folders]
    texts = [(path, text) for path, text in texts if text]
    left = MAX_RULES_BYTES
    kept: list[ContextAdded] = []
    for path, text in reversed(texts):
        shown = text.encode()[:left].decode("utf-8", "ignore") if left > 0 else ""
        left -= len(shown.encode())
        note = (
            ""
            if len(shown) == len(text)
            else f"\n[cut: {len(shown):,} of {len(text):,} characters; read {path} for the rest]"
        )
        kept.append(ContextAdded("AGENTS.md", f"[project rules from {path}]\n{shown.strip()}{note}"))
    return kept[::-1]


def _folders(cwd: Path) -> list[Path]:
    """`cwd` and its parents up to the repository's root, outermost first; `cwd` alone outside of a repository."""
    chain = [cwd, *cwd.parents]
    root = next((i for i, folder in enumerate(chain) if (folder / ".git").exists()), 0)
    return chain[: root + 1][::-1]


def _text(path: Path, within: Path | None = None) -> str:
    """Of a project's file only what it may say to any model: a link out of the repository or to a secret is no rule."""
    real = Path(os.path.realpath(path))
    if within is not None and (not real.is_relative_to(os.path.realpath(within)) or is_secret(real)):
        return ""
    try:
        data = read_regular(real, MAX_RULES_BYTES * 4)
    except OSError:
        return ""
    return (_decoded(data) or "").strip()


def _decoded(data: bytes) -> str | None:
    """The text of a file, or of its beginning; None for what is no text."""
    for n_cut in range(4 if data.startswith(WIDE_MARKS) else 1):  # UTF-16 may end within a character
        with suppress(ToolError):
            return visible(decode(data[: len(data) - n_cut]).text)
    return None


def environment(cwd: Path, mode: str, *, small_model: bool = False) -> ContextAdded:
    """Where the model works; part of the first user message, never of the head. A small model would paste the folder's
    name into paths, so it is not told."""
    text = f"[environment] Working folder: {cwd}. System: {platform.system()}. Permission mode: {mode}."
    if small_model:
        text = "[environment] Give paths exactly as the user names them."
    return ContextAdded("environment", text + (f" {PLAN_NOTE}" if mode == "plan" else ""))


PLAN_NOTE = "In plan mode nothing may be changed: read, think, and answer with a plan."


def mentioned_paths(prompt: str) -> list[str]:
    """The paths that a prompt mentions as `@path` or `@"path with spaces"`, in order, each once."""
    found = [a or b or c for a, b, c in _MENTION.findall(prompt)]
    return list(dict.fromkeys(found))[:MAX_MENTIONS]


def mentions(prompt: str, cwd: Path, may_read: Callable[[Path], bool]) -> list[ContextAdded]:
    """The contents of files that the prompt mentions. Names of no file are words; what may not be read is said so."""
    out: list[ContextAdded] = []
    for written in mentioned_paths(prompt):
        name, path = _existing(written, cwd)
        if path is None:
            continue
        if not may_read(path):
            out.append(ContextAdded(f"@{name}", f"[@{name} was not attached: reading it needs permission]"))
            continue
        out.append(ContextAdded(f"@{name}", _attachment(path, name)))
    return out


def _existing(written: str, cwd: Path) -> tuple[str, Path | None]:
    """What of the written name is one ("a.py?" ends a question), and its path."""
    latin = _LATIN.match(written)  # words may follow without a space, as in Chinese
    for name in (written, written.rstrip(_ENDS), latin.group().rstrip(_ENDS) if latin else ""):
        try:
            path = Path(as_on_disk(os.fspath(cwd / Path(name).expanduser())))
            if name and path.exists():
                return name, path
        except (OSError, ValueError, RuntimeError):
            continue
    return written, None


def _attachment(path: Path, written: str) -> str:
    try:
        if path.is_dir():
            names = sorted(show_name(entry.name) + ("/" if entry.is_dir() else "") for entry in path.iterdir())
            return f"[@{written} is a folder]\n" + "\n".join(names[:200])
    except OSError as error:
        return f"[@{written} cannot be listed: {error.strerror}]"
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return f"[@{written} is an image; this model reads text only]"
    try:
        data = read_regular(path, MAX_MENTION_BYTES + 1)
    except OSError as error:
        return f"[@{written} cannot be read: {error.strerror}]"
    text = _decoded(data[:MAX_MENTION_BYTES])
    if text is None:
        return f"[@{written} is a binary file]"
    note = f"\n[cut after {MAX_MENTION_BYTES:,} bytes; use read for the rest]" if len(data) > MAX_MENTION_BYTES else ""
    return f"[contents of @{written}]\n{text}{note}"

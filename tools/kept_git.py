"""What of a repository's git folder a confined command must not change: what git would run later, with all rights.

That are the hooks and the settings (`core.fsmonitor`, aliases, filters, …), of submodules too; the file `.git` of a
worktree, which says where they lie; and hooks that the settings place in the tree (`core.hooksPath`). All else in
`.git` must stay writable: a commit makes new files right in it.
"""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .git_settings import SettingsCopies

MAX_MODULES = 500  # folders below .git/modules that are looked at
_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class KeptGit:
    """`read_only`: files and folders; `settings`: files of which a command may change a copy (git_settings.py);
    `pinned`: folders around them, outer ones first, that must keep their names, or others could be put in their place;
    `absent`: what must not come to be."""

    read_only: tuple[Path, ...] = ()
    settings: tuple[Path, ...] = ()
    pinned: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()


def kept_git(root: Path) -> KeptGit:
    """What to keep of the repository in `root` (absolute, links resolved); nothing where there is none.

    Makes `.git/hooks` when it is missing: what is not there cannot be kept.
    """
    entry = root / ".git"
    if entry.is_symlink() or not entry.exists():
        return KeptGit()
    if not entry.is_dir():
        return KeptGit(read_only=(entry,))
    folders = [entry, *itertools.islice(_below(entry / "modules"), MAX_MODULES)]
    repositories = [folder for folder in folders if (folder / "config").is_file()]
    for folder in repositories:
        with suppress(OSError):  # where we cannot make it, nor can the command
            (folder / "hooks").mkdir(exist_ok=True)
    names = ("hooks", "config.worktree")
    kept = [path for folder in repositories for name in names if _is_own(path := folder / name)]
    settings = [path for folder in repositories if _is_own(path := folder / "config")]
    hooks = _hooks_in_tree(root, entry)
    around = [parent for parent in hooks.parents if parent.is_relative_to(root) and parent != root] if hooks else []
    absent = [path for folder in repositories if not (path := folder / "commondir").exists()]  # leads to other settings
    pinned = (*folders, *reversed(around))
    return KeptGit((*kept, *([hooks] if hooks else [])), tuple(settings), pinned, tuple(absent))


def _is_own(path: Path) -> bool:
    return path.exists() and not path.is_symlink()


def _below(modules: Path) -> Iterator[Path]:
    """The folders on the way to the submodules' repositories, and these; outer ones first."""
    if not modules.is_dir() or modules.is_symlink():
        return
    yield modules
    for folder in sorted(path for path in modules.iterdir() if path.is_dir() and not path.is_symlink()):
        if not (folder / "HEAD").is_file():
            yield from _below(folder)
            continue
        yield folder
        yield from _below(folder / "modules")


def _hooks_in_tree(root: Path, git_folder: Path) -> Path | None:
    """The folder of `core.hooksPath` when it lies in the tree."""
    try:
        settings = (git_folder / "config").read_text("utf-8", "replace").casefold()
    except OSError:
        return None
    if "hookspath" not in settings and "[include" not in settings:
        return None
    command = ["git", "-C", str(root), "config", "--type=path", "--get", "core.hooksPath"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    path = root / done.stdout.removesuffix("\n")
    is_inside = path.is_dir() and path.resolve() == path and path.is_relative_to(root)
    return path if is_inside and path != root and not path.is_relative_to(git_folder) else None


class GitGuard:
    """What is kept for one command, from before its start to behind its end."""

    def __init__(self, kept: KeptGit, *, copies: bool) -> None:
        """`copies`: links can be mounted here; without them the settings are read-only. Raises OSError."""
        self._kept = kept
        self._copies = SettingsCopies(kept.settings if copies else ())
        self._lock = threading.Lock()
        self._note: str | None = None

    @property
    def pinned(self) -> tuple[Path, ...]:
        """Folders that keep their names."""
        return self._kept.pinned

    @property
    def links(self) -> list[tuple[Path, Path]]:
        """(link, the file that it is mounted over)."""
        return self._copies.links

    @property
    def read_only(self) -> tuple[Path, ...]:
        """What cannot be written; where a link cannot be mounted, its file neither."""
        return self._kept.read_only if self.links else (*self._kept.read_only, *self._kept.settings)

    def close(self) -> str:
        """The command has ended: what it may change is changed; what it may not, for the model. Once is enough."""
        with self._lock:
            if self._note is None:
                for path in self._kept.absent:
                    with suppress(OSError):
                        path.unlink()
                self._note = self._copies.close()
            return self._note

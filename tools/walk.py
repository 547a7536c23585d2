"""Which files a search sees: everything but `.git` and what .gitignore and .ignore files exclude; dotfiles count.

Symlinked folders are not entered, so loops cannot happen. One order: by name, folders in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from pathlib import Path

from pathspec import GitIgnoreSpec

from .regular import read_regular

IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
MAX_RULES_BYTES = 1 << 20  # of one ignore file
MAX_RULES = 5_000
MAX_RULE_CHARS = 1_000
MAX_DEEP_STARS = 3  # `**`
MAX_TRIES = 200_000
ALWAYS_SKIPPED = frozenset({".git", ".hg", ".svn", ".jj"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a folder. `name` is relative to the base of the walk, with `/`; `ignored` by an ignore file."""

    path: Path
    name: str
    is_folder: bool
    is_file: bool  # a regular one: pipes and devices are not
    is_link: bool
    ignored: bool


@dataclass(frozen=True, slots=True)
class _Rules:
    base: str  # folder of the ignore file
    spec: GitIgnoreSpec

    def verdict(self, relative: str) -> bool | None:
        """The last rule for this very path (a folder ends with `/`); None when there is none.

        pathspec lets a rule for a folder decide what lies below it, too. Here the walk does not enter ignored folders,
        and as in git the rule that brings a folder back says nothing of what it holds.
        """
        for pattern in reversed(self.spec.patterns):
            if pattern.include is None or _takes_long(str(pattern.pattern), relative):
                continue
            found = pattern.match_file(relative)
            if found is None:
                continue
            is_below = found.match.groupdict().get("ps_d") is not None and found.match.end() < len(relative)
            if not is_below:
                return pattern.include
        return None


class IgnoreChain:
    """The ignore rules in force in a folder: the deepest decisive rule wins."""

    def __init__(self, rules: tuple[_Rules, ...] = ()) -> None:
        self._rules = rules

    def entered(self, folder: str) -> IgnoreChain:
        """The chain inside `folder`, with that folder's own ignore files added."""
        added: list[_Rules] = []
        for name in IGNORE_FILES:
            if (spec := _load(os.path.join(folder, name))) is not None:  # noqa: PTH118 - hot path
                added.append(_Rules(folder, spec))
        return IgnoreChain((*self._rules, *added)) if added else self

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Is this absolute path excluded?"""
        for rules in reversed(self._rules):
            relative = path[len(rules.base) :].lstrip("/") + ("/" if is_folder else "")
            verdict = rules.verdict(relative)
            if verdict is not None:
                return verdict
        return False


def _load(path: str) -> GitIgnoreSpec | None:
    """The rules of a file. As in git a link is none: what it leads to was not written for this folder."""
    try:
        if os.path.islink(path):  # noqa: PTH114 - hot path
            return None
        text = read_regular(path, MAX_RULES_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    lines = [line for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n") if _is_rule(line)]
    del lines[MAX_RULES:]
    try:
        return GitIgnoreSpec.from_lines(lines) if lines else None
    except ValueError:
        return GitIgnoreSpec.from_lines([line for line in lines if _is_valid(line)])


def _is_rule(line: str) -> bool:
    return bool(line.strip()) and len(line) <= MAX_RULE_CHARS and line.count("**") <= MAX_DEEP_STARS


@lru_cache(maxsize=4096)
def _n_stars(rule: str) -> int:
    """The most stars that stand within one name of a rule."""
    return max(re.sub(r"\*+", "*", part).count("*") for part in rule.split("/"))


def _takes_long(rule: str, relative: str) -> bool:
    """Trying a rule can take as many steps as there are ways to lay its stars: some are made to keep a search busy."""
    n_stars = _n_stars(rule)
    return n_stars > 2 and comb(max(map(len, relative.split("/"))), n_stars) > MAX_TRIES


def _is_valid(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def chain_for(base: Path, root: Path) -> IgnoreChain:
    """The rules that hold at `base`, from `root` down; none when `base` is itself ignored (it was named on purpose)."""
    folders = [base, *base.parents]
    above = [folder for folder in folders if folder == root or root in folder.parents] or [base]
    chain = IgnoreChain(_exclude_file(root))
    for folder in reversed(above):
        if folder != root and chain.ignores(str(folder), True):
            return IgnoreChain()
        if folder != base:
            chain = chain.entered(str(folder))
    return chain


def _exclude_file(root: Path) -> tuple[_Rules, ...]:
    spec = _load(str(root / ".git" / "info" / "exclude"))
    return (_Rules(str(root), spec),) if spec is not None else ()


def walk(
    base: Path,
    root: Path,
    *,
    max_depth: int | None = None,
    with_ignored: bool = False,
    skipped: frozenset[str] = ALWAYS_SKIPPED,
) -> Iterator[Entry]:
    """Entries below `base`, depth first. With `with_ignored`, ignored entries are given too (folders not entered).
    Folders whose name is in `skipped` are not seen at all."""
    yield from _walk(str(base), "", chain_for(base, root), max_depth, with_ignored, skipped)


def _walk(
    folder: str, prefix: str, chain: IgnoreChain, depth: int | None, with_ignored: bool, skipped: frozenset[str]
) -> Iterator[Entry]:
    chain = chain.entered(folder)
    try:
        with os.scandir(folder) as entries:
            present = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in present:
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in skipped and (is_folder or entry.name == ".git"):
            continue
        ignored = chain.ignores(entry.path, is_folder)
        if ignored and not with_ignored:
            continue
        name = prefix + entry.name
        yield Entry(
            Path(entry.path), name, is_folder, entry.is_file(follow_symlinks=False), entry.is_symlink(), ignored
        )
        if is_folder and not ignored and (depth is None or depth > 1):
            deeper = None if depth is None else depth - 1
            yield from _walk(entry.path, name + "/", chain, deeper, with_ignored, skipped)


def files(base: Path, root: Path) -> Iterator[Entry]:
    """Regular files below `base` that a search sees."""
    for entry in walk(base, root):
        if entry.is_file:
            yield entry

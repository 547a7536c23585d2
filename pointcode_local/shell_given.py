"""What words give a program to run: `git -c alias.x='!…'`, `tar --checkpoint-action=exec=…`, `sed 1e…`, `xargs …`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .shell_sed import sed_danger

_MAX_LETTERS = 4  # of options that stand together before their value, as in `rsync -ae'ssh …'`
_MAX_LEADS = 8
_LEAD = re.compile(r"[\w-]*[=:!]\s*|[+:!\\.|]+\s*|(?:shell|system|exec|sh)\b\s*")
# Options of commands that otherwise run none of their words; the value is the next word or a part of the option.
_OPTIONS = {
    "git": re.compile(r"-c|--config.*|--exec.*|-x.*|-O.*|--open.*|--upload.*|--rec.*|--extc.*|-u"),
    "sort": re.compile(r"--co.*"),
    "rg": re.compile(r"--pre.*|--hostname-bin.*"),
    "printf": re.compile(r"-v"),
    "test": re.compile(r"-[vR]"),
    "[": re.compile(r"-[vR]"),
}
_GIT_RUNS = re.compile(
    r"bisect|submodule|filter-branch|difftool|mergetool|config|for-each-repo|interpret-trailers|send-email"
)
_TAKES_VALUE = re.compile(r"-[InPdLsaEjN]|--(jobs|delimiter|max-args|max-procs|arg-file)")


def inner(word: str) -> Iterator[str]:
    """A word, and what of it a program may take for a command: what is behind `-X`, `name=`, `!`, `exec`."""
    yield word
    if option := re.match(rf"-[A-Za-z]{{1,{_MAX_LETTERS}}}", word):
        yield from (word[at:] for at in range(2, option.end() + 1))
    at = 0
    for _ in range(_MAX_LEADS):
        if (found := _LEAD.match(word, at)) is None or found.end() == at:
            return
        at = found.end()
        yield word[at:]


def given(name: str, words: list[str]) -> Iterator[str]:
    """Texts that a command which looks harmless is told to run by its words (without its name)."""
    if (options := _OPTIONS.get(name)) is not None:
        for at, word in enumerate(words):
            if options.fullmatch(word):
                yield from words[at : at + 2]
    if name == "git":
        at = next((at for at, word in enumerate(words) if _GIT_RUNS.fullmatch(word)), None)
        if at is not None:
            yield " ".join(words[at:])
    if name == "sed" and sed_danger(words) is not None:
        yield from words


def completed(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command that `xargs` or `parallel` completes with what it reads; () where it has none."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if _TAKES_VALUE.fullmatch(words[at]) else 1
    return words[at:]

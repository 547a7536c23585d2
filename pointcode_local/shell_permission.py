"""Judges one command line: what forbids it, what makes it ask, and whether every part of it is allowed.

Allowing rests on the small reader (`shell_words`) and the grammar agreeing; forbidding on everything that the grammar
finds, however deep (`shell_tree`).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePath

from .guarded import is_protected, names_of
from .rules import WRITERS, Rule, Rules, command_matches, fixed_prefix, path_matches, tool_matches
from .shell_names import INTERPRETERS, NEVER_BY_WILDCARD
from .shell_paths import (
    MAX_WALKED,
    follows_links,
    inside_bare_repository,
    is_repository,
    is_temporary,
    link_out,
    option_values,
    pieces,
    reads_folders,
    wider,
)
from .shell_safety import danger, read_only
from .shell_tree import Reading, base_name, may_match, read_tree
from .shell_words import Simple, Unsure, Word, read_plain, split_options
from .tools.base import ToolError
from .tools.secrets import is_secret
from .tools.workspace import Place, Workspace

MAX_EXPANDED = 2000
MAX_LISTED = 200_000
MAX_NAMED = 5  # files in one reason
PATTERN_FIRST = frozenset(
    {"grep", "egrep", "fgrep", "rg", "ag", "ack", "sed", "awk", "gawk", "mawk", "jq", "tr", "find"}
)
NO_PATHS = frozenset({"echo", "printf", "true", "false", "test", "date", "seq", "sleep", "expr"})
HARMLESS_TARGETS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/")


class ShellJudge:
    """All questions about one command line; every answer is a reason, or None."""

    def __init__(self, rules: Rules, line: str, workspace: Workspace) -> None:
        self.rules = rules
        self.line = line
        self.workspace = workspace
        self.plain = self._agreed(read_plain(line.strip(" \t")))

    @cached_property
    def tree(self) -> Reading:
        """All that the line might run; read when it is first wanted."""
        return read_tree(self.line)

    def _agreed(self, plain: tuple[Simple, ...] | Unsure) -> tuple[Simple, ...] | Unsure:
        """The small reader's commands, if the grammar sees the same words."""
        if isinstance(plain, Unsure):
            return plain
        ours = [tuple(word.text for word in command.words) for command in plain]
        theirs = {tuple(word.rstrip("\0") for word in words) for words in self.tree.commands}
        if not all(
            words in theirs or tuple(word.raw for word in command.words) in theirs
            for words, command in zip(ours, plain, strict=True)
        ):
            return Unsure("it could be read in two ways")
        return plain

    # --------------------------------------------------------------------------------------------- forbidding
    def denied(self) -> str | None:
        """A deny rule that the line falls under."""
        for rule in self.rules.of("deny"):
            if (what := self._falls_under(rule)) is not None:
                return f"{what} is covered by the rule deny {rule.text}"
        return None

    def asked(self) -> str | None:
        """An ask rule that the line falls under."""
        for rule in self.rules.of("ask"):
            if (what := self._falls_under(rule)) is not None:
                return f"{what} is covered by the rule ask {rule.text}"
        return None

    def _falls_under(self, rule: Rule) -> str | None:
        if tool_matches(rule, "shell"):
            if rule.pattern is None:
                return "every command"
            return self.line.strip() if self._runs(rule.pattern) else None
        if rule.pattern is None:
            return None
        if rule.tool == "read":
            return next(
                (
                    place.name
                    for place in self.touched + self.below
                    if path_matches(rule, names_of(place, self.workspace))
                ),
                None,
            )
        if rule.tool in WRITERS and self.not_read_only() is not None:
            return next(
                (place.text for place in self.touched if path_matches(rule, names_of(place, self.workspace))), None
            )
        return None

    def _runs(self, pattern: str) -> bool:
        """Might the line run a command that the pattern names?"""
        if command_matches(pattern, self.line.strip()) or command_matches(pattern, " ".join(self.line.split())):
            return True
        if any(may_match(pattern, words) for words in self.tree.commands):
            return True
        if isinstance(self.plain, Unsure) or self.tree.texts or self.tree.unsure:
            return self._mentions(pattern)
        return False

    def _mentions(self, pattern: str) -> bool:
        """Does a program text, or a line that is only known when it runs, hold the pattern's fixed words in order?"""
        prefix = fixed_prefix(pattern).split()
        if not prefix:
            return False
        hidden = self.tree.unsure or any(base_name(words[0]) in INTERPRETERS for words in self.tree.commands)
        texts = [*self.tree.texts, *([self.line] if hidden else [])]
        wanted = (
            r"(?<![\w-])"
            + r"\s+".join(re.escape(word) for word in prefix)
            + ("" if pattern.strip().endswith("*") else r"(?![\w-])")
        )
        if any(re.search(wanted, re.sub(r"[\"'\\,()\[\]{}]+", " ", text)) for text in texts):
            return True
        return (
            bool(self.tree.unsure) and re.search(rf"(?<![\w-]){re.escape(prefix[0])}(?![\w-])", self.line) is not None
        )

    # --------------------------------------------------------------------------------------------- files
    @cached_property
    def touched(self) -> tuple[Place, ...]:
        """Every existing or plainly named file that the line may touch, through globs and inside program texts too."""
        places: dict[tuple[str, Path], Place] = {}
        texts = list(dict.fromkeys(self._path_texts()))
        for cwd in self._cwds():
            for name in dict.fromkeys(name for text in texts for name in self._expanded(text, cwd)):
                with suppress(ToolError):
                    places[name, cwd] = self.workspace.resolve(name, cwd)
        return tuple(places.values())

    def _cwds(self) -> list[Path]:
        """The workspace and every folder that the line changes to."""
        found = [self.workspace.root]
        changes = [words for words in self.tree.commands if base_name(words[0]) in ("cd", "pushd")]
        for word in (word for words in changes for word in words[1:]):
            with suppress(ToolError):
                found.append(self.workspace.resolve(word.rstrip("\0")).path)
        return list(dict.fromkeys(found))

    def _path_texts(self) -> Iterator[str]:
        for word in dict.fromkeys(self.tree.words):
            yield from pieces(word)
        line = self.line
        for said in () if self.tree.unsure else self.tree.said:
            line = line.replace(said, " ", 1)
        for token in list(dict.fromkeys(re.findall(r"[\w.~/*?\[\]@+-]+", line)))[:MAX_EXPANDED]:
            for piece in (token, token.lstrip("/"), token.rsplit("/", 1)[-1]):
                if piece and (os.path.lexists(self.workspace.root / piece) or re.search(r"[*?\[]", piece)):
                    yield piece

    def _expanded(self, text: str, cwd: Path | None = None) -> list[str]:
        """A word and the files that it stands for as a glob; of more than MAX_EXPANDED only the secret ones."""
        if not re.search(r"[*?\[]", text):
            return [text]
        pattern = wider(str(Path(text).expanduser()) if text.startswith("~/") else text)
        found = glob.iglob(pattern, root_dir=cwd or self.workspace.root, include_hidden=True)  # noqa: PTH207 - relative
        names = [text, *islice(found, MAX_EXPANDED)]
        return names + [name for name in islice(found, MAX_LISTED) if is_secret(PurePath(name))]

    @cached_property
    def below(self) -> tuple[Place, ...]:
        """Files that a command reading whole folders would come upon: secrets, and what rules on reading name."""
        found: dict[Path, Place] = {}
        readers = [(words, kind) for words in self.tree.commands if (kind := reads_folders(words))]
        for words, kind in readers:
            for folder in self._folders(words):
                for place in self._guarded_below(folder, hidden=kind == "hidden"):
                    found.setdefault(place.path, place)
        return tuple(found.values())

    def _folders(self, words: tuple[str, ...]) -> list[Path]:
        """The folders that a command names; the whole workspace when that is not certain."""
        if any(word.endswith("\0") for word in words) or base_name(words[0]) == "xargs":
            return [self.workspace.root]
        places = [self.workspace.resolve(word) for word in words[1:] if word and not word.startswith("-")]
        return [place.path for place in places if place.inside and place.path.is_dir()] or [self.workspace.root]

    def _guarded_below(self, folder: Path, *, hidden: bool) -> Iterator[Place]:
        rules = [rule for rule in self.rules.items if rule.tool == "read" and rule.effect != "allow" and rule.pattern]
        count = 0
        for where, names, files in os.walk(folder):
            names[:] = [name for name in names if name not in (".git", "node_modules") and (hidden or name[0] != ".")]
            for name in files:
                if not hidden and name[0] == ".":
                    continue
                path = Path(where, name)  # of a real folder: only its last name may be a link
                if not rules and not is_secret(path) and not path.is_symlink():
                    continue
                place = self.workspace.resolve(str(path))
                if is_secret(place.path) or any(path_matches(rule, names_of(place, self.workspace)) for rule in rules):
                    yield place
            count += len(files)
            if count > MAX_WALKED:
                return

    def secret(self, *, folders: bool = True) -> str | None:
        """The files that may hold secrets and that the line touches; with `folders`, also where it reads whole ones."""
        places = self.touched + (self.below if folders else ())
        secrets = [p for p in places if (is_secret(p.path) or is_secret(p.lexical)) and self._counts(p)]
        names = list(dict.fromkeys(place.name for place in secrets))
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return f"it touches {', '.join(names[:MAX_NAMED])}{more}, which may hold secrets" if names else None

    def misplaced(self) -> str | None:
        """A file that the line writes where that can do harm: outside, or where it can run something later."""
        for target in self.tree.writes:
            if target.startswith(HARMLESS_TARGETS):
                continue
            try:
                place = self.workspace.resolve(target)
            except ToolError:
                return f"it writes to {target!r}"
            if not place.inside and not is_temporary(place.path):
                return f"it writes outside the workspace ({place.path})"
            if is_protected(self.workspace, place):
                return f"it writes to {place.name}, where a change can run something later"
        return None

    def _counts(self, place: Place) -> bool:
        """A name that merely looks like a secret's does not count when there is no such file and it is no path."""
        return (
            os.path.lexists(place.path)
            or os.path.lexists(place.lexical)
            or "/" in place.text
            or place.text.startswith(".env")
            or any(word.endswith(f":{place.text}") for word in self.tree.words)  # of a commit
        )

    # --------------------------------------------------------------------------------------------- allowing
    def is_allowed_exactly(self) -> bool:
        """An allow rule without a wildcard is this whole line, letter for letter."""
        rules = [rule for rule in self.rules.of("allow") if rule.tool == "shell" and rule.is_exact]
        return any(command_matches(rule.pattern or "", self.line.strip()) for rule in rules)

    def unknowable(self) -> str | None:
        """In mode auto: why a rule that forbids something cannot be checked on this line."""
        forbids = any(rule.effect != "allow" and tool_matches(rule, "shell") for rule in self.rules.items)
        if forbids and self.tree.unsure:
            return f"rules forbid some commands, and of this one {self.tree.unsure[0]}"
        return None

    def not_read_only(self) -> str | None:
        """Why the line is not made of reading commands only."""
        if isinstance(self.plain, Unsure):
            return self.plain.reason
        return (
            self._unforeseen()
            or self.secret()
            or self.misplaced()
            or next(
                (f"`{command.source}` is not known to only read" for command in self._all() if not read_only(command)),
                None,
            )
            or self._leaves()
        )

    def not_allowed(self) -> str | None:
        """Why some part of the line is neither allowed by a rule nor known to only read."""
        if isinstance(self.plain, Unsure):
            return self.plain.reason
        if (reason := self._unforeseen()) is not None:
            return reason
        for command in self._all():
            if not read_only(command) and (reason := self._uncovered(command)) is not None:
                return reason
        return self._leaves()

    def _unforeseen(self) -> str | None:
        """What the line will do and cannot be looked at."""
        if isinstance(self.plain, Unsure):
            return self.plain.reason
        if any(command.name == "git" for command in self.plain) and inside_bare_repository(self.workspace.root):
            return "the workspace is a bare git repository, whose settings can run something"
        for command, expanded in zip(self.plain, self._all(), strict=True):
            if len(expanded.words) - len(command.words) >= MAX_EXPANDED - 1:
                return f"`{command.source}` names more files than are looked at"
        return None

    def _all(self) -> list[Simple]:
        """The commands, each with its globs as they expand where it runs (below a leading `cd`)."""
        if isinstance(self.plain, Unsure):
            return []
        cwd = self._cwds()[-1] if self.plain[0].name == "cd" else None
        return [self._with_globs(command, cwd if at else None) for at, command in enumerate(self.plain)]

    def _with_globs(self, command: Simple, cwd: Path | None) -> Simple:
        """The command as the shell would call it, with globs replaced by the names they now stand for."""
        words: list[Word] = [command.words[0]]
        for word in command.words[1:]:
            if not word.has_glob:
                words.append(word)
                continue
            names = self._expanded(word.text, cwd)[1:]
            words += [Word(name, name) for name in names] or [replace(word, has_glob=False)]
        return replace(command, words=tuple(words))

    def _uncovered(self, command: Simple) -> str | None:
        harm = danger(command)
        reason = f"no rule allows `{command.source}`"
        for rule in self.rules.of("allow"):
            if not tool_matches(rule, "shell"):
                continue
            pattern = rule.pattern
            if pattern is None:
                if command.name not in NEVER_BY_WILDCARD and harm is None:
                    return None
                continue
            if not (command_matches(pattern, command.canonical) or command_matches(pattern, command.source)):
                continue
            if rule.is_exact:
                return None
            if command.name in NEVER_BY_WILDCARD and command.name not in fixed_prefix(pattern).split()[1:]:
                reason = f"`{command.name}` runs other commands"
            elif harm is not None and harm not in fixed_prefix(pattern).split():
                reason = f"{harm!r} makes `{command.name}` write or run something"
            else:
                return None
        return reason

    def _leaves(self) -> str | None:
        """A path argument that leads out of the workspace, or cannot be followed."""
        assert not isinstance(self.plain, Unsure)
        cwd = self.workspace.root
        for at, command in enumerate(self._all()):
            if command.name == "cd":
                if at > 0 or len(command.words) != 2 or command.words[1].text == "-" or self.plain[0].words[1].has_glob:
                    return "it changes the folder in a way that cannot be followed"
                place = self.workspace.resolve(command.words[1].text)
                if not place.inside:
                    return f"{command.words[1].text} leads outside the workspace ({place.path})"
                cwd = place.path
                if any(map(is_repository, (cwd, *cwd.parents))):
                    return f"{command.words[1].text} is a git repository of its own, whose settings can run something"
                continue
            for text in self._operand_paths(command):
                if (reason := self._outside(text, cwd)) is not None:
                    return reason
            if follows_links(command.name, [word.text for word in command.words[1:]]):
                folders = [cwd / word.text for word in command.words[1:] if (cwd / word.text).is_dir()] or [cwd]
                if (
                    link := next(filter(None, (link_out(self.workspace, folder) for folder in folders)), None)
                ) is not None:
                    return f"{link} leads outside the workspace"
        return None

    def _operand_paths(self, command: Simple) -> Iterator[str]:
        for word in command.inputs:
            yield word.text
        if command.name in NO_PATHS:
            return
        words = list(command.words[1:])
        options, operands = split_options([word.text for word in words])
        if command.name in PATTERN_FIRST and not any(
            re.match(r"-[A-Za-z]*[ef]|--regexp|--file|--expression", option) for option in options
        ):
            operands = operands[1:] if command.name != "find" else operands
        for text in operands:
            yield from pieces(text)
        for option in options:
            yield from (piece for piece in option_values(option) if "/" in piece or piece.startswith(("~", "..")))

    def _outside(self, text: str, cwd: Path) -> str | None:
        if not text or re.match(r"[a-z]+://", text):
            return None
        try:
            place = self.workspace.resolve(text, cwd)
        except ToolError as error:
            return str(error)
        if place.inside or place.path == Path("/dev/null"):
            return None
        return f"{text} leads outside the workspace ({place.path})"

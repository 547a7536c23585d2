"""Permission rules: `tool` or `tool(glob on its command or path)`, read from settings and matched.

In a command `*` stands for any text and `\\*` for a star; a rule without `*` is exact. In a path `*` stays within a
name and `**` crosses folders for allow rules; deny and ask rules reach further: there `*` crosses folders, and a name
without `/` is meant at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

Effect = Literal["allow", "ask", "deny"]
EFFECTS: tuple[Effect, ...] = ("allow", "ask", "deny")
WRITERS = frozenset({"edit", "write", "patch", "replace_symbol"})
READERS = frozenset({"read", "grep", "outline", "edit", "patch", "replace_symbol"})
_RULE = re.compile(r"\s*([A-Za-z_*][\w*.-]*)\s*(?:\((.*)\)\s*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as it was written. `pattern` None: every call of the tool."""

    effect: Effect
    tool: str
    pattern: str | None
    text: str

    @property
    def is_exact(self) -> bool:
        """Has no wildcard."""
        return self.pattern is not None and not re.search(r"(?<!\\)(?:\\\\)*\*", self.pattern)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules in force. Deny goes before ask, ask before allow."""

    items: tuple[Rule, ...] = ()

    def of(self, effect: Effect) -> tuple[Rule, ...]:
        """The rules with one effect."""
        return tuple(rule for rule in self.items if rule.effect == effect)

    def with_rule(self, effect: Effect, text: str) -> Rules:
        """These rules and one more, as the person's "always" adds it; raises ValueError when it is malformed."""
        return Rules((*self.items, parse_rule(effect, text)))


def parse_rule(effect: Effect, text: object) -> Rule:
    """Read one rule; raises ValueError saying what is wrong with it."""
    if not isinstance(text, str):
        raise ValueError(f"a rule must be a string such as 'shell(git status *)', not {text!r}")
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"malformed rule {text!r}: write a tool's name, or tool(pattern), e.g. 'edit(src/*)'")
    tool, pattern = found.group(1), found.group(2)
    if pattern is not None and not pattern.strip():
        raise ValueError(f"malformed rule {text!r}: the pattern is empty; leave the parentheses out to mean every call")
    return Rule(effect, tool, pattern, text.strip())


def load_rules(
    person: Mapping[str, object] | None, project: Mapping[str, object] | None = None, *, trusted: bool = False
) -> tuple[Rules, tuple[str, ...]]:
    """Rules from the `[permissions]` tables of the person's and the project's settings, and what was wrong with them.

    A project's deny and ask rules always count, its allow rules only when the person trusts its file. A malformed deny
    or ask rule is an error the caller must not pass over.
    """
    rules: list[Rule] = []
    problems: list[str] = []
    restricting: tuple[Effect, ...] = ("ask", "deny")
    for table, effects in ((person or {}, EFFECTS), (project or {}, EFFECTS if trusted else restricting)):
        problems += [f"[permissions] has no key {key!r}; use allow, ask, deny" for key in table if key not in EFFECTS]
        for effect in effects:
            given = table.get(effect, [])
            if isinstance(given, str) or not isinstance(given, Sequence):
                problems.append(f"[permissions] {effect} must be a list of rules, not {given!r}")
                continue
            _read_list(effect, given, rules, problems)
    return Rules(tuple(rules)), tuple(problems)


def _read_list(effect: Effect, given: Iterable[object], rules: list[Rule], problems: list[str]) -> None:
    for item in given:
        try:
            rules.append(parse_rule(effect, item))
        except ValueError as error:
            problems.append(f"[permissions] {effect}: {error}")


# ------------------------------------------------------------------------------------------------- matching
def tool_matches(rule: Rule, tool: str) -> bool:
    """Does a rule speak of this tool? Deny and ask rules on one way to read or write a file hold for the others."""
    if re.fullmatch(re.escape(rule.tool).replace(r"\*", ".*"), tool):
        return True
    if rule.effect == "allow" or rule.pattern is None:
        return False
    return (rule.tool in WRITERS and tool in WRITERS) or (rule.tool == "read" and tool in READERS)


@lru_cache(maxsize=512)
def _command_regex(pattern: str) -> re.Pattern[str]:
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and pattern[at + 1 : at + 2] in ("*", "\\"):
            out.append(re.escape(pattern[at + 1]))
            at += 1
        else:
            out.append(".*" if char == "*" else re.escape(char))
        at += 1
    return re.compile("".join(out), re.DOTALL)


def command_matches(pattern: str, text: str) -> bool:
    """Does a command text match a rule's pattern as a whole?"""
    return _command_regex(pattern.strip()).fullmatch(text) is not None


def escaped(command: str) -> str:
    """A command as the pattern that matches just it."""
    return command.replace("\\", "\\\\").replace("*", "\\*")


def fixed_prefix(pattern: str) -> str:
    """What stands before the first wildcard."""
    return re.split(r"(?<!\\)\*", pattern.strip(), maxsplit=1)[0].replace("\\*", "*")


def path_matches(rule: Rule, names: Iterable[str]) -> bool:
    """Does the rule's path pattern match one of a file's names (relative to the workspace, or absolute)?"""
    if rule.pattern is None:
        return True
    regex = _path_regex(rule.pattern.strip(), rule.effect != "allow")
    return any(regex.fullmatch(name) for name in names)


@lru_cache(maxsize=512)
def _path_regex(pattern: str, wide: bool) -> re.Pattern[str]:
    body = str(Path(pattern).expanduser()) if pattern.startswith("~/") else pattern
    body = body.removeprefix("./")
    if body.endswith("/"):
        body += "**"
    anywhere = "/" not in body and (wide or "*" in body)
    piece = ".*" if wide else "[^/]*"
    parts = [re.escape(part).replace(r"\*", piece).replace(r"\?", "[^/]") for part in re.split(r"\*\*/?", body)]
    regex = "(?:.*/)?".join(parts[:-1]) + ("(?:.*/)?" if len(parts) > 1 and not body.endswith("**") else "") + parts[-1]
    if len(parts) > 1 and body.endswith("**"):
        regex = "(?:.*/)?".join(parts[:-1]) + ".*"
    return re.compile((r"(?:.*/)?" if anywhere else "") + regex + (r"(?:/.*)?" if wide else ""), re.DOTALL)

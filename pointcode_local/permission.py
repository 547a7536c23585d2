"""May this call run? A pure function of the mode, the rules, the call and where its paths lead.

Order: deny rules; an exact allow rule for a whole command; ask rules; guarded and outside files; then the mode. Text
in files or tool output has no say here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from .events import MODES, Mode
from .guarded import PROTECTED, is_protected, names_of
from .rules import Rule, Rules, escaped, load_rules, parse_rule, path_matches, tool_matches
from .shell_permission import ShellJudge
from .tools.base import Access, ToolError
from .tools.secrets import is_secret
from .tools.workspace import Place, Workspace

__all__ = [
    "MODES",
    "Allow",
    "Ask",
    "Decision",
    "Deny",
    "Mode",
    "Rule",
    "Rules",
    "decide",
    "load_rules",
    "parse_rule",
    "unreadable",
]


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may run."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The person must be asked. `rule` is what "always" would store as an allow rule; "" when nothing sensible.
    `secret`: the reason names files that may hold secrets, and a command may show them."""

    reason: str
    rule: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Deny:
    """The call must not run."""

    reason: str


Decision = Allow | Ask | Deny


class JudgedTool(Protocol):
    """What of a tool the decision rests on."""

    @property
    def name(self) -> str: ...
    @property
    def access(self) -> Access: ...
    def paths(self, arguments: Mapping[str, Any], /) -> tuple[str, ...]: ...


def places_of(tool: JudgedTool, arguments: Mapping[str, Any], workspace: Workspace) -> list[Place]:
    """Where the paths of a call lead now, without those that cannot be a path: the tool itself will refuse them."""
    places: list[Place] = []
    for path in tool.paths(arguments):
        with suppress(ToolError):
            places.append(workspace.resolve(path))
    return places


def decide(
    mode: Mode,
    rules: Rules,
    tool: JudgedTool,
    arguments: Mapping[str, Any],
    workspace: Workspace,
    places: list[Place] | None = None,
) -> Decision:
    """Decide about one call with validated arguments; `places` are its `places_of`, where those are known."""
    for rule in rules.of("deny"):
        if rule.pattern is None and tool_matches(rule, tool.name):
            return Deny(f"the rule deny {rule.text}")
    if tool.name == "shell":
        return _decide_shell(mode, rules, str(arguments.get("command", "")), workspace)
    if places is None:
        places = places_of(tool, arguments, workspace)
    return _decide_paths(mode, rules, tool, places, workspace)


def unreadable(rules: Rules) -> Callable[[str], bool]:
    """Which names (relative to the workspace, or absolute) deny rules on `read` forbid; for `Workspace.unreadable`."""
    forbidding = [rule for rule in rules.of("deny") if rule.tool == "read" and rule.pattern is not None]
    return lambda name: any(path_matches(rule, (name,)) for rule in forbidding)


# ------------------------------------------------------------------------------------------------- files
def _decide_paths(mode: Mode, rules: Rules, tool: JudgedTool, places: list[Place], workspace: Workspace) -> Decision:
    for place in places:
        if (rule := _hit(rules.of("deny"), tool.name, place, workspace)) is not None:
            return Deny(f"{place.text} is covered by the rule deny {rule.text}")
    if mode == "plan" and tool.access in ("write", "execute"):
        return Deny(f"plan mode only reads; {tool.name} would change something")
    for place in places:
        if (rule := _hit(rules.of("ask"), tool.name, place, workspace)) is not None:
            return Ask(f"{place.text} is covered by the rule ask {rule.text}", "")
    for rule in rules.of("ask"):
        if rule.pattern is None and tool_matches(rule, tool.name):
            return Ask(f"the rule ask {rule.text}", "")
    for place in places:
        allowed = _allowing(rules, tool, place)
        if (reason := _guard(tool, place, workspace)) is not None and not (allowed and _is_pointed(allowed, place)):
            return Ask(reason, _suggestion(tool, place))
        if not place.inside and allowed is None and not (tool.access == "read" and workspace.is_log(place.path)):
            return Ask(f"{place.text} leads outside the workspace ({place.path})", _suggestion(tool, place))
    if _all_allowed(rules, tool, places):
        return Allow()
    return _by_mode(mode, tool, places)


def _by_mode(mode: Mode, tool: JudgedTool, places: list[Place]) -> Decision:
    match tool.access:
        case "read" | "none":
            return Allow()
        case "write":
            if mode in ("accept-edits", "auto"):
                return Allow()
            return Ask(
                f"{tool.name} changes {', '.join(place.name for place in places) or 'files'}",
                _suggestion(tool, *places),
            )
        case "execute":
            return Allow() if mode == "auto" else Ask(f"{tool.name} may run something", tool.name)
        case _ as never:
            assert_never(never)


def _hit(rules: tuple[Rule, ...], tool: str, place: Place, workspace: Workspace) -> Rule | None:
    names = names_of(place, workspace)
    return next(
        (rule for rule in rules if rule.pattern is not None and tool_matches(rule, tool) and path_matches(rule, names)),
        None,
    )


def _allowing(rules: Rules, tool: JudgedTool, place: Place) -> Rule | None:
    """An allow rule that covers where the path really leads; one with `**` or no pattern stays inside the workspace."""
    for rule in rules.of("allow"):
        if not tool_matches(rule, tool.name):
            continue
        if rule.pattern is None:
            if place.inside:
                return rule
        elif path_matches(rule, (place.name, str(place.path))) and (
            place.inside or rule.pattern.startswith(("/", "~/"))
        ):
            return rule
    return None


def _all_allowed(rules: Rules, tool: JudgedTool, places: list[Place]) -> bool:
    if places:
        return all(_allowing(rules, tool, place) is not None for place in places)
    return any(rule.pattern is None and tool_matches(rule, tool.name) for rule in rules.of("allow"))


def _is_pointed(rule: Rule, place: Place) -> bool:
    """An exact rule on just this file: the only kind that opens a guarded one."""
    return rule.is_exact and "?" not in (rule.pattern or "")


def _guard(tool: JudgedTool, place: Place, workspace: Workspace) -> str | None:
    if tool.name in ("glob", "list"):
        return None  # they show names only
    if is_secret(place.path) or is_secret(place.lexical):
        return f"{place.text} may hold secrets"
    if tool.access == "write" and is_protected(workspace, place):
        return f"{place.text} belongs to {'/'.join(sorted(PROTECTED))}, where a change can run something later"
    return None


def _suggestion(tool: JudgedTool, *places: Place) -> str:
    return f"{tool.name}({escaped(places[0].name)})" if len(places) == 1 else ""


# ------------------------------------------------------------------------------------------------- commands
def _decide_shell(mode: Mode, rules: Rules, command: str, workspace: Workspace) -> Decision:
    judge = ShellJudge(rules, command, workspace)
    if (reason := judge.denied()) is not None:
        return Deny(reason)
    rule = f"shell({escaped(command.strip())})"
    if mode == "plan":
        reason = judge.not_read_only()
        return Allow() if reason is None else Deny(f"plan mode only reads: {reason}")
    secret = judge.secret(folders=mode != "auto")
    if (reason := judge.asked()) is not None:
        return Ask(f"{reason}; {secret}" if secret else reason, "", secret is not None)
    if judge.is_allowed_exactly():
        return Allow()
    if secret is not None:
        return Ask(secret, rule, secret=True)
    if (reason := judge.misplaced()) is not None:
        return Ask(reason, rule)
    reason = judge.unknowable() if mode == "auto" else judge.not_allowed()
    return Allow() if reason is None else Ask(reason, rule)

"""The permission policy of a session: mode and rules applied to calls, and the answers "always" that were given.

"Always" answers are kept per folder in `always.toml`, exactly as they were shown, one a line; deleting its
line revokes one. What was allowed for a session is kept in memory only.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pointcode_local.config import Places, Settings
from pointcode_local.own_files import one_at_a_time, replace_file
from pointcode_local.permission import (
    Allow,
    Ask,
    Deny,
    Mode,
    Rules,
    decide,
    load_rules,
    parse_rule,
    places_of,
    unreadable,
)
from pointcode_local.tools.base import Tool
from pointcode_local.tools.read import ReadTool
from pointcode_local.tools.sandbox import SandboxPolicy, default_policy
from pointcode_local.tools.workspace import Workspace
from pointcode_local.verdict import Decision

log = logging.getLogger(__name__)


def rule_problem(rule: str) -> str:
    """What is wrong with the text of a permission rule; "" when nothing is."""
    try:
        parse_rule("allow", rule)
    except ValueError as error:
        return str(error)
    return ""


def always_file(places: Places) -> Path:
    """Where "always" answers are kept."""
    return places.state / "always.toml"


class AlwaysRules:
    """The allow rules that the person's "always" answers made, by folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, root: Path) -> tuple[str, ...]:
        """The rules for one folder; a damaged file counts as empty."""
        rules = self._load().get(str(root), [])
        return tuple(rule for rule in rules if not rule_problem(rule))

    def add(self, root: Path, rule: str) -> None:
        """Keep one more rule; a damaged file is put aside, not overwritten. Raises OSError or ValueError."""
        import tomlkit

        with one_at_a_time(self.path):
            known = self._load()
            if not known and self.path.exists() and self.path.stat().st_size:
                aside = self.path.with_suffix(f".damaged-{self.path.stat().st_mtime_ns}.toml")
                log.warning("%s cannot be read; it is kept as %s", self.path, aside.name)
                self.path.rename(aside)
            known[str(root)] = list(dict.fromkeys([*known.get(str(root), []), rule]))
            document = tomlkit.document()
            for folder, rules in known.items():
                lines = tomlkit.array().multiline(True)
                lines.extend(rules)
                document[folder] = lines
            replace_file(self.path, tomlkit.dumps(document).encode())

    def _load(self) -> dict[str, list[str]]:
        try:
            data: dict[str, Any] = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {k: [r for r in v if isinstance(r, str)] for k, v in data.items() if isinstance(v, list)}


class RulePolicy:
    """`permission.decide` with this session's mode, rules and workspace."""

    def __init__(self, settings: Settings, root: Path, always: AlwaysRules) -> None:
        self.mode: Any = settings.permission_mode
        self._root = root
        self._always = always
        self._sandbox, self._network = settings.sandbox, settings.sandbox_network
        table = {"allow": [*settings.allow, *always.of(root)], "ask": settings.ask, "deny": settings.deny}
        self._lasting, problems = load_rules(table)
        if problems:  # the settings were checked when they were read
            raise ValueError("; ".join(problems))
        self._rules = self._lasting
        self.workspace = Workspace(root, unreadable=unreadable(self._rules))
        self._reader = cast(Tool, ReadTool())

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._rules

    def sandbox_for(self, agreed: bool) -> SandboxPolicy | None:
        """What a command is confined to; None: it runs with the person's rights, because the person agreed to it."""
        if self._sandbox == "off" or (agreed and self._sandbox != "always"):
            return None
        return default_policy(self.workspace.root, network=self._network)

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Decision:
        """May this call run now?"""
        mode: Mode = self.mode
        places = places_of(tool, arguments, self.workspace)
        paths = frozenset(place.path for place in places)
        match decide(mode, self._rules, tool, arguments, self.workspace, places):
            case Allow():
                return Decision("allow", agreed=self._is_agreed(tool, arguments), paths=paths)
            case Ask(reason, rule, secret):
                return Decision("ask", reason, rule, secret=secret, paths=paths)
            case Deny(reason):
                return Decision("deny", reason)

    def _is_agreed(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Is a command allowed because of the person's rules alone? In mode auto the sandbox stays around those too."""
        if tool.name != "shell" or self.mode == "auto":
            return False
        without = Rules(tuple(rule for rule in self._rules.items if rule.effect != "allow"))
        return not isinstance(decide(self.mode, without, tool, arguments, self.workspace), Allow)

    def remember(self, rule: str) -> None:
        """Allow what `rule` covers from now on, in this folder."""
        self._rules = self._rules.with_rule("allow", rule)
        self._lasting = self._lasting.with_rule("allow", rule)
        self._always.add(self._root, rule)  # may raise: it holds in this session all the same

    @property
    def session_rules(self) -> tuple[str, ...]:
        """What the person allowed for this session only, as it was shown."""
        lasting = {rule.text for rule in self._lasting.of("allow")}
        return tuple(rule.text for rule in self._rules.of("allow") if rule.text not in lasting)

    def allow_for_session(self, rule: str) -> None:
        """Allow what `rule` covers until the session is left. Raises ValueError when it is malformed."""
        self._rules = self._rules.with_rule("allow", rule)

    def leave_session(self) -> None:
        """Forget what was allowed for the session only."""
        self._rules = self._lasting

    def may_read(self, path: Path) -> bool:
        """May this file be shown to the model without asking?"""
        return self.decide(self._reader, {"path": os.fspath(path)}).verdict == "allow"

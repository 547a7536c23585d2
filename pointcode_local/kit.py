"""What the calls of a session share: tools, workspace, policy, sandbox."""

from __future__ import annotations

from pathlib import Path

from pointcode_local.config import Places, Settings
from pointcode_local.hooks import HookRunner
from pointcode_local.policy import AlwaysRules, RulePolicy
from pointcode_local.tools.registry import build_tools
from pointcode_local.tools.sandbox import sandbox_status


class ToolKit:
    """Built once a process; `close` ends background commands and removes their logs."""

    def __init__(self, settings: Settings, places: Places, cwd: Path, *, small_model: bool) -> None:
        self._box = build_tools(small_model=small_model)
        self.tools = self._box.tools
        self.policy = RulePolicy(settings, cwd, AlwaysRules(places.state / "always.toml"))
        self.workspace = self.policy.workspace
        self.sandbox_name = sandbox_status().kind
        self.hooks = HookRunner(settings.hooks, cwd, self.workspace.display) if settings.hooks else None

    def is_hidden(self, name: str) -> bool:
        """Must this file (a name relative to the folder) stay out of what is shown unasked?"""
        return self.workspace.is_guarded(self.workspace.root / name)

    def close(self) -> None:
        """End what still runs."""
        self._box.close()
        self.workspace.close()

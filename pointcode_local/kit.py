"""What the calls of a session share: tools, workspace, policy, sandbox."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from pathlib import Path

from pointcode_local.config import Places, Settings
from pointcode_local.frontend import HostError, JobInfo
from pointcode_local.hooks import HookRunner
from pointcode_local.policy import AlwaysRules, RulePolicy, always_file
from pointcode_local.render import one_line
from pointcode_local.rules import Rules, tool_matches
from pointcode_local.tools.base import ToolError
from pointcode_local.tools.mcp import Connection, open_servers, tool_name
from pointcode_local.tools.registry import build_tools
from pointcode_local.tools.sandbox import sandbox_status
from pointcode_local.tools.shell import Job
from pointcode_local.tree_watch import TreeWatch

_IN_OTHER_AGENTS = {"Bash": "shell", "bash": "shell", "MultiEdit": "edit", "LS": "list"}


class ToolKit:
    """Built once a process; `close` ends background commands and removes their logs."""

    def __init__(self, settings: Settings, places: Places, cwd: Path, *, small_model: bool) -> None:
        self._box = build_tools(small_model=small_model)
        self.tools = self._box.tools
        self.policy = RulePolicy(settings, cwd, AlwaysRules(always_file(places)))
        self.workspace = self.policy.workspace
        self.watch = TreeWatch(self.workspace.root, (places.state, places.config, places.cache))
        self._is_sandbox_off = settings.sandbox == "off"
        self.sandbox_name = "none" if self._is_sandbox_off else sandbox_status().kind
        self.problems = _idle_rules(self.policy.rules)  # rules and MCP servers that do nothing, in words
        self._servers = {server.name: server for server in settings.mcp_servers}  # a later one of a name counts
        self._connections: list[Connection] = []
        self.hooks = HookRunner(settings.hooks, cwd, self.workspace.display) if settings.hooks else None

    @property
    def n_jobs(self) -> int:
        """Background commands that run."""
        return self._box.jobs.n_running

    def running_jobs(self) -> list[JobInfo]:
        """These commands, oldest first."""
        jobs = self._box.jobs
        return [JobInfo(job.id, job.command, jobs.age_s(job), job.last_line()) for job in jobs.running()]

    def told_of_jobs(self) -> str:
        """The same for the model, which may have forgotten their ids; "" when nothing runs."""
        lines = [f"- {job.id}: {one_line(job.command, 200)}" for job in self._box.jobs.running()]
        return "\n".join(["[commands that run in the background]", *lines]) if lines else ""

    async def stop_job(self, id: str) -> Job | None:
        """End one and all it started; None when it had ended before. Raises HostError when there is none."""
        try:
            job = self._box.jobs.get(id)
        except ToolError as error:
            raise HostError(str(error)) from error
        return job if await self._box.jobs.stop(job) else None

    def is_hidden(self, name: str) -> bool:
        """Must this file (a name relative to the folder) stay out of what is shown unasked?"""
        return self.workspace.is_guarded(self.workspace.root / name)

    def sandbox_warning(self) -> str:
        """What to tell the person when commands may run unconfined in mode auto; "" when there is nothing to tell."""
        if self.policy.mode != "auto" or self.sandbox_name != "none":
            return ""
        why = "the sandbox is switched off" if self._is_sandbox_off else "no sandbox on this machine"
        return f"{why}: in mode auto, commands run unconfined"

    async def start_servers(self) -> None:
        """Start the MCP servers, once, and add their tools to the others."""
        if not self._servers or self._connections:
            return
        self._connections, tools = await open_servers(tuple(self._servers.values()), self.workspace)
        self.tools = (*self.tools, *tools)
        self.problems += [one.state for one in self._connections if not one.state.startswith("running")]

    def describe_servers(self) -> str:
        """Each server with its state and tools, one a line; "" when there are none."""
        names = [tool.name for tool in self.tools]
        lines: list[str] = []
        for one in self._connections:
            prefix = tool_name(one.server.name, "")
            lines += [f"{one.server.name}: {one.state}", *(f"  {name}" for name in names if name.startswith(prefix))]
        return "\n".join(lines)

    async def close(self) -> None:
        """End what still runs."""
        await asyncio.gather(*(connection.close() for connection in self._connections))
        self._box.close()
        self.watch.close()
        self.workspace.close()


def _idle_rules(rules: Rules) -> list[str]:
    """Rules that speak of no tool: one that should forbid something, mistyped, would be missed too late."""
    names = [tool.name for tool in build_tools().tools]
    found: list[str] = []
    for rule in rules.items:
        if rule.tool.startswith("mcp__") or any(tool_matches(rule, name) for name in names):
            continue
        close = get_close_matches(_IN_OTHER_AGENTS.get(rule.tool, rule.tool).lower(), names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the tools are {', '.join(names)}"
        found.append(f"the {rule.effect} rule {rule.text!r} does nothing: no tool is called {rule.tool!r}; {hint}")
    return found

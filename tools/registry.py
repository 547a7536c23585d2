"""The tools of a session, in one fixed order so that the prompt never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .ask import AskTool
from .base import Tool
from .edit import EditTool
from .glob import GlobTool
from .grep import GrepTool
from .listing import ListTool
from .patch import PatchTool
from .read import ReadTool
from .shell import Jobs, ShellKillTool, ShellOutputTool, ShellTool
from .symbols import OutlineTool, ReplaceSymbolTool
from .todo import TodoTool
from .write import WriteTool

SMALL_MENU = ("read", "write", "edit", "glob", "grep", "list", "shell")


@dataclass(frozen=True, slots=True)
class ToolBox:
    """The tools and what they share. `close` ends background commands; call it when the session ends."""

    tools: tuple[Tool, ...]
    jobs: Jobs

    def close(self) -> None:
        """End every command that still runs."""
        self.jobs.close()


def build_tools(*, small_model: bool = False, environment: Mapping[str, str] | None = None) -> ToolBox:
    """All tools, or the short menu for small models.

    `environment` is what commands start from (default: the process's).
    """
    jobs = Jobs(environment)
    tools: tuple[Tool, ...] = (
        ReadTool(),
        WriteTool(),
        EditTool(),
        PatchTool(),
        OutlineTool(),
        ReplaceSymbolTool(),
        GlobTool(),
        GrepTool(),
        ListTool(),
        ShellTool(jobs),
        ShellOutputTool(jobs),
        ShellKillTool(jobs),
        TodoTool(),
        AskTool(),
    )
    return ToolBox(tuple(tool for tool in tools if not small_model or tool.name in SMALL_MENU), jobs)

"""Hooks: the person's commands that see each tool call before and after it runs, and can stop it.

A hook is a command line in the sandbox (writes in the workspace and temporary folders, no network). It gets one JSON
object on stdin: `event`, `tool`, `arguments`, `cwd`; after the call also `result`, `is_error`, `changed_files`. It
objects by a non-zero exit code (its output is the reason) or by printing {"verdict": "block", "reason": "…"}; taking
longer than its time is an objection too. It can never allow what permissions forbid.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from pointcode_local.extensions import Hook
from pointcode_local.tools.base import ToolResult
from pointcode_local.tools.environment import command_environment
from pointcode_local.tools.piped import Answer, ask
from pointcode_local.tools.sandbox import default_policy, wrapped

MAX_REASON = 2000  # characters


class HookRunner:
    """The hooks of one session. `shown` names a changed file for people and hooks."""

    def __init__(self, hooks: Sequence[Hook], root: Path, shown: Callable[[Path], str]) -> None:
        self._hooks = tuple(hooks)
        self._root = root
        self._shown = shown

    async def before(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Why a call must not run, in the words of the first hook that objects; "" when none does."""
        for hook in self._of("pre_tool", tool):
            if reason := await self._objection(hook, self._request(hook, tool, arguments)):
                return reason
        return ""

    async def after(self, tool: str, arguments: Mapping[str, Any], result: ToolResult) -> ToolResult:
        """The result with what hooks object to it; the call has run."""
        for hook in self._of("post_tool", tool):
            names = [self._shown(change.path) for change in result.changes]
            told = {"result": result.text, "is_error": result.is_error, "changed_files": names}
            if reason := await self._objection(hook, self._request(hook, tool, arguments) | told):
                result = replace(result, text=f"{result.text.rstrip()}\n[{reason}]", is_error=True)
        return result

    def _of(self, event: str, tool: str) -> list[Hook]:
        return [h for h in self._hooks if h.event == event and any(fnmatchcase(tool, name) for name in h.tools)]

    def _request(self, hook: Hook, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"event": hook.event, "tool": tool, "arguments": dict(arguments), "cwd": str(self._root)}

    async def _objection(self, hook: Hook, request: dict[str, Any]) -> str:
        shell = shutil.which("bash") or "/bin/sh"
        line = wrapped([shell, "-c", "--", hook.command], default_policy(self._root))
        environment = command_environment(os.environ, self._root)
        given = json.dumps(request, ensure_ascii=True).encode()
        name = f"the hook {hook.command.split()[0]!r}"
        try:
            answer = await ask(line, given, self._root, environment, hook.timeout_s)
        except (OSError, ValueError) as error:
            return f"{name} could not be run: {error}"
        if answer.code is None:
            return f"{name} took longer than {hook.timeout_s:g} s"
        reason = _reason(answer)
        return f"{name} objects: {reason}" if reason else ""


def _reason(answer: Answer) -> str:
    """Why the hook objects; "" when it does not."""
    verdict, reason = _verdict(answer.output)
    if answer.code == 0 and verdict not in ("block", "deny"):
        return ""
    said = reason or _clean(answer.errors) or _clean(answer.output)
    return said or (f"exit code {answer.code}" if answer.code else "no reason given")


def _verdict(output: bytes) -> tuple[str, str]:
    try:
        data = json.loads(output)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(data, dict):
        return "", ""
    table = cast(dict[str, Any], data)
    return str(table.get("verdict", "")), _clean(str(table.get("reason", "")).encode("utf-8", "replace"))


def _clean(data: bytes) -> str:
    text = "".join(c if c.isprintable() or c in "\n\t" else "" for c in data.decode("utf-8", "replace")).strip()
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"

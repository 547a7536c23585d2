"""A workspace with everything that permission tests need in it, and short ways to ask for a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from pointcode_local.permission import (
    Decision,
    Mode,
    Rules,
    decide,
    load_rules,
)
from pointcode_local.tools.registry import build_tools
from pointcode_local.tools.workspace import Workspace

TOOLS = {tool.name: tool for tool in build_tools().tools}
WORDY = [
    "ls",
    "ls *",
    "cat *",
    "echo *",
    "git *",
    "find *",
    "sort *",
    "sed *",
    "rg *",
    "fd *",
    "grep *",
    "uniq *",
    "tree *",
    "make *",
]
GLUE = st.sampled_from([" && ", " ; ", " | ", " || ", "\n", " & ", "\r\n", "&&", ";", "|"])  # joins two commands


def made(top: Path) -> Workspace:
    """The workspace `top/proj` beside the look-alike `top/proj-secret`."""
    root = top / "proj"
    for name in (
        "a.txt",
        "b.txt",
        ".env",
        ".env.example",
        "sub/x.txt",
        "id_rsa",
        "docs/a.md",
        "docs/deep/b.md",
        "src/a.py",
        "-o",
        ".git/config",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    (top / "proj-secret").mkdir()
    (top / "proj-secret" / "s.txt").write_text("s\n")
    (root / "out").symlink_to(top / "proj-secret")
    (root / "settings").symlink_to(".env")
    return Workspace(root)


def rules(allow: list[str] | None = None, ask: list[str] | None = None, deny: list[str] | None = None) -> Rules:
    loaded, problems = load_rules({"allow": allow or [], "ask": ask or [], "deny": deny or []})
    assert not problems
    return loaded


def judge(workspace: Workspace, mode: Mode, given_rules: Rules, tool: str, **arguments: Any) -> Decision:
    return decide(mode, given_rules, TOOLS[tool], arguments, workspace)


def shell(workspace: Workspace, command: str, mode: Mode = "ask", **lists: list[str]) -> type[Decision]:
    wrapped = {
        key: [rule if "(" in rule and rule.split("(")[0] in TOOLS else f"shell({rule})" for rule in value]
        for key, value in lists.items()
    }
    return type(judge(workspace, mode, rules(**wrapped), "shell", command=command))

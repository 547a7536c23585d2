"""What bash makes of globs, braces and subscripts is what the permission is about, not how they are written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pointcode_local.permission import Allow, Ask, Deny
from pointcode_local.shell_permission import MAX_EXPANDED
from pointcode_local.tools.environment import command_environment
from pointcode_local.tools.workspace import Workspace

from .permission_kit import shell

RUNS = [
    *("sed '1e touch x' a.txt -- --sandbox", "test -v 'a[$(touch x)]'", "test -v a\\[\\`touch\\ x\\`\\]"),
    *("sed 's/[/a]/p;s|/w x|g|' a.txt", "sed -n '/[/s|],/w x|g|' a.txt"),  # a bracket hides a delimiter
]
HARM = [
    *("sort {{q},-oa.txt}", "sort [^a]*", "sort [!a]*", "sort [[:punct:]]*", "sort ''*", "sort ?o*"),
    *("cd sub && sort *", "cd sub && sort -*", "cd s* && sort -- b", "cd sub && cat l*", "cd sub && cat [k-m]ink"),
    *("cat .[^x]nv", "cat .e[[:alpha:]]v", "cd sub && cat ../.[^x]nv", "cat {{q},.env}"),
    *("diff -r . sub", "diff --recursive sub .", "cd bare && git status", "cd bare/objects && git log"),
]


@pytest.fixture(scope="module")
def workspace(workspace: Workspace) -> Workspace:
    """The shared one with names that look like options, a link out and a bare repository."""
    (workspace.root / "sub" / "-oa.txt").write_text("x\n")
    (workspace.root / "sub" / "link").symlink_to("/etc/passwd")
    for name in ("objects", "refs"):
        (workspace.root / "bare" / name).mkdir(parents=True)
    (workspace.root / "bare" / "HEAD").write_text("ref: refs/heads/main\n")
    return workspace


@pytest.mark.parametrize("line", [*RUNS, *HARM])
def test_what_an_expansion_writes_runs_or_reads_is_asked_about(workspace: Workspace, line: str) -> None:
    assert shell(workspace, line, allow=["sort *", "sed *", "test *"]) is Ask
    assert shell(workspace, line, "plan") is Deny


@pytest.mark.parametrize(
    "line",
    [
        *(
            "ls s[a-u]b",
            "cat [ab].txt",
            "cat [!.]*.txt",
            "cd src && cat *.py",
            "test -f a.txt",
            "grep -n 'x[^a]*' a.txt",
        ),
        *(
            "sed --sandbox -n 1p a.txt",
            "sed 's/[a-z]/[/;/[^]x]$/d' a.txt",
            "sed -n 's/[[:space:]]*$//p' a.txt",
            "diff -u a.txt b.txt",
            "cd docs && ls",
            "grep -n '[[:alpha:]]' a.txt",
        ),
    ],
)
def test_plain_globs_and_patterns_need_no_question(workspace: Workspace, line: str) -> None:
    assert shell(workspace, line) is Allow


@pytest.mark.parametrize("line", RUNS)
def test_bash_really_runs_what_hides_in_these_words(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=False, timeout=20)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cd_of_a_command_does_not_follow_the_persons_search_path(tmp_path: Path) -> None:
    assert "CDPATH" not in command_environment({"CDPATH": "/srv"}, tmp_path)


@pytest.mark.parametrize("line", ["grep -Rn x .", "grep -R x", "rg -L x", "diff -r docs src", "cd docs && grep -R x"])
def test_a_search_through_links_asks_only_where_one_leads_out(tmp_path: Path, line: str) -> None:
    space = Workspace(tmp_path / "proj")
    for name in ("docs", "src"):
        (space.root / name).mkdir(parents=True)
        (space.root / name / "a.txt").write_text("x\n")
    (space.root / "docs" / "inner").symlink_to("../src")
    assert shell(space, line) is Allow
    (space.root / "docs" / "outer").symlink_to(tmp_path)
    assert shell(space, line) is Ask
    assert shell(space, line.replace("-R", "-r").replace("-L", "-n")) is (Ask if "diff" in line else Allow)


def test_a_glob_for_more_names_than_are_looked_at_is_asked_about(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "proj")
    space.root.mkdir()
    for number in range(MAX_EXPANDED):
        (space.root / f"f{number}").touch()
    assert shell(space, "cat f1*") is Allow
    assert shell(space, "cat *", allow=["cat *"]) is Ask
    assert shell(space, "cat *", "plan") is Deny
    assert shell(space, "cat *", "auto") is Allow
    for number in range(10):
        (space.root / f"{number}.pem").touch()
    assert shell(space, "cat *", "auto") is Ask


def test_git_is_asked_about_where_the_workspace_itself_is_a_bare_repository(tmp_path: Path) -> None:
    space = Workspace(tmp_path / "proj")
    (space.root / "sub").mkdir(parents=True)
    inner = Workspace(space.root / "sub")
    assert shell(space, "git status") is shell(inner, "git status") is Allow
    for name in ("objects", "refs"):
        (space.root / name).mkdir()
    (space.root / "HEAD").write_text("ref: refs/heads/main\n")
    assert shell(space, "git status") is shell(inner, "git log") is Ask
    assert shell(space, "git status", "plan") is Deny
    (space.root / ".git").mkdir()  # what git finds first
    assert shell(space, "git status") is shell(inner, "git log") is Allow

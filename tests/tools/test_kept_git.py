"""A confined command works with git, and changes nothing that git would run outside of the sandbox later."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pointcode_local.tools import sandbox
from pointcode_local.tools.environment import command_environment
from pointcode_local.tools.kept_git import kept_git
from pointcode_local.tools.sandbox import bubblewrap_path, default_policy, makes_mounts, sandbox_status, wrapped

from .tool_kit import Bench

kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("landlock", marks=pytest.mark.skipif(not makes_mounts(), reason="no Landlock, or no mounts")),
        pytest.param("bubblewrap", marks=pytest.mark.skipif(bubblewrap_path() is None, reason="no bubblewrap")),
    ],
)
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Path, Path]]:
    """Where the repository of each test stands, in no temporary folder, and a copy of how it begins: made once."""
    folder = Path("/var/tmp") / f"pointcode-git-{os.getpid()}"
    kept = folder.with_name(f"{folder.name}-kept")
    for old in (folder, kept):
        shutil.rmtree(old, ignore_errors=True)
    for name in ("other", "ws"):
        (folder / name).mkdir(parents=True)
        git(folder / name, "init", "-q", "-b", "main")
        (folder / name / "a.txt").write_text("one\n")
        git(folder / name, "add", ".")
        git(folder / name, "commit", "-qm", "one")
    git(folder / "ws", "submodule", "--quiet", "add", "../other", "libs/sub")
    git(folder / "ws", "commit", "-qm", "submodule")
    folder.rename(kept)
    yield folder, kept
    shutil.rmtree(kept, ignore_errors=True)


@pytest.fixture
def repository(made: tuple[Path, Path]) -> Iterator[Path]:
    """A repository with a commit and a submodule."""
    folder, kept = made
    shutil.copytree(kept, folder, symlinks=True)
    yield folder / "ws"
    shutil.rmtree(folder, ignore_errors=True)


def git(folder: Path, *arguments: str) -> str:
    env = command_environment(os.environ, folder)
    return subprocess.run([*GIT, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def confined(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A command line in the sandbox, started and ended as the tool does it; what was not taken over is in stderr."""
    env = {**command_environment(os.environ, folder), "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    policy = default_policy(folder)
    guard = policy.guard()
    command = wrapped(["/bin/sh", "-c", line], policy, guard)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    done.stderr += guard.close()
    return done


def use(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "sandbox_status", lambda: sandbox.SandboxStatus(kind, True, ""))  # type: ignore[arg-type]


def executable_state(folder: Path) -> dict[str, bytes]:
    """Settings and hooks of the repository and its submodule."""
    globs = (
        ".git/config*",
        ".git/hooks/*",
        ".git/modules/libs/sub/config*",
        ".git/modules/libs/sub/hooks/*",
        ".husky/*",
    )
    return {str(path): path.read_bytes() for glob in globs for path in folder.glob(glob) if path.is_file()}


@kinds
@pytest.mark.parametrize(
    "attempt",
    [
        "echo evil > .git/hooks/pre-commit",
        "chmod +x .git/hooks/*",
        "rm -rf .git/hooks",
        "mv .git/hooks .git/old && mkdir .git/hooks && echo evil > .git/hooks/pre-commit",
        "mv .git .old && cp -r .old .git && echo evil > .git/hooks/pre-commit",
        "ln -s ../evil .git/hooks/x",
        "git config core.fsmonitor ./evil",
        "echo evil >> .git/config",
        "echo evil > x && mv -f x .git/config",
        "ln .git/config x && echo evil >> x",
        "git -C libs/sub config core.fsmonitor ./evil",
        "git config alias.st '!evil' && git config include.path evil",
        "git config user.name evil",
        "git remote set-url origin /evil",
        "git config branch.main.remote /evil",
        "git config submodule.libs/sub.update '!evil'",
        "git -C libs/sub config core.worktree /",
        "copy=$(readlink .git/config) && rm -f $copy && mkfifo $copy",
        "copy=$(readlink .git/config) && ln -sf /etc/passwd $copy",
        "truncate -s 9M $(readlink -f .git/config)",
        "umount .git/config; git config a.b c",
        "echo evil > .git/modules/libs/sub/hooks/post-checkout",
        "mv .git/modules/libs .git/x && mkdir .git/modules/libs",
        "mv .git/modules .git/x",
        "mount --bind / .git/hooks || umount .git/hooks",
        "echo evil > .husky/pre-commit",
        "mv .husky x && mkdir .husky && echo evil > .husky/pre-commit",
    ],
)
def test_hooks_and_settings_cannot_be_changed(
    repository: Path, kind: str, attempt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kind, monkeypatch)
    (repository / ".husky").mkdir()
    (repository / ".husky/commit-msg").write_text("exit 0\n")
    git(repository, "config", "core.hooksPath", ".husky")
    git(repository, "remote", "add", "origin", "../other")
    before = executable_state(repository)
    done = confined(repository, attempt)
    assert executable_state(repository) == before and len(before) > 4
    assert done.returncode != 0 or "were left as they were" in done.stderr


EVERYDAY = (
    "echo two >> a.txt && git commit -qam two",
    "git checkout -q -b topic && echo t > t.txt && git add t.txt && git commit -qm topic",
    "echo three >> a.txt && git stash -q && git checkout -q main && git stash pop -q && git commit -qam three",
    "git branch other && git branch -D other && git tag v1",
    "git rebase -q main topic && git checkout -q main && git merge -q topic",
    "git worktree add -q -b side side && (cd side && echo s > s.txt && git add . && git commit -qm side)",
    "git worktree remove side && git branch -D side",
    "git submodule status && (cd libs/sub && git checkout -q -b x && echo x > x && git add x && git commit -qm x)",
    "git add libs/sub && git commit -qm sub && git mv a.txt b.txt && git commit -qm moved",
    'git reset -q --hard HEAD~1 && git gc -q && git fsck && test -z "$(git status --porcelain)"',
    "mkdir new && cd new && git init -q && git config a.b c && git commit -q --allow-empty -m new",
)
WITH_SETTINGS = (
    "git checkout -q HEAD~1 && git submodule update && git checkout -q main && git submodule update",
    "git remote add up ../other && git fetch -q up && git checkout -q -b tracked up/main && git checkout -q main",
    "git branch -m tracked renamed && git branch --unset-upstream renamed && git remote remove up",
)


def play(repository: Path, lines: tuple[str, ...]) -> None:
    for line in lines:
        done = confined(repository, line)
        assert done.returncode == 0 and "left as they were" not in done.stderr, (line, done.stderr)


@kinds
@pytest.mark.parametrize("copies", [True, False])
def test_everyday_git_works(repository: Path, kind: str, copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    use(kind, monkeypatch)
    if not copies:  # of the settings, which are read-only then
        monkeypatch.setattr(sandbox, "makes_mounts", lambda: False)
    play(repository, EVERYDAY)
    if copies and kind == "landlock":
        play(repository, WITH_SETTINGS)
    else:
        done = confined(repository, "git config user.name x")
        assert done.returncode != 0 and "config" in done.stderr


@pytest.mark.skipif(not makes_mounts(), reason="no Landlock, or no mounts")
def test_settings_that_lead_nowhere_else_last_and_the_others_hold_for_the_command_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = repository.parent / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    assert confined(repository, "git remote add up ../other && git fetch -q up && git branch -q t up/main").stderr == ""
    assert git(repository, "config", "branch.t.remote") == "up\n"
    assert git(repository, "config", "remote.up.url") == "../other\n"
    line = "git config user.email x@y.z && git config branch.t.description d && git config user.email"
    done = confined(repository, line)
    assert done.stdout == "x@y.z\n" and "may not set user.email. If that is needed, the user has to" in done.stderr
    assert "x@y.z" not in (repository / ".git/config").read_text()
    assert list(copies.iterdir()) == []


@pytest.mark.skipif(not makes_mounts(), reason="no Landlock, or no mounts")
def test_settings_that_the_person_changed_meanwhile_stay(repository: Path) -> None:
    policy = default_policy(repository)
    guard = policy.guard()
    line = wrapped(["/bin/sh", "-c", "git branch -q t && git branch -q -m t u"], policy, guard)
    git(repository, "config", "a.b", "c")
    subprocess.run(line, cwd=repository, env=command_environment(os.environ, repository), check=True)
    guard.close()
    assert git(repository, "config", "a.b") == "c\n"


@kinds
def test_the_file_that_makes_a_folder_a_worktree_stays(
    repository: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(kind, monkeypatch)
    tree = repository.parent / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    before = (tree / ".git").read_text()
    for attempt in ("echo gitdir: /tmp > .git", "rm .git", "mv .git x && git init -q"):
        assert confined(tree, attempt).returncode != 0
    assert (tree / ".git").read_text() == before and confined(tree, "git status && echo x > new").returncode == 0


def test_nothing_is_kept_where_there_is_no_repository_and_missing_hooks_are_made(tmp_path: Path) -> None:
    assert kept_git(tmp_path).read_only == kept_git(tmp_path).pinned == ()
    git(tmp_path, "init", "-q", "--template=")
    kept = kept_git(tmp_path)
    assert (
        kept.read_only == (tmp_path / ".git/hooks",)
        and kept.settings == (tmp_path / ".git/config",)
        and (tmp_path / ".git/hooks").is_dir()
    )
    assert kept.pinned == (tmp_path / ".git",)


@pytest.mark.skipif(sandbox_status().kind == "none", reason="no sandbox on this machine")
def test_a_file_that_leads_git_to_other_settings_is_taken_away_when_the_command_ends(bench: Bench) -> None:
    root = bench.workspace.root
    git(root, "init", "-q")
    bench.context = replace(bench.context, sandbox=default_policy(root))
    said = bench.ok("shell", command="mkdir -p evil && echo ../evil > .git/commondir && ls .git")
    assert "commondir" in said and not (root / ".git/commondir").exists()
    said = bench.call("shell", command="git config core.fsmonitor ./evil").text
    assert "core.fsmonitor" in said or "config" in said  # copies, or read-only
    assert "evil" not in (root / ".git/config").read_text()

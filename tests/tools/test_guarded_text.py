"""Secrets that only the history knows: diffs of guarded files, key blocks, keys in known forms."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.tools.guarded_text import GuardedText
from pointcode_local.tools.secrets import is_secret

from .tool_kit import Bench

OLD = 'export PASSWORD="hunter2 and more"\n# shared with ops\nTOKEN: oldvalue\n'
NEW = "PASSWORD=xyzzy\n\n--flag\n++flag\nplain line\n"
SAID = ("hunter2", "xyzzy", "oldvalue", "shared", "flag", "plain line")


def guarded_text() -> GuardedText:
    return GuardedText(lambda path: is_secret(Path(path)))


@pytest.fixture
def history(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A repository whose `.env` had two contents and is gone; other files changed with it; a stash."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], cwd=bench.root, check=True, capture_output=True)

    git("init", "-q")
    for env in (OLD, NEW):
        bench.put(".env", env)
        bench.put("conf dir/prod.env", env)
        bench.put("a.py", f"size = {len(env)}\n")
        git("add", "-A")
        git("commit", "-q", "-m", f"change {len(env)}")
    git("rm", "-q", ".env", "conf dir/prod.env")
    git("commit", "-q", "-m", "gone")
    bench.put(".env", OLD)
    git("add", ".env")
    git("stash")
    return bench


@pytest.mark.parametrize(
    "command",
    [
        "git log -p",
        "git log -p --graph --all",
        "git log -p --word-diff",
        "git log -p -U0 --no-prefix --format=%s",
        "git log -p --color=always",
        "git show HEAD~1; git show HEAD",
        "git diff HEAD~2 HEAD~1",
        "git stash show -p",
        "git format-patch --stdout HEAD~2",
    ],
)
def test_the_history_of_a_guarded_file_is_blanked_and_that_of_others_is_shown(history: Bench, command: str) -> None:
    text = history.ok("shell", command=command)
    shown = text + "".join(history.heard)
    assert not [word for word in SAID if word in shown], shown
    assert ".env" in text and "[secret]" in text
    if "stash" not in command:
        assert "size" in text and str(len(NEW)) in text
    history.context = replace(history.context, reveal=True)
    assert any(word in history.ok("shell", command=command) for word in SAID)


def test_the_names_of_settings_stay_in_a_blanked_hunk(history: Bench) -> None:
    text = history.ok("shell", command="git diff HEAD~2 HEAD~1 -- .env")
    assert "-export PASSWORD=[secret]\n-[secret]\n-TOKEN: [secret]\n+PASSWORD=[secret]\n+\n+[secret]\n" in text


def test_a_merge_of_guarded_files_is_blanked() -> None:
    text = "diff --cc .env\nindex 1,2..3\n--- a/.env\n+++ b/.env\n@@@ -1,1 -1,1 +1,2 @@@\n- A=one\n -A=two\n++A=three\n"
    assert guarded_text()(text).count("A=[secret]") == 3


def test_a_diff_without_git_is_blanked_until_its_hunk_ends() -> None:
    text = "--- old/.env\t2026-01-01\n+++ .env\t2026-01-02\n@@ -1 +1 @@\n-A=one\n+A=two\nA=three\n"
    assert guarded_text()(text).splitlines()[2:] == ["@@ -1 +1 @@", "-A=[secret]", "+A=[secret]", "A=three"]


def test_looking_at_an_unfinished_line_changes_nothing_of_what_comes() -> None:
    shown, lines = (
        guarded_text(),
        ["diff --git a/.env b/.env", "@@ -1,2 +1,2 @@", "-A=one", "+A=two", " B=three", "C=four"],
    )
    text = ""
    for line in lines:
        for end in range(len(line)):
            assert "three" not in shown.unfinished(line[:end])
        text += shown(line + "\n")
    assert text.splitlines()[2:] == ["-A=[secret]", "+A=[secret]", " B=[secret]", "C=four"]


def test_a_private_key_is_blanked_and_text_about_one_is_not() -> None:
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQ==\n"
    key = f"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,AB\n\n{body}-----END RSA PRIVATE KEY-----\nafter\n"
    shown = guarded_text()(key)
    assert "MIIE" not in shown and "BKcw" not in shown and "DEK" not in shown and shown.endswith("after\n")
    assert "MIIE" not in guarded_text()(key.replace("\n", "\\n"))
    code = 'if "-----BEGIN PRIVATE KEY-----" in text:\n    return load(text)\n'
    assert guarded_text()(code) == code


@pytest.mark.parametrize(
    ("token", "is_one"),
    [
        ("AKIA" + "Q7" * 8, True),
        ("ghp_" + "a1B2" * 9, True),
        ("github_pat_" + "a1B2" * 10, True),
        ("glpat-" + "a1B2" * 5, True),
        ("xoxb-" + "123456789012", True),
        ("sk-ant-api03-" + "a1B2" * 8, True),
        ("sk_live_" + "a1B2" * 6, True),
        ("AIza" + "a1B2_" * 7, True),
        ("hf_" + "aB1" * 11, True),
        ("npm_" + "a1B2" * 9, True),
        ("pypi-" + "AgEI" * 15, True),
        ("sk-loading-indicator-of-the-page", False),
        ("task-123456789012345678901234", False),
        ("ghp_short", False),
        ("MAKIA" + "Q7" * 8, False),
    ],
)
def test_keys_of_known_forms_are_blanked_wherever_they_stand(token: str, is_one: bool) -> None:
    text = f'key = "{token}", and more\n'
    assert guarded_text()(text) == (text.replace(token, "[secret]") if is_one else text)


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["diff --git a/x.py b/x.py", "--- a/x.py", "+++ b/x.py", "@@ -1,2 +1,3 @@ def f", "-----BEGIN"]
        ),
        st.text("ab =+-@|\\ ", max_size=12),
    ),
    max_size=12,
)


@given(LINES)
def test_text_that_holds_nothing_guarded_passes_unchanged(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert guarded_text()(text) == text


def test_how_the_output_is_cut_into_pieces_changes_nothing(history: Bench) -> None:
    history.context = replace(history.context, reveal=True)
    whole = history.ok("shell", command="git log -p --graph")
    follow = guarded_text()
    assert "".join(map(follow, whole.splitlines(keepends=True))) == guarded_text()(whole)

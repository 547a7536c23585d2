"""What a rule forbids it forbids however the command is dressed up."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointcode_local.permission import (
    Allow,
    Ask,
    Deny,
)
from pointcode_local.tools.workspace import Workspace

from .permission_kit import GLUE, shell

FORBIDDEN = [
    "deploytool push",
    "CI=1 deploytool push",
    "A=1 B=2 deploytool push x",
    'bash -c "deploytool push"',
    "sh -ec 'true; deploytool push'",
    "env deploytool push",
    "env -i A=1 deploytool push",
    "sudo -u x deploytool push",
    "timeout -k 1 5 deploytool push",
    "nohup deploytool push &",
    "nice -n 5 deploytool push",
    "echo x | xargs deploytool push",
    "xargs -I{} deploytool push",
    "command deploytool push",
    "exec deploytool push",
    "eval deploytool push",
    'eval "deploytool" push',
    "$(deploytool push)",
    "`deploytool push`",
    "echo $(deploytool push)",
    'echo "$(deploytool push)"',
    "/usr/bin/deploytool push",
    "./deploytool push",
    "deploy\\tool push",
    '"deploytool" push',
    "dep''loytool push",
    "$'deploytool' push",
    "(deploytool push)",
    "{ deploytool push; }",
    "if true; then deploytool push; fi",
    "while :; do deploytool push; done",
    "for i in 1; do deploytool push; done",
    "case x in x) deploytool push;; esac",
    "f() { deploytool push; }; f",
    "a=deploytool; $a push",
    "find . -exec deploytool push \\;",
    "bash <<E\ndeploytool push\nE",
    'bash <<< "deploytool push"',
    "python3 -c \"import os; os.system('deploytool push')\"",
    "python3 - <<E\nimport subprocess\nsubprocess.run(['deploytool','push'])\nE",
    'perl -e \'system("deploytool", "push")\'',
    "deploytool   push",
    "true && deploytool push",
    "false || deploytool push",
    "true\ndeploytool push",
    "true & deploytool push",
    "cat a | deploytool push",
    "diff <(deploytool push) a",
    "deploytool push > out",
    "> out deploytool push",
    "! deploytool push",
    "time deploytool push",
    "deploytool 'push'",
    "ssh host deploytool push",
    'watch -n1 "deploytool push"',
    'trap "deploytool push" EXIT',
    "deploytool $x",
    'su -c "deploytool push"',
    'env -S "deploytool push"',
    'alias d="deploytool push"; d',
    "deploytool push # no",
    "bash -c \"bash -c 'deploytool push'\"",
    "coproc deploytool push",
    "deploytool --verbose push",
    "stdbuf -o0 deploytool push",
    "setsid deploytool push",
]


@pytest.mark.parametrize("command", FORBIDDEN)
def test_a_deny_rule_holds_behind_every_wrapper(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool push", "deploytool push *"]) is Deny
    assert shell(workspace, command, "auto", ask=["deploytool push", "deploytool push *"]) is Ask


@pytest.mark.parametrize(
    "command",
    [
        "a=deploy; b=tool; $a$b push",
        "echo ZGVw | base64 -d | sh",
        "${x} push",
        "bash",
        "eval $x",
        'sh -c "$x"',
        "echo 'open",
    ],
)
def test_what_cannot_be_known_asks_where_rules_forbid_something(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool *"]) is not Allow
    assert shell(workspace, command, "auto") is Allow


@pytest.mark.parametrize(
    "command",
    [
        "deploytool status",
        "git commit -m 'push it'",
        "echo x > in.txt",
        "echo deploytool push",
        "grep 'deploytool push' a.txt",
        "for i in 1 2; do echo $i; done",
    ],
)
def test_a_deny_rule_does_not_hold_for_what_is_only_said(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool push", "deploytool push *"]) is Allow


@pytest.mark.parametrize(
    "command",
    [
        "git diff",
        "git diff -- a.txt",
        "git --no-pager diff",
        "git -C . diff a.txt",
        "git -c a=b diff",
        "cd sub && git diff",
    ],
)
def test_a_deny_rule_sees_through_leading_options(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["git diff", "git diff *"]) is Deny


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["deploytool push", "true", "echo 'x y'"]), min_size=1, max_size=3),
    GLUE,
    st.sampled_from([f for f in FORBIDDEN if "<<" not in f and "#" not in f]),
    st.integers(0, 3),
)
def test_a_forbidden_command_is_found_at_any_place(
    workspace: Workspace, parts: list[str], glue: str, form: str, at: int
) -> None:
    parts.insert(min(at, len(parts)), form)
    assert shell(workspace, glue.join(parts), "auto", deny=["deploytool push", "deploytool push *"]) is not Allow

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


GIVEN = [
    "git -c alias.z='!deploytool push' z",
    "git -c core.fsmonitor='deploytool push' status",
    "git -C sub -c core.pager='deploytool push' log",
    "git rebase --exec 'deploytool push' HEAD~1",
    "git rebase -x 'deploytool push' HEAD~1",
    "git bisect run deploytool push",
    "git submodule foreach 'deploytool push'",
    "git config alias.z '!deploytool push'; git z",
    "git grep -O'deploytool push' x",
    "git clone --upload-pack='deploytool push' . x",
    "GIT_EXTERNAL_DIFF='deploytool push' git diff",
    "export GIT_PAGER='deploytool push'; git -p log",
    "LESSOPEN='|deploytool push' less a.txt",
    "tar cf x.tar --to-command='deploytool push' a.txt",
    "tar cf x.tar --checkpoint-action=exec='deploytool push' a.txt",
    "tar cf x.tar -I'deploytool push' a.txt",
    "rsync -e'deploytool push' a.txt h:x",
    'rsync -ae"deploytool push" a.txt h:x',
    "ssh -oProxyCommand='deploytool push' h",
    "sort --compress-program='deploytool push' a.txt",
    "rg --pre 'deploytool push' x",
    "sed '1e deploytool push' a.txt",
    "sed 's/.*/deploytool push/e' a.txt",
    "vim -c '!deploytool push' -c q",
    "vim -es '+!deploytool push' +q",
    "less '+!deploytool push' a.txt",
    "psql -c '\\! deploytool push'",
    "sqlite3 x.db '.shell deploytool push'",
    "printf -v 'a[$(deploytool push)]' x",
    "printf 'deploytool push' | sh",
    "echo deploytool push | at now",
    "echo deploytool push | timeout 5 bash",
    "echo 'deploytool push' | xargs -I{} sh -c '{}'",
    "echo 'deploytool push' > x.sh; sh x.sh",
    "cat > x.sh <<E\ndeploytool push\nE\n./x.sh",
    "cat > ./x.sh <<E\ndeploytool push\nE\nbash x.sh",
    "cat > sub/x.sh <<E\ndeploytool push\nE\ncd sub && sh x.sh",
    "tee x.sh <<E\ndeploytool push\nE\nsh x.sh",
    "echo 'deploytool push' | tee x.sh; sh x.sh",
    "cat > y <<E\ndeploytool push\nE\nmv y x.sh; sh x.sh",
    "echo push | xargs deploytool",
    "xargs -n 1 deploytool < a.txt",
    "tmux new-session -d deploytool push",
    "valgrind deploytool push",
]


@pytest.mark.parametrize("command", GIVEN)
def test_a_deny_rule_holds_for_what_other_programs_are_given_to_run(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool push", "deploytool push *"]) is Deny


@pytest.mark.parametrize(
    "command",
    [
        "echo ZGVw | base64 -d | timeout 5 bash",
        "echo ZGVw | base64 -d | xargs -n1 bash -c",
        "echo ZGVw | base64 -d | batch",
    ],
)
def test_a_shell_behind_another_program_runs_what_cannot_be_known(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool *"]) is Ask


@pytest.mark.parametrize(
    "command",
    [
        "git -c user.name='A B' -c user.email=a@b commit -m 'deploytool push is gone'",
        "git -C sub commit -m 'deploytool push is gone'",
        "git log --grep 'deploytool push'",
        "sed -n 's/deploytool push/x/p' a.txt",
        "sort -k 'deploytool push' a.txt",
        "echo a | xargs grep deploytool",
        "echo 'deploytool push' > notes.md; cat notes.md",
        "X='a b' make",
    ],
)
def test_words_that_run_nothing_fall_under_no_deny_rule(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool push", "deploytool push *"]) is Allow


def test_what_a_written_script_reads_counts_once_the_line_runs_it(workspace: Workspace) -> None:
    written = "cat > x.sh <<E\ncat .env\nE\n"
    assert shell(workspace, written, "auto") is Allow
    assert shell(workspace, written + "sh ./x.sh", "auto") is not Allow

"""Command lines taken apart: what is plain, what is a trick, what a rule forbids however it is dressed up."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointcode_local.permission import (
    Allow,
    Ask,
    Deny,
)
from pointcode_local.shell_words import Unsure, read_plain
from pointcode_local.tools.workspace import Workspace

from .permission_kit import WORDY, made, shell


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return made(tmp_path_factory.mktemp("top"))


# ------------------------------------------------------------------------------------------------- commands
@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "ls -la sub",
        "cat a.txt b.txt",
        "cat a.txt | grep -n x | wc -l",
        "echo 'a && b > c $(d)' \"it's\"",
        "git status -s",
        "git diff -- a.txt",
        "git log --oneline -n 5",
        "find . -name '*.py' -type f",
        "sort -rn a.txt | uniq -c",
        "sed -n 1,5p a.txt",
        "sed -e 's/a/b/g' -e '$d' a.txt",
        "ls 2>/dev/null",
        "ls nope 2>&1 | head -5 || true",
        "cd sub && ls",
        "wc -l < a.txt",
        "grep -rn x src",
        "rg -n 'x|y' src",
        "head -20 a.txt; tail -n 3 b.txt",
        "cat .env.example",
        "git branch -a",
        "stat a.txt",
        "pwd ;",
    ],
)
def test_plain_reading_commands_need_no_question(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command) is Allow
    assert shell(workspace, command, "plan") is Allow


TRICKS = [
    "{safe} && rm a.txt",
    "{safe} ; rm a.txt",
    "{safe} & rm a.txt",
    "{safe} &",
    "{safe} | xargs rm",
    "{safe} || rm a.txt",
    "{safe} > new.txt",
    "{safe} >> a.txt",
    "{safe} >| a.txt",
    "{safe} &> a.txt",
    "{safe} 2> err.txt",
    "> a.txt {safe}",
    "{safe}\nrm a.txt",
    "{safe}\r\nrm a.txt",
    "{safe} $(rm a.txt)",
    "{safe} `rm a.txt`",
    '{safe} "$(rm a.txt)"',
    "{safe} <(rm a.txt)",
    "{safe} >(rm a.txt)",
    "{safe} ${{x:=y}}",
    "{safe} $HOME",
    "{safe} $'\\x61'",
    "X=1 {safe}",
    "PATH=. {safe}",
    "X+=1 {safe}",
    "X[0]=1 {safe}",
    "! {safe}",
    "time {safe}",
    "({safe})",
    "{{ {safe}; }}",
    "if {safe}; then rm a.txt; fi",
    "while {safe}; do rm a.txt; done",
    "for i in 1; do {safe}; done",
    "case x in x) {safe};; esac",
    "f() {{ {safe}; }}; f",
    "env {safe}",
    "sudo {safe}",
    "timeout 5 {safe}",
    "nohup {safe}",
    "xargs {safe}",
    "command {safe}",
    "builtin {safe}",
    "exec {safe}",
    "eval {safe}",
    "sh -c '{safe}'",
    'bash -c "{safe}"',
    "trap '{safe}' EXIT",
    "{safe} <<E\nx\nE",
    "{safe} <<< x",
    "./{safe}",
    "/bin/{safe}",
    "~/{safe}",
    "\\{safe}",
    "'{safe}'",
    "{safe} {{a,b}}.txt",
    "{safe} # rm",
    "{safe} ~root/x",
    "{safe} ../proj-secret/s.txt",
    "{safe} /etc/passwd",
    "{safe} ~/x",
    "{safe} out/s.txt",
    "{safe} sub/../../proj-secret/s.txt",
    "{safe} .env",
    "{safe} ./.env",
    "{safe} .e*",
    "{safe} settings",
    "{safe} id_r?a",
    "{safe} *",
    "{safe} <.env",
    "{safe} < ../proj-secret/s.txt",
    "cd .. && {safe}",
    "cd && {safe}",
    "cd - && {safe}",
    "cd out && {safe}",
    "{safe} && cd .. && {safe}",
    "{safe} ;; {safe}",
    "{safe} |& tee a.txt",
    "{safe} 'open",
    '{safe} "open',
    "{safe} \\",
    "[ {safe} ]",
    "[[ {safe} ]]",
    "{safe} \x00",
    "{safe} && ",
    "| {safe}",
    "alias ls=rm; {safe}",
    "export PATH=.; {safe}",
    "set -x; {safe}",
    "source a.txt; {safe}",
    ". a.txt",
    "coproc {safe}",
    "{safe} @(a|b)",
    "unset x; {safe}",
    "declare x=1; {safe}",
]


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize("safe", ["cat", "ls"])
def test_a_trick_around_an_allowed_command_asks(workspace: Workspace, trick: str, safe: str) -> None:
    command = trick.format(safe=safe)
    if safe == "ls" and command in ("ls .env", "ls ./.env"):
        return
    assert shell(workspace, command, allow=WORDY) is Ask
    assert shell(workspace, command, "plan") is not Allow


@pytest.mark.parametrize(
    "command",
    [
        "find . -delete",
        "find . -exec rm {} +",
        "find . -name x -exec rm {} \\;",
        "find . -ok rm {} \\;",
        "find . -fprint out",
        "sort -o a.txt b.txt",
        "sort -ro a.txt b.txt",
        "sort --output=a.txt b.txt",
        "sort --outp a.txt",
        "sort --compress-program=./x a.txt",
        "sort *",
        "uniq a.txt b.txt",
        "git diff --output=a.txt",
        "git log --outp=a.txt",
        "git -c core.pager=x log",
        "git --exec-path=. log",
        "git grep -O./x y",
        "git diff --ext-diff",
        "git log --textconv",
        "git bisect run ./x",
        "git rebase -x ./x",
        "git submodule foreach x",
        "git config core.pager x",
        "git difftool -x ./x",
        "sed -i s/a/b/ a.txt",
        "sed -ni p a.txt",
        "sed -i.bak p a.txt",
        "sed --in-place p a.txt",
        "sed --in p a.txt",
        "sed '1e touch x' a.txt",
        "sed 's/a/b/e' a.txt",
        "sed 's/a/b/w x' a.txt",
        "sed -n 'w x' a.txt",
        "sed -f a.txt b.txt",
        "sed 'r ../x' a.txt",
        "sed -e p -e 'e id' a.txt",
        "rg --pre ./x y",
        "rg --pre=./x y",
        "rg -z y",
        "rg --hostname-bin=./x y",
        "fd -x rm",
        "fd -Hx rm",
        "fd x --exec rm",
        "fd -X rm",
        "tree -o a.txt",
        "grep -r x .",
        "grep -f ../proj-secret/s.txt a.txt",
        "grep --file=/etc/passwd x",
        "cat -- ../proj-secret/s.txt",
        "cat a.txt ../proj-secret/s.txt",
    ],
)
def test_options_that_write_run_or_leave_ask_although_the_command_is_allowed(
    workspace: Workspace, command: str
) -> None:
    assert shell(workspace, command, allow=WORDY) is Ask


@pytest.mark.parametrize(
    "command",
    ["rg --files ..", "rg -e x ..", "find / -name x", "ls ..", "git diff --no-index /etc/passwd a.txt", "cat */s.txt"],
)
def test_reading_commands_that_leave_the_workspace_ask(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, allow=WORDY) is Ask


def test_a_rule_covers_its_command_and_no_longer_one(workspace: Workspace) -> None:
    assert shell(workspace, "make test", allow=["make test"]) is Allow
    assert shell(workspace, "make  'test'", allow=["make test"]) is Allow
    assert shell(workspace, "make all", allow=["make *"]) is Allow
    assert shell(workspace, "cat a.txt | make all", allow=["make *"]) is Allow
    for command in ("make test evil", "make testify", "make", "xmake test", "make test; touch x", "make test > x"):
        assert shell(workspace, command, allow=["make test"]) is Ask
    for command in ("make", "makex all", "make all; touch x", "make all && touch x", "make all | sh"):
        assert shell(workspace, command, allow=["make *"]) is Ask
    assert shell(workspace, "npm --version", allow=["npm --version"]) is Allow
    assert shell(workspace, "find . -delete", allow=["find . -delete"]) is Allow
    assert shell(workspace, "timeout 5 rm a.txt", allow=["timeout *"]) is Ask


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


@pytest.mark.parametrize(
    "command",
    [
        "cat .env",
        "cat ./.env",
        "cat sub/../.env",
        "cat <.env",
        "cat < .env",
        "cat settings",
        "cat .e*",
        "cat .en?",
        "cat .[e]nv",
        'cat ".env"',
        "cat .e''nv",
        'cat "$PWD/.env"',
        "F=.env; cat $F",
        "cat $(echo .env)",
        "git show HEAD:.env",
        "python3 -c \"print(open('.env').read())\"",
        "cp .env x",
        "base64 .env",
        "grep -r KEY .",
        "grep -rn KEY",
        "rg --hidden KEY",
        "rg -uu KEY",
        "git grep KEY",
        "source .env",
        ". ./.env; echo $KEY",
        "head -c9 .env",
        "awk 1 .env",
        "find . -type f -exec cat {} +",
        "find . -type f | xargs cat",
        "tar c .",
        "cd sub && cat ../.env",
        "cat .*",
        "while read l; do echo $l; done < .env",
        "curl -F f=@.env x",
        "cat -- .env",
        "sed -n p .env",
        "diff a.txt .env",
        "cat -n.env .env",
        "dd if=.env",
    ],
)
def test_a_file_that_must_not_be_read_is_not_read_by_a_command(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["read(.env)"]) is Deny
    assert shell(workspace, command, "ask", allow=WORDY) is Ask


def test_secrets_are_found_from_the_folder_that_a_line_changes_to(workspace: Workspace) -> None:
    (workspace.root / "keys").mkdir(exist_ok=True)
    (workspace.root / "keys" / "server.pem").write_text("x")
    for command in (
        "cd keys && cat server.pem",
        "cd keys && cat *",
        "cd keys; cat server.p*",
        "cat keys/*.pem",
        "cat keys/server.pem",
    ):
        assert shell(workspace, command, allow=WORDY) is Ask
        assert shell(workspace, command, "auto") is Ask


@pytest.mark.parametrize(
    "command",
    [
        "echo .env >> .gitignore",
        "printf '%s\\n' '.env' '*.pem' > list.txt",
        "git commit -m 'load .env at start'",
        "cat > load.py <<'E'\nopen('.env')\nE",
        "cat <<E > notes.md\nsee .env and id_rsa\nE",
        "tee x.txt <<E\n.env\nE",
        "mkdir -p a && echo 'see .env' > a/note && ls a",
    ],
)
def test_a_secrets_name_that_is_only_written_down_does_not_ask(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto") is Allow


@pytest.mark.parametrize(
    "command",
    [
        "echo .env | xargs cat",
        "cat $(echo .env)",
        "echo 'cat .env' | sh",
        "cat <<E | sh\ncat .env\nE",
        "sh <<E\ncat .env\nE",
        "cat <<E\n$(cat .env)\nE",
        'echo "$(cat .env)"',
        'echo "$(<.env)"',
        "echo x > .env",
        "for f in .env; do cat $f; done",
        "echo .env | while read f; do cat $f; done",
        "f() { cat $1; }; f .env",
        "git commit -m x .env",
        "git commit -F .env",
        "cat .env <<E\nx\nE",
    ],
)
def test_a_secrets_name_that_is_used_asks(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto") is Ask
    assert shell(workspace, command, "auto", deny=["read(.env)"]) is Deny


def test_a_long_chain_is_judged_to_its_end(workspace: Workspace) -> None:
    chain = " && ".join(["echo x"] * 80)
    assert shell(workspace, chain) is Allow
    assert shell(workspace, chain + " && rm a.txt") is Ask
    assert shell(workspace, chain + " && deploytool push", "auto", deny=["deploytool *"]) is Deny


def test_in_mode_auto_a_write_outside_the_workspace_asks(workspace: Workspace) -> None:
    for target in ("/var/tmp/x", "~/x", "/etc/x", "../../../../../../../x"):
        assert shell(workspace, f"echo x > {target}", "auto") is Ask
        assert shell(workspace, f"echo x | tee a.txt >> {target}", "auto") is Ask
    assert shell(workspace, "echo x > sub/new.txt 2>/dev/null", "auto") is Allow
    assert shell(workspace, "cat a.txt > /tmp/x", "auto") is Allow


# ------------------------------------------------------------------------------------------------- properties
GLUE = st.sampled_from([" && ", " ; ", " | ", " || ", "\n", " & ", "\r\n", "&&", ";", "|"])
FORMS = st.sampled_from([t for t in TRICKS if "rm a.txt" in t])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["ls", "cat a.txt", "echo hi", "git status", "true"]), min_size=1, max_size=4),
    GLUE,
    st.integers(0, 4),
)
def test_a_line_with_a_command_that_is_not_allowed_is_never_allowed(
    workspace: Workspace, parts: list[str], glue: str, at: int
) -> None:
    parts.insert(min(at, len(parts)), "rm a.txt")
    assert shell(workspace, glue.join(parts), allow=WORDY) is Ask


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


@settings(max_examples=300, deadline=None)
@given(st.text("ab '\"\\|&;<>$`(){}[]*?~#!=\n\t-/.0", max_size=16))
def test_what_the_small_reader_accepts_bash_reads_the_same_way(line: str) -> None:
    plain = read_plain(line)
    if isinstance(plain, Unsure):
        return
    assert not set("\n`$()") & set(_unquoted(line))
    assert all(word.text is not None for command in plain for word in command.words)


def _unquoted(line: str) -> str:
    out, at = [], 0
    while at < len(line):
        if line[at] == "'":
            at = line.index("'", at + 1)
        elif line[at] == '"':
            at += 1
            while line[at] != '"':
                at += 2 if line[at] == "\\" else 1
        elif line[at] == "\\":
            at += 1
        else:
            out.append(line[at])
        at += 1
    return "".join(out)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab*?'\" \\-./~{}=#!@^%+:", max_size=6), min_size=1, max_size=4))
def test_bash_gives_the_words_that_the_small_reader_gives(parts: list[str]) -> None:
    import subprocess
    import tempfile

    plain = read_plain("printf '%s\\0' x " + " ".join(parts))
    if (
        isinstance(plain, Unsure)
        or len(plain) != 1
        or any(word.has_glob or word.starts_with_tilde for word in plain[0].words)
    ):
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", plain[0].source], capture_output=True, cwd=folder, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [word.text for word in plain[0].words[2:]]

"""Who may do what: modes, rules, paths, secrets, and command lines taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointcode_local.permission import Allow, Ask, Decision, Deny, Mode, Rules, decide, load_rules, parse_rule, unreadable
from pointcode_local.rules import command_matches, escaped
from pointcode_local.shell_words import Unsure, read_plain
from pointcode_local.tools.registry import build_tools
from pointcode_local.tools.workspace import Workspace

TOOLS = {tool.name: tool for tool in build_tools().tools}
WORDY = ["ls", "ls *", "cat *", "echo *", "git *", "find *", "sort *", "sed *", "rg *", "fd *", "grep *", "uniq *", "tree *", "make *"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    top = tmp_path_factory.mktemp("top")
    root = top / "proj"
    for name in ("a.txt", "b.txt", ".env", ".env.example", "sub/x.txt", "id_rsa", "docs/a.md", "docs/deep/b.md", "src/a.py", "-o", ".git/config"):
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
    wrapped = {key: [rule if "(" in rule and rule.split("(")[0] in TOOLS else f"shell({rule})" for rule in value] for key, value in lists.items()}
    return type(judge(workspace, mode, rules(**wrapped), "shell", command=command))


# ------------------------------------------------------------------------------------------------- modes and files
@pytest.mark.parametrize(
    ("mode", "tool", "wanted"),
    [
        ("ask", "read", Allow), ("ask", "edit", Ask), ("ask", "shell", Ask), ("ask", "todo", Allow),
        ("accept-edits", "edit", Allow), ("accept-edits", "write", Allow), ("accept-edits", "shell", Ask),
        ("plan", "read", Allow), ("plan", "edit", Deny), ("plan", "write", Deny), ("plan", "shell", Deny), ("plan", "ask", Allow),
        ("auto", "edit", Allow), ("auto", "shell", Allow), ("auto", "read", Allow), ("auto", "shell_kill", Allow),
    ],
)  # fmt: skip
def test_each_mode_lets_through_what_it_should(workspace: Workspace, mode: Mode, tool: str, wanted: type[Decision]) -> None:
    arguments = {"path": "a.txt", "command": "touch n", "content": "", "edits": []}
    assert isinstance(judge(workspace, mode, Rules(), tool, **arguments), wanted)


@pytest.mark.parametrize("path", ["../proj-secret/s.txt", "{top}/proj-secret/s.txt", "~/x", "out/s.txt", "sub/../../proj-secret/s.txt", "/etc/passwd", "..", "/"])
@pytest.mark.parametrize("tool", ["read", "grep", "glob", "list", "edit", "write", "outline", "replace_symbol"])
@pytest.mark.parametrize("mode", ["ask", "accept-edits", "auto"])
def test_paths_that_lead_outside_ask(workspace: Workspace, path: str, tool: str, mode: Mode) -> None:
    path = path.format(top=workspace.root.parent)
    assert isinstance(judge(workspace, mode, Rules(), tool, path=path, pattern="*"), Ask)
    if tool == "glob":
        assert isinstance(judge(workspace, mode, Rules(), tool, pattern=f"{path}/*.txt"), Ask)


def test_patches_are_judged_by_every_path_in_them(workspace: Workspace) -> None:
    patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: ../b.txt\n@@\n-x\n+y\n*** End Patch"
    assert isinstance(judge(workspace, "auto", Rules(), "patch", patch=patch), Ask)
    assert isinstance(judge(workspace, "auto", Rules(), "patch", patch=patch.replace("../", "sub/")), Allow)
    assert isinstance(judge(workspace, "auto", rules(deny=["edit(b.txt)"]), "patch", patch=patch.replace("../", "sub/")), Deny)


@pytest.mark.parametrize("path", [".env", "sub/.env", ".env.local", ".ENV", "prod.env", "id_rsa", "k/id_ed25519", "server.pem", "tls.KEY", ".ssh/config", ".aws/credentials", ".netrc", ".npmrc", "credentials.json", "settings", "x.tfvars", ".env.production.local"])
@pytest.mark.parametrize("tool", ["read", "grep", "edit", "write", "outline"])
def test_secrets_are_guarded_in_every_tool_and_mode(workspace: Workspace, path: str, tool: str) -> None:
    for mode in ("ask", "accept-edits", "auto"):
        assert isinstance(judge(workspace, mode, rules(allow=[f"{tool}(*)", f"{tool}(**)", tool]), tool, path=path, pattern="x"), Ask)
    assert isinstance(judge(workspace, "auto", rules(allow=[f"read({path})"]), "read", path=path), Ask if path == "settings" else Allow)


@pytest.mark.parametrize("path", [".env.example", ".env.sample", "sub/.env.template", "id_rsa.pub", "keys.py", "environment.ts", "env", "pem.md"])
def test_examples_and_public_files_are_not_guarded(workspace: Workspace, path: str) -> None:
    assert isinstance(judge(workspace, "ask", Rules(), "read", path=path), Allow)


def test_git_and_settings_folders_are_not_written_silently(workspace: Workspace) -> None:
    for path in (".git/config", ".git/hooks/pre-commit", ".pointcode/config.toml", "sub/../.git/x"):
        assert isinstance(judge(workspace, "auto", Rules(), "write", path=path, content=""), Ask)
    assert shell(workspace, "echo x > .git/config", "auto") is Ask


def test_path_rules_reach_where_they_say(workspace: Workspace) -> None:
    def verdict(rule: str, path: str, effect: str = "allow", tool: str = "edit") -> type[Decision]:
        return type(judge(workspace, "ask", rules(**{effect: [rule]}), tool, path=path))

    assert verdict("edit(docs/*)", "docs/a.md") is Allow
    assert verdict("edit(docs/*)", "./docs/../docs/a.md") is Allow
    for path in ("docs/deep/b.md", "src/a.py", "docs/../src/a.py", "docsx/a.md", "../docs/a.md"):
        assert verdict("edit(docs/*)", path) is Ask
    assert verdict("edit(docs/**)", "docs/deep/b.md") is Allow
    assert verdict("edit(docs/)", "docs/deep/b.md") is Allow
    assert verdict("edit(*.md)", "docs/deep/b.md") is Allow
    assert verdict("edit(src/a.py)", "src/a.py") is Allow
    assert verdict("write(src/a.py)", "src/a.py") is Ask
    assert verdict("edit(docs/*)", "docs/deep/b.md", "deny") is Deny
    assert verdict("edit(b.md)", "docs/deep/b.md", "deny") is Deny
    assert verdict("write(src/*)", "src/a.py", "deny") is Deny
    assert verdict("read(src/*)", "src/a.py", "deny") is Deny
    assert verdict("read(src/*)", "src/a.py", "ask", "grep") is Ask
    assert verdict("read(.env)", "settings", "deny", "read") is Deny
    assert verdict("read(settings)", "settings", "deny", "read") is Deny
    assert verdict("edit", "src/a.py") is Allow
    assert verdict("*", "src/a.py", "deny") is Deny
    assert verdict(f"read({workspace.root.parent}/proj-secret/*)", "../proj-secret/s.txt", "allow", "read") is Allow


def test_what_rules_forbid_to_read_is_named_for_searches(workspace: Workspace) -> None:
    forbidden = unreadable(rules(deny=["read(.env)", "read(docs/*)", "edit(src/*)"]))
    assert [name for name in (".env", "sub/.env", "docs/deep/b.md", "src/a.py", "a.txt") if forbidden(name)] == [".env", "sub/.env", "docs/deep/b.md"]


def test_deny_wins_over_ask_and_ask_over_allow(workspace: Workspace) -> None:
    for mode in ("ask", "accept-edits", "auto"):
        assert shell(workspace, "deploy now", mode, allow=["deploy *"], ask=["deploy *"], deny=["deploy now"]) is Deny
        assert shell(workspace, "deploy now", mode, allow=["deploy *", "deploy now"], ask=["deploy *"]) is Ask
        assert isinstance(judge(workspace, mode, rules(allow=["edit(*.txt)"], deny=["edit(a.txt)"]), "edit", path="a.txt"), Deny)


# ------------------------------------------------------------------------------------------------- loading
def test_a_project_cannot_widen_its_own_rights() -> None:
    own, project = {"allow": ["shell(make)"]}, {"allow": ["shell(*)"], "deny": ["read(x)"], "ask": ["shell(make)"]}
    loaded, problems = load_rules(own, project)
    assert not problems and [rule.text for rule in loaded.of("allow")] == ["shell(make)"]
    assert len(loaded.of("deny")) == len(loaded.of("ask")) == 1
    trusted, _ = load_rules(own, project, trusted=True)
    assert len(trusted.of("allow")) == 2


@pytest.mark.parametrize("bad", ["", "shell(", "shell()", "(x)", "shell(a) b", 5, "sh ell(x)", "shell( )"])
def test_a_malformed_rule_is_told(bad: object) -> None:
    with pytest.raises(ValueError, match="rule"):
        parse_rule("deny", bad)
    _, problems = load_rules({"deny": [bad], "alow": []})
    assert len(problems) == 2
    assert load_rules({"deny": "shell(x)"})[1]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_the_suggested_rule_allows_exactly_the_command_it_was_made_for(command: str) -> None:
    pattern = escaped(command.strip())
    assert command_matches(pattern, command.strip())
    assert not command_matches(pattern, command.strip() + " x") and not command_matches(pattern, "x" + command.strip())


def test_the_answer_always_stores_a_rule_that_then_allows(workspace: Workspace) -> None:
    for tool, arguments in (("edit", {"path": "docs/a.md"}), ("shell", {"command": "npm run 'x*' > out.txt"}), ("read", {"path": "../proj-secret/s.txt"})):
        asked = judge(workspace, "ask", Rules(), tool, **arguments)
        assert isinstance(asked, Ask) and asked.rule
        assert isinstance(judge(workspace, "ask", Rules().with_rule("allow", asked.rule), tool, **arguments), Allow)


# ------------------------------------------------------------------------------------------------- commands
@pytest.mark.parametrize(
    "command",
    [
        "ls", "ls -la sub", "cat a.txt b.txt", "cat a.txt | grep -n x | wc -l", "echo 'a && b > c $(d)' \"it's\"", "git status -s",
        "git diff -- a.txt", "git log --oneline -n 5", "find . -name '*.py' -type f", "sort -rn a.txt | uniq -c", "sed -n 1,5p a.txt",
        "sed -e 's/a/b/g' -e '$d' a.txt", "ls 2>/dev/null", "ls nope 2>&1 | head -5 || true", "cd sub && ls", "wc -l < a.txt", "grep -rn x src",
        "rg -n 'x|y' src", "head -20 a.txt; tail -n 3 b.txt", "cat .env.example", "git branch -a", "stat a.txt", "pwd ;",
    ],
)  # fmt: skip
def test_plain_reading_commands_need_no_question(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command) is Allow
    assert shell(workspace, command, "plan") is Allow


TRICKS = [
    "{safe} && rm a.txt", "{safe} ; rm a.txt", "{safe} & rm a.txt", "{safe} &", "{safe} | xargs rm", "{safe} || rm a.txt", "{safe} > new.txt",
    "{safe} >> a.txt", "{safe} >| a.txt", "{safe} &> a.txt", "{safe} 2> err.txt", "> a.txt {safe}", "{safe}\nrm a.txt", "{safe}\r\nrm a.txt",
    "{safe} $(rm a.txt)", "{safe} `rm a.txt`", '{safe} "$(rm a.txt)"', "{safe} <(rm a.txt)", "{safe} >(rm a.txt)", "{safe} ${{x:=y}}", "{safe} $HOME",
    "{safe} $'\\x61'", "X=1 {safe}", "PATH=. {safe}", "X+=1 {safe}", "X[0]=1 {safe}", "! {safe}", "time {safe}", "({safe})", "{{ {safe}; }}",
    "if {safe}; then rm a.txt; fi", "while {safe}; do rm a.txt; done", "for i in 1; do {safe}; done", "case x in x) {safe};; esac", "f() {{ {safe}; }}; f",
    "env {safe}", "sudo {safe}", "timeout 5 {safe}", "nohup {safe}", "xargs {safe}", "command {safe}", "builtin {safe}", "exec {safe}", "eval {safe}",
    "sh -c '{safe}'", 'bash -c "{safe}"', "trap '{safe}' EXIT", "{safe} <<E\nx\nE", "{safe} <<< x", "./{safe}", "/bin/{safe}", "~/{safe}", "\\{safe}",
    "'{safe}'", "{safe} {{a,b}}.txt", "{safe} # rm", "{safe} ~root/x", "{safe} ../proj-secret/s.txt", "{safe} /etc/passwd", "{safe} ~/x", "{safe} out/s.txt",
    "{safe} sub/../../proj-secret/s.txt", "{safe} .env", "{safe} ./.env", "{safe} .e*", "{safe} settings", "{safe} id_r?a", "{safe} *", "{safe} <.env",
    "{safe} < ../proj-secret/s.txt", "cd .. && {safe}", "cd && {safe}", "cd - && {safe}", "cd out && {safe}", "{safe} && cd .. && {safe}", "{safe} ;; {safe}",
    "{safe} |& tee a.txt", "{safe} 'open", '{safe} "open', "{safe} \\", "[ {safe} ]", "[[ {safe} ]]", "{safe} \x00", "{safe} && ", "| {safe}", "alias ls=rm; {safe}",
    "export PATH=.; {safe}", "set -x; {safe}", "source a.txt; {safe}", ". a.txt", "coproc {safe}", "{safe} @(a|b)", "unset x; {safe}", "declare x=1; {safe}",
]  # fmt: skip


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
        "find . -delete", "find . -exec rm {} +", "find . -name x -exec rm {} \\;", "find . -ok rm {} \\;", "find . -fprint out", "sort -o a.txt b.txt",
        "sort -ro a.txt b.txt", "sort --output=a.txt b.txt", "sort --outp a.txt", "sort --compress-program=./x a.txt", "sort *", "uniq a.txt b.txt",
        "git diff --output=a.txt", "git log --outp=a.txt", "git -c core.pager=x log", "git --exec-path=. log", "git grep -O./x y", "git diff --ext-diff",
        "git log --textconv", "git bisect run ./x", "git rebase -x ./x", "git submodule foreach x", "git config core.pager x", "git difftool -x ./x",
        "sed -i s/a/b/ a.txt", "sed -ni p a.txt", "sed -i.bak p a.txt", "sed --in-place p a.txt", "sed --in p a.txt", "sed '1e touch x' a.txt",
        "sed 's/a/b/e' a.txt", "sed 's/a/b/w x' a.txt", "sed -n 'w x' a.txt", "sed -f a.txt b.txt", "sed 'r ../x' a.txt", "sed -e p -e 'e id' a.txt",
        "rg --pre ./x y", "rg --pre=./x y", "rg -z y", "rg --hostname-bin=./x y", "fd -x rm", "fd -Hx rm", "fd x --exec rm", "fd -X rm", "tree -o a.txt",
        "grep -r x .", "grep -f ../proj-secret/s.txt a.txt", "grep --file=/etc/passwd x", "cat -- ../proj-secret/s.txt", "cat a.txt ../proj-secret/s.txt",
    ],
)  # fmt: skip
def test_options_that_write_run_or_leave_ask_although_the_command_is_allowed(workspace: Workspace, command: str) -> None:
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
    "deploytool push", "CI=1 deploytool push", "A=1 B=2 deploytool push x", 'bash -c "deploytool push"', "sh -ec 'true; deploytool push'", "env deploytool push",
    "env -i A=1 deploytool push", "sudo -u x deploytool push", "timeout -k 1 5 deploytool push", "nohup deploytool push &", "nice -n 5 deploytool push",
    "echo x | xargs deploytool push", "xargs -I{} deploytool push", "command deploytool push", "exec deploytool push", "eval deploytool push",
    'eval "deploytool" push', "$(deploytool push)", "`deploytool push`", "echo $(deploytool push)", 'echo "$(deploytool push)"', "/usr/bin/deploytool push",
    "./deploytool push", "deploy\\tool push", '"deploytool" push', "dep''loytool push", "$'deploytool' push", "(deploytool push)", "{ deploytool push; }",
    "if true; then deploytool push; fi", "while :; do deploytool push; done", "for i in 1; do deploytool push; done", "case x in x) deploytool push;; esac",
    "f() { deploytool push; }; f", "a=deploytool; $a push", "find . -exec deploytool push \\;", "bash <<E\ndeploytool push\nE", 'bash <<< "deploytool push"',
    "python3 -c \"import os; os.system('deploytool push')\"", "python3 - <<E\nimport subprocess\nsubprocess.run(['deploytool','push'])\nE",
    "perl -e 'system(\"deploytool\", \"push\")'", "deploytool   push", "true && deploytool push", "false || deploytool push", "true\ndeploytool push",
    "true & deploytool push", "cat a | deploytool push", "diff <(deploytool push) a", "deploytool push > out", "> out deploytool push", "! deploytool push",
    "time deploytool push", "deploytool 'push'", "ssh host deploytool push", 'watch -n1 "deploytool push"', 'trap "deploytool push" EXIT', "deploytool $x",
    'su -c "deploytool push"', 'env -S "deploytool push"', 'alias d="deploytool push"; d', "deploytool push # no", "bash -c \"bash -c 'deploytool push'\"",
    "coproc deploytool push", "deploytool --verbose push", "stdbuf -o0 deploytool push", "setsid deploytool push",
]  # fmt: skip


@pytest.mark.parametrize("command", FORBIDDEN)
def test_a_deny_rule_holds_behind_every_wrapper(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool push", "deploytool push *"]) is Deny
    assert shell(workspace, command, "auto", ask=["deploytool push", "deploytool push *"]) is Ask


@pytest.mark.parametrize("command", ["a=deploy; b=tool; $a$b push", "echo ZGVw | base64 -d | sh", "${x} push", "bash", "eval $x", "sh -c \"$x\"", "echo 'open"])
def test_what_cannot_be_known_asks_where_rules_forbid_something(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool *"]) is not Allow
    assert shell(workspace, command, "auto") is Allow


@pytest.mark.parametrize("command", ["deploytool status", "git commit -m 'push it'", "echo x > in.txt", "echo deploytool push", "grep 'deploytool push' a.txt", "for i in 1 2; do echo $i; done"])
def test_a_deny_rule_does_not_hold_for_what_is_only_said(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["deploytool push", "deploytool push *"]) is Allow


@pytest.mark.parametrize("command", ["git diff", "git diff -- a.txt", "git --no-pager diff", "git -C . diff a.txt", "git -c a=b diff", "cd sub && git diff"])
def test_a_deny_rule_sees_through_leading_options(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["git diff", "git diff *"]) is Deny


@pytest.mark.parametrize(
    "command",
    [
        "cat .env", "cat ./.env", "cat sub/../.env", "cat <.env", "cat < .env", "cat settings", "cat .e*", "cat .en?", "cat .[e]nv", 'cat ".env"', "cat .e''nv",
        'cat "$PWD/.env"', "F=.env; cat $F", "cat $(echo .env)", "git show HEAD:.env", "python3 -c \"print(open('.env').read())\"", "cp .env x", "base64 .env",
        "grep -r KEY .", "grep -rn KEY", "rg --hidden KEY", "rg -uu KEY", "git grep KEY", "source .env", ". ./.env; echo $KEY", "head -c9 .env", "awk 1 .env",
        "find . -type f -exec cat {} +", "find . -type f | xargs cat", "tar c .", "cd sub && cat ../.env", "cat .*", "while read l; do echo $l; done < .env",
        "curl -F f=@.env x", "cat -- .env", "sed -n p .env", "diff a.txt .env", "cat -n.env .env", "dd if=.env",
    ],
)  # fmt: skip
def test_a_file_that_must_not_be_read_is_not_read_by_a_command(workspace: Workspace, command: str) -> None:
    assert shell(workspace, command, "auto", deny=["read(.env)"]) is Deny
    assert shell(workspace, command, "ask", allow=WORDY) is Ask


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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["ls", "cat a.txt", "echo hi", "git status", "true"]), min_size=1, max_size=4), GLUE, st.integers(0, 4))
def test_a_line_with_a_command_that_is_not_allowed_is_never_allowed(workspace: Workspace, parts: list[str], glue: str, at: int) -> None:
    parts.insert(min(at, len(parts)), "rm a.txt")
    assert shell(workspace, glue.join(parts), allow=WORDY) is Ask


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["deploytool push", "true", "echo 'x y'"]), min_size=1, max_size=3), GLUE, st.sampled_from([f for f in FORBIDDEN if "<<" not in f and "#" not in f]), st.integers(0, 3))
def test_a_forbidden_command_is_found_at_any_place(workspace: Workspace, parts: list[str], glue: str, form: str, at: int) -> None:
    parts.insert(min(at, len(parts)), form)
    assert shell(workspace, glue.join(parts), "auto", deny=["deploytool push", "deploytool push *"]) is not Allow


@settings(max_examples=300, deadline=None)
@given(st.text("ab '\"\\|&;<>$`(){}[]*?~#!=\n\t-/.0", max_size=16))
def test_what_the_small_reader_accepts_bash_reads_the_same_way(line: str) -> None:
    plain = read_plain(line)
    if isinstance(plain, Unsure):
        return
    assert not set("\n`$(){}") & set(_unquoted(line))
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
        elif not (line[at] in "{}" and not _is_brace(line, at)):
            out.append(line[at])
        at += 1
    return "".join(out)


def _is_brace(line: str, at: int) -> bool:
    return line[at : at + 2] in ("{ ", "{") or "," in line[at:]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("ab*?'\" \\-./~{}=#!@^%+:", max_size=6), min_size=1, max_size=4))
def test_bash_gives_the_words_that_the_small_reader_gives(parts: list[str]) -> None:
    import subprocess
    import tempfile

    plain = read_plain("printf '%s\\0' x " + " ".join(parts))
    if isinstance(plain, Unsure) or len(plain) != 1 or any(word.has_glob or word.starts_with_tilde for word in plain[0].words):
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", plain[0].source], capture_output=True, cwd=folder, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [word.text for word in plain[0].words[2:]]

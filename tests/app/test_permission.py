"""Who may do what: modes, rules, paths, secrets, and command lines taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointcode_local.permission import (
    Allow,
    Ask,
    Decision,
    Deny,
    Mode,
    Rules,
    load_rules,
    parse_rule,
    unreadable,
)
from pointcode_local.rules import command_matches, escaped
from pointcode_local.tools.workspace import Workspace

from .permission_kit import judge, rules, shell


# ------------------------------------------------------------------------------------------------- modes and files
@pytest.mark.parametrize(
    ("mode", "tool", "wanted"),
    [
        ("ask", "read", Allow),
        ("ask", "edit", Ask),
        ("ask", "shell", Ask),
        ("ask", "todo", Allow),
        ("accept-edits", "edit", Allow),
        ("accept-edits", "write", Allow),
        ("accept-edits", "shell", Ask),
        ("plan", "read", Allow),
        ("plan", "edit", Deny),
        ("plan", "write", Deny),
        ("plan", "shell", Deny),
        ("plan", "ask", Allow),
        ("auto", "edit", Allow),
        ("auto", "shell", Allow),
        ("auto", "read", Allow),
        ("auto", "shell_kill", Allow),
    ],
)
def test_each_mode_lets_through_what_it_should(
    workspace: Workspace, mode: Mode, tool: str, wanted: type[Decision]
) -> None:
    arguments = {"path": "a.txt", "command": "touch n", "content": "", "edits": []}
    assert isinstance(judge(workspace, mode, Rules(), tool, **arguments), wanted)


@pytest.mark.parametrize(
    "path",
    [
        "../proj-secret/s.txt",
        "{top}/proj-secret/s.txt",
        "~/x",
        "out/s.txt",
        "sub/../../proj-secret/s.txt",
        "/etc/passwd",
        "..",
        "/",
    ],
)
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
    assert isinstance(
        judge(workspace, "auto", rules(deny=["edit(b.txt)"]), "patch", patch=patch.replace("../", "sub/")), Deny
    )


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "sub/.env",
        ".env.local",
        ".ENV",
        "prod.env",
        "id_rsa",
        "k/id_ed25519",
        "server.pem",
        "tls.KEY",
        ".ssh/config",
        ".aws/credentials",
        ".netrc",
        ".npmrc",
        "credentials.json",
        "settings",
        "x.tfvars",
        ".env.production.local",
    ],
)
@pytest.mark.parametrize("tool", ["read", "grep", "edit", "write", "outline"])
def test_secrets_are_guarded_in_every_tool_and_mode(workspace: Workspace, path: str, tool: str) -> None:
    for mode in ("ask", "accept-edits", "auto"):
        assert isinstance(
            judge(workspace, mode, rules(allow=[f"{tool}(*)", f"{tool}(**)", tool]), tool, path=path, pattern="x"), Ask
        )
    assert isinstance(
        judge(workspace, "auto", rules(allow=[f"read({path})"]), "read", path=path),
        Ask if path == "settings" else Allow,
    )


@pytest.mark.parametrize(
    "path",
    [".env.example", ".env.sample", "sub/.env.template", "id_rsa.pub", "keys.py", "environment.ts", "env", "pem.md"],
)
def test_examples_and_public_files_are_not_guarded(workspace: Workspace, path: str) -> None:
    assert isinstance(judge(workspace, "ask", Rules(), "read", path=path), Allow)


def test_git_and_settings_folders_are_not_written_silently(workspace: Workspace) -> None:
    for path in (
        ".git/config",
        ".git/hooks/pre-commit",
        ".pointcode/config.toml",
        "sub/../.git/x",
        ".git",
        "sub/.git",
        ".Git/config",
    ):
        assert isinstance(judge(workspace, "auto", Rules(), "write", path=path, content=""), Ask)
    for path in (".git/config", "sub/.git", ".GIT/config"):
        assert shell(workspace, f"echo x > {path}", "auto") is Ask


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
    assert [name for name in (".env", "sub/.env", "docs/deep/b.md", "src/a.py", "a.txt") if forbidden(name)] == [
        ".env",
        "sub/.env",
        "docs/deep/b.md",
    ]


def test_deny_wins_over_ask_and_ask_over_allow(workspace: Workspace) -> None:
    for mode in ("ask", "accept-edits", "auto"):
        assert shell(workspace, "deploy now", mode, allow=["deploy *"], ask=["deploy *"], deny=["deploy now"]) is Deny
        assert shell(workspace, "deploy now", mode, allow=["deploy *", "deploy now"], ask=["deploy *"]) is Ask
        assert isinstance(
            judge(workspace, mode, rules(allow=["edit(*.txt)"], deny=["edit(a.txt)"]), "edit", path="a.txt"), Deny
        )


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
    for tool, arguments in (
        ("edit", {"path": "docs/a.md"}),
        ("shell", {"command": "npm run 'x*' > out.txt"}),
        ("read", {"path": "../proj-secret/s.txt"}),
    ):
        asked = judge(workspace, "ask", Rules(), tool, **arguments)
        assert isinstance(asked, Ask) and asked.rule
        assert isinstance(judge(workspace, "ask", Rules().with_rule("allow", asked.rule), tool, **arguments), Allow)

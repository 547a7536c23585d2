"""Settings: layers, origins, errors, and what a repository cannot do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pointcode_local.config import (
    ConfigError,
    Places,
    Settings,
    find_places,
    is_trusted,
    load_settings,
    shown_values,
    trust,
)
from pointcode_local.config_write import remove_value, write_value
from pointcode_local.policy import AlwaysRules, RulePolicy, rule_problem
from pointcode_local.tools.mcp_server import McpServer


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return find_places({"POINTCODE_HOME": str(tmp_path / "home")})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".pointcode").mkdir(parents=True)
    return folder


def user_file(places: Places, text: str) -> None:
    places.config.mkdir(parents=True, exist_ok=True)
    places.user_file.write_text(text)


def project_file(project: Path, text: str) -> Path:
    path = project / ".pointcode/config.toml"
    path.write_text(text)
    return path


def test_defaults_hold_without_any_file(places: Places, project: Path):
    settings = load_settings(places, project, {}, {})
    assert (settings.permission_mode, settings.max_turns, settings.endpoint, settings.origins) == ("ask", 200, "", {})


def test_later_layers_win_and_origins_are_kept(places: Places, project: Path):
    user_file(places, '# mine\nmodel = "user"\nendpoint = "http://user"\nmax_turns = 5\ntheme = "dark"\n')
    project_file(project, "max_turns = 6\n")
    environment = {"POINTCODE_ENDPOINT": "http://env", "POINTCODE_API_KEY": "k", "POINTCODE_MODEL": ""}
    settings = load_settings(places, project, environment, {"endpoint": None, "model": "flag"})
    assert (settings.model, settings.endpoint, settings.max_turns) == ("flag", "http://env", 6)
    origins = settings.origins
    assert origins["model"] == "flag" and origins["endpoint"] == "POINTCODE_ENDPOINT"
    assert origins["max_turns"].endswith("config.toml:1") and origins["max_turns"].startswith("project file")
    assert origins["theme"].endswith("config.toml:5")


def test_a_repository_cannot_widen_its_own_rights(places: Places, project: Path):
    text = (
        'endpoint = "http://evil"\nmodel = "x"\npermission_mode = "auto"\n[permissions]\nallow = ["shell(*)"]\n'
        'deny = ["read(secret)"]\nask = ["shell(git push*)"]\n[mcp_servers.evil]\ncommand = "sh"\n'
    )
    path = project_file(project, text)
    settings = load_settings(places, project, {}, {})
    assert (settings.endpoint, settings.model, settings.permission_mode, settings.allow) == ("", "", "ask", ())
    assert settings.mcp_servers == ()
    assert settings.deny == ("read(secret)",) and settings.ask == ("shell(git push*)",)
    assert any("permissions.allow" in note and "config trust" in note for note in settings.ignored)
    trust(path, places)
    trusted = load_settings(places, project, {}, {})
    assert trusted.allow == ("shell(*)",) and trusted.permission_mode == "auto" and trusted.ignored == ()


def test_trust_holds_for_exactly_these_bytes(places: Places, project: Path):
    path = project_file(project, "max_turns = 3\n")
    assert not is_trusted(path, places)
    trust(path, places)
    assert is_trusted(path, places)
    path.write_text("max_turns = 3 \n")
    assert not is_trusted(path, places)
    places.trust_file.write_text("[" * 200_000)
    assert not is_trusted(path, places)
    trust(path, places)
    assert is_trusted(path, places)


def test_rules_of_both_files_count(places: Places, project: Path):
    user_file(places, '[permissions]\nallow = ["shell(ls)"]\ndeny = ["shell(rm*)"]\n')
    project_file(project, '[permissions]\ndeny = ["read(x)"]\n')
    settings = load_settings(places, project, {}, {})
    assert settings.allow == ("shell(ls)",) and settings.deny == ("shell(rm*)", "read(x)")


def test_the_project_file_is_found_from_below_up_to_the_repository(places: Places, project: Path):
    project_file(project, "max_turns = 7\n")
    (project / ".git").mkdir()
    (project / "a/b").mkdir(parents=True)
    assert load_settings(places, project / "a/b", {}, {}).max_turns == 7
    (project / "a/.git").mkdir()
    assert load_settings(places, project / "a/b", {}, {}).max_turns == 200


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("model = \n", 1, "Invalid value"),
        ('\nmodle = "x"\n', 2, "did you mean 'model'"),
        ('[permissions]\nalow = ["x"]\n', 2, "did you mean 'permissions.allow'"),
        ('\n\nmax_turns = "x"\n', 3, "whole number"),
        ("max_turns = 0\n", 1, "at least 1"),
        ("max_turns = true\n", 1, "whole number"),
        ('permission_mode = "yolo"\n', 1, "one of ask, accept-edits, plan, auto"),
        ('[permissions]\ndeny = "x"\n', 2, "list of rules"),
        ('[permissions]\ndeny = ["shell("]\n', 2, "malformed rule"),
        ("zzz = 1\n", 1, "known keys"),
    ],
)
def test_errors_name_file_line_and_cure(places: Places, project: Path, text: str, line: int, words: str):
    path = project_file(project, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(places, project, {}, {}, rule_problem)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)


def test_bytes_that_are_no_text_are_an_error(places: Places, project: Path):
    (project / ".pointcode/config.toml").write_bytes(b"a = 1\n\xff")
    with pytest.raises(ConfigError, match=":2: not UTF-8"):
        load_settings(places, project, {}, {})


def test_the_api_key_is_never_shown(places: Places, project: Path):
    settings = load_settings(places, project, {"POINTCODE_API_KEY": "sk-1"}, {})
    rows = {key: (value, origin) for key, value, origin in shown_values(settings)}
    assert rows["api_key"] == ('"***"', "POINTCODE_API_KEY")


def test_setting_a_value_keeps_the_rest_of_the_file(places: Places, project: Path):
    user_file(places, "# keep me\nmax_turns = 3  # and me\n")
    write_value(places, "max_turns", "9")
    write_value(places, "model", "qwen")
    write_value(places, "permissions.allow", '["shell(ls)"]', rule_problem)
    text = places.user_file.read_text()
    assert "# keep me" in text and "# and me" in text
    settings = load_settings(places, project, {}, {})
    assert (settings.max_turns, settings.model, settings.allow) == (9, "qwen", ("shell(ls)",))


def test_a_value_that_is_unset_is_the_default_again_and_the_rest_stays(places: Places, project: Path):
    user_file(places, '# keep me\nmax_turns = 3\n\n[permissions]\nallow = ["shell(ls)"]\n')
    assert remove_value(places, "max_turns") and remove_value(places, "permissions.allow")
    assert not remove_value(places, "theme") and not remove_value(places, "permissions.deny")
    assert "# keep me" in places.user_file.read_text()
    settings = load_settings(places, project, {}, {})
    assert (settings.max_turns, settings.allow) == (200, ())
    with pytest.raises(ConfigError, match="max_turns"):
        remove_value(places, "max_turn")


def test_a_file_with_a_key_is_for_its_owner_alone(places: Places):
    write_value(places, "max_turns", "9")
    assert places.user_file.stat().st_mode & 0o777 == 0o600
    places.user_file.chmod(0o644)
    write_value(places, "max_turns", "8")
    assert places.user_file.stat().st_mode & 0o777 == 0o644
    write_value(places, "api_key", "sk-1")
    assert places.user_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("key", "value"), [("max_turns", "x"), ("modle", "x"), ("permissions.deny", '["shell("]')])
def test_a_wrong_value_is_not_written(places: Places, key: str, value: str):
    with pytest.raises(ConfigError):
        write_value(places, key, value, rule_problem)
    assert not places.user_file.exists()


def test_always_answers_are_kept_by_folder_as_they_were_shown(tmp_path: Path):
    rules = AlwaysRules(tmp_path / "always.toml")
    rules.add(tmp_path / "a", 'shell(echo "x" \\*)')
    rules.add(tmp_path / "a", "edit(src/*)")
    rules.add(tmp_path / "a", "edit(src/*)")
    assert AlwaysRules(tmp_path / "always.toml").of(tmp_path / "a") == ('shell(echo "x" \\*)', "edit(src/*)")
    assert rules.of(tmp_path / "b") == ()
    (tmp_path / "always.toml").write_text("damaged [")
    assert rules.of(tmp_path / "a") == ()


def test_what_was_allowed_for_a_session_is_forgotten_with_it_and_never_written(tmp_path: Path):
    policy = RulePolicy(Settings(), tmp_path, AlwaysRules(tmp_path / "always.toml"))
    policy.allow_for_session("shell(make)")
    assert policy.session_rules == ("shell(make)",) and not (tmp_path / "always.toml").exists()
    policy.remember("edit(src/*)")
    policy.leave_session()
    assert policy.session_rules == () and [rule.text for rule in policy.rules.of("allow")] == ["edit(src/*)"]
    policy.allow_for_session("shell(make)")
    policy.remember("shell(make)")
    assert policy.session_rules == ()


def test_an_always_answer_is_revoked_by_deleting_its_line(tmp_path: Path):
    file = tmp_path / "always.toml"
    rules = AlwaysRules(file)
    for rule in ("shell(make test)", 'shell(echo "x" \\*)', "edit(src/*)"):
        rules.add(tmp_path, rule)
    file.write_text("".join(line for line in file.read_text().splitlines(True) if "make test" not in line))
    assert rules.of(tmp_path) == ('shell(echo "x" \\*)', "edit(src/*)")
    rules.add(tmp_path, "edit(b/*)")
    assert rules.of(tmp_path) == ('shell(echo "x" \\*)', "edit(src/*)", "edit(b/*)")


def test_mcp_servers_are_read_with_everything_that_may_be_set(places: Places, project: Path):
    user_file(
        places,
        '[mcp_servers.docs]\ncommand = "docs"\nargs = ["-x"]\nenv = { A = "1" }\nnetwork = true\nwritable = ["~/.c"]\n'
        'timeout_s = 5\n[mcp_servers.web]\nurl = "https://x/mcp"\nheaders = { H = "v" }\n',
    )
    assert load_settings(places, project, {}, {}).mcp_servers == (
        McpServer("docs", "docs", ("-x",), (("A", "1"),), True, ("~/.c",), timeout_s=5.0),
        McpServer("web", url="https://x/mcp", headers=(("H", "v"),)),
    )
    for wrong in ('[mcp_servers."a b"]\ncommand = "x"\n', "[mcp_servers.a]\n", '[mcp_servers.a]\nurl = "ftp://x"\n'):
        user_file(places, wrong)
        with pytest.raises(ConfigError, match="mcp_servers"):
            load_settings(places, project, {}, {})


def test_a_damaged_file_of_always_answers_is_put_aside_and_not_overwritten(tmp_path: Path):
    file = tmp_path / "state/always.toml"
    file.parent.mkdir()
    file.write_text('["/a"]\n"/b" = ["edit(x)"\n')
    AlwaysRules(file).add(tmp_path, "edit(src/*)")
    assert AlwaysRules(file).of(tmp_path) == ("edit(src/*)",)
    aside = next(path for path in file.parent.iterdir() if ".damaged-" in path.name)
    assert aside.read_text() == '["/a"]\n"/b" = ["edit(x)"\n'


def test_always_answers_of_several_processes_are_all_kept(tmp_path: Path):
    file = tmp_path / "always.toml"

    def answer(number: int) -> None:
        for each in range(5):
            AlwaysRules(file).add(tmp_path, f"edit({number}/{each})")

    with ThreadPoolExecutor(4) as pool:  # each opens the file anew, as a process does
        list(pool.map(answer, range(4)))
    assert len(AlwaysRules(file).of(tmp_path)) == 20


def test_a_settings_file_that_is_a_link_stays_one(places: Places, tmp_path: Path):
    dotfiles = tmp_path / "dotfiles.toml"
    dotfiles.write_text("# mine\n")
    dotfiles.chmod(0o640)
    places.config.mkdir(parents=True)
    places.user_file.symlink_to(dotfiles)
    write_value(places, "theme", "dark")
    assert places.user_file.is_symlink() and dotfiles.read_text() == '# mine\ntheme = "dark"\n'
    assert dotfiles.stat().st_mode & 0o777 == 0o640
    write_value(places, "api_key", "k")
    assert dotfiles.stat().st_mode & 0o777 == 0o600


def test_a_section_that_is_no_table_is_told_when_a_key_of_it_is_set(places: Places):
    user_file(places, "permissions = 3\n")
    with pytest.raises(ConfigError, match="permissions must be a table"):
        write_value(places, "permissions.deny", '["shell(rm *)"]')
    assert places.user_file.read_text() == "permissions = 3\n"


def test_a_mark_of_the_byte_order_is_no_error_and_a_menu_that_is_no_word_is_one(places: Places, project: Path):
    user_file(places, '\ufefftheme = "dark"\n')
    assert load_settings(places, project, {}, {}).theme == "dark"
    write_value(places, "keys", "vi")
    assert load_settings(places, project, {}, {}).keys == "vi"
    user_file(places, "[edit_menus]\nx = ['tools']\n")
    with pytest.raises(ConfigError, match="edit_menus maps"):
        load_settings(places, project, {}, {})

"""The command line: what is a prompt, what is a command, what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pointcode_local import __version__
from pointcode_local.cli import main_parser, run, take_prompt
from pointcode_local.commands import BENCHES
from pointcode_local.exits import UsageError
from pointcode_local.policy import AlwaysRules
from tests.app.openai_server import ScriptedServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder and a working folder of the test's own."""
    (tmp_path / "ws").mkdir()
    monkeypatch.chdir(tmp_path / "ws")
    monkeypatch.setenv("POINTCODE_HOME", str(tmp_path / "home"))
    for name in ("POINTCODE_MODEL", "POINTCODE_ENDPOINT", "POINTCODE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("argv", "prompt", "rest"),
    [
        (["-p", "x"], "x", []),
        (["-p", "-p"], "-p", []),
        (["-p", "--model"], "--model", []),
        (["--model", "-p", "-p", "x"], "x", ["--model", "-p"]),
        (["--prompt=--x", "--plain"], "--x", ["--plain"]),
        (["-p"], "-", []),
        (["-p", ""], "", []),
        (["--", "-p", "x"], None, ["--", "-p", "x"]),
        (["hello"], None, ["hello"]),
    ],
)
def test_the_prompt_is_taken_whatever_it_looks_like(argv: list[str], prompt: str | None, rest: list[str]):
    assert take_prompt(argv) == (prompt, rest)


def test_two_prompts_are_wrong():
    with pytest.raises(UsageError):
        take_prompt(["-p", "x", "-p", "y"])


@pytest.mark.parametrize(
    "argv",
    [
        ["--no-such-flag"],
        ["-p", "x", "--no-such-flag"],
        ["-p", "x", "extra"],
        ["-p", "x", "-p", "y"],
        ["-p", ""],
        ["-p", " \n"],
        ["-p", "x", "--max-turns", "0"],
        ["-p", "x", "--max-turns", "many"],
        ["-p", "x", "--permission-mode", "yolo"],
        ["-p", "x", "--output-format", "yaml"],
        ["-p", "x", "--backend", "gpu"],
        ["-p", "x", "--contin"],
        ["-p", "x", "--continue", "--resume", "y"],
        ["-p", "x", "--cwd", "no/such/folder"],
        ["hello"],
        ["hello", "there"],
        ["sesions"],
        ["models"],
        ["-p", "x", "--jsonn"],
        ["sessions", "show"],
        ["sessions", "show", "nothing"],
        ["sessions", "rm", "../x"],
        ["sessions", "fly"],
        ["config", "get", "modle"],
        ["config", "set", "max_turns", "many"],
        ["config", "set", "max_turns"],
        ["config", "trust"],
        ["model", "fly"],
        ["bench"],
        ["bench", "fly"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_with_a_message(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(argv) == 2
    seen = capsys.readouterr()
    assert len(seen.err) > 10 and seen.out == ""


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["fix", "the", "tests"], 'put the prompt in quotes, "fix the tests"'),
        (["sesions"], "did you mean sessions?"),
        (["models", "--cwd", "."], "did you mean model?"),
        (["--", "models"], "no terminal"),  # a prompt, for which a terminal is needed
        (["explain"], "no terminal"),
    ],
)
def test_a_slip_of_the_command_line_is_told_before_anything_starts(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    assert run(argv) == 2
    assert told in capsys.readouterr().err


def test_json_is_short_for_the_output_format():
    assert main_parser().parse_args(["--json"]).output_format == "json"
    assert main_parser().parse_args([]).output_format == "text"


def test_a_damaged_configuration_exits_2(home: Path, capsys: pytest.CaptureFixture[str]):
    home.mkdir()
    (home / "config.toml").write_text("model = \n")
    assert run(["-p", "x"]) == 2
    assert "config.toml:1:" in capsys.readouterr().err


def test_config_shows_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: Path
):
    assert run(["config", "set", "max_turns", "7"]) == 0
    monkeypatch.setenv("POINTCODE_MODEL", "m")
    assert run(["config", "--endpoint", "http://x"]) == 0
    shown = capsys.readouterr().out
    assert f"max_turns = 7  # user file {home}/config.toml:1" in shown
    assert 'model = "m"  # POINTCODE_MODEL' in shown and 'endpoint = "http://x"  # flag' in shown
    assert run(["config", "get", "max_turns"]) == 0
    assert capsys.readouterr().out.startswith("max_turns = 7")
    assert run(["config", "unset", "max_turns"]) == 0 and run(["config", "get", "max_turns"]) == 0
    assert "max_turns = 200  # default\n# model calls after which a prompt ends" in capsys.readouterr().out
    assert run(["help", "config"]) == 0
    assert "permissions.deny\n        rules for what never runs" in capsys.readouterr().out


def test_config_shows_what_was_answered_with_always_and_where_to_take_it_back(
    capsys: pytest.CaptureFixture[str], home: Path
):
    home.mkdir()
    AlwaysRules(home / "always.toml").add(Path.cwd(), "shell(pytest*)")
    assert run(["config"]) == 0
    shown = capsys.readouterr().out
    assert f"delete its line in {home}/always.toml\n#   shell(pytest*)\n" in shown
    assert run(["config", "--cwd", str(home)]) == 0
    assert "always" not in capsys.readouterr().out.replace('"auto"', "")


def test_a_folder_without_sessions_is_said_to_have_none(capsys: pytest.CaptureFixture[str], home: Path):
    assert run(["sessions"]) == 0
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith("There are no sessions of /")


def test_config_path_names_both_files_and_whether_the_project_is_trusted(
    capsys: pytest.CaptureFixture[str], home: Path
):
    Path(".pointcode").mkdir()
    Path(".pointcode/config.toml").write_text("")
    assert run(["config", "path"]) == 0
    assert "not trusted" in capsys.readouterr().out
    assert run(["config", "trust"]) == 0
    assert run(["config", "path"]) == 0
    shown = capsys.readouterr().out
    assert str(home / "config.toml") in shown and "(trusted)" in shown


def test_settings_that_cannot_be_written_are_an_error_in_a_line(capsys: pytest.CaptureFixture[str], home: Path):
    (home / "config.toml.lock").mkdir(parents=True)
    assert run(["config", "set", "theme", "light"]) == 2
    assert capsys.readouterr().err == f"pointcode: {home / 'config.toml.lock'}: Is a directory\n"


def test_the_help_of_bench_names_every_bench(capsys: pytest.CaptureFixture[str]):
    assert run(["bench", "--help"]) == 0
    seen = capsys.readouterr()
    assert all(f"\n  {name} " in seen.out for name in BENCHES) and not seen.err


def test_the_doctor_looks_at_what_the_settings_name(capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path):
    def examined(*arguments: str) -> str:
        assert run(["doctor", "--cwd", str(tmp_path), *arguments]) == 0
        return capsys.readouterr().out

    assert run(["config", "set", "model", "no-such-model"]) == 0
    assert "no model is called 'no-such-model'" in examined()
    with ScriptedServer([]) as server:
        assert f"ok    endpoint   {server.url}: scripted, " in examined("--endpoint", server.url, "--model", "scripted")
    assert f"none  endpoint   {server.url} does not answer" in examined("--endpoint", server.url)
    (home / "config.toml").write_text("theme = [")
    assert "none  settings " in examined()


def test_models_are_listed(capsys: pytest.CaptureFixture[str]):
    assert run(["model", "list"]) == 0
    assert "qwen2.5-coder-0.5b" in capsys.readouterr().out
    assert run(["model", "info", "qwen2.5-coder-0.5b", "--json"]) == 0
    assert run(["model", "verify", "qwen2.5-coder-0.5b"]) == 1
    assert "pointcode model pull" in capsys.readouterr().err


def test_a_damaged_model_is_said_to_be_so_with_a_cure(capsys: pytest.CaptureFixture[str], home: Path):
    (home / "models").mkdir(parents=True)
    (home / "models" / "smollm2-135m.gguf").write_bytes(b"GGUF")
    assert run(["model", "verify", "--model", "smollm2-135m"]) == 1
    shown = capsys.readouterr().out
    assert "DAMAGED" in shown and "delete the file and run: pointcode model pull smollm2-135m" in shown


def test_a_model_that_nobody_knows_is_a_usage_error_that_names_the_known_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    for line in (["model", "info", "no-such"], ["-p", "hi", "--model", "no-such", "--cwd", str(tmp_path)]):
        assert run(line) == 2
        assert "no model is called 'no-such', nor is it a path; known: qwen2.5-coder-0.5b" in capsys.readouterr().err


def test_options_may_stand_before_a_command(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert run(["--cwd", str(tmp_path), "sessions", "list"]) == 0
    assert run(["sessions", "list", "--all", "--json"]) == 0


def test_every_flag_of_the_design_is_known():
    text = main_parser().format_help()
    flags = "-p --output-format --max-turns --allowed-tools --permission-mode --continue --resume --fork --plain"
    for flag in (flags + " --model --backend --endpoint --cwd --version").split():
        assert flag in text


def run_alone(code: str) -> subprocess.CompletedProcess[bytes]:
    """The code in a process that has imported nothing yet."""
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, timeout=30, check=False)


def test_an_endpoint_brings_no_command_line_program_along():
    done = run_alone(
        "import sys\nfrom pointcode_local.endpoint import EndpointModel\nEndpointModel('http://127.0.0.1:9/v1')\n"
        "heavy = {'click', 'rich.progress', 'pygments'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    assert done.returncode == 0, done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom pointcode_local.cli import run\nassert run(['--help']) == 0\n"
        "heavy = {'torch', 'textual', 'numpy', 'httpx', 'tree_sitter', 'prompt_toolkit', 'asyncio'}\n"
        "heavy |= {'starlette', 'uvicorn'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = run_alone(code)
    assert done.returncode == 0, done.stderr
    assert b"exit codes" in done.stdout


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"pointcode {__version__}\n"

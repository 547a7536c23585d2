"""Completions and the manual: made from the parsers, and what the shells make of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pointcode_local.cli import COMMANDS, forms, run
from pointcode_local.completion import SHELLS, script


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTCODE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def folder_with_stub(tmp_path: Path) -> Path:
    """A folder for PATH with a `pointcode` that knows two sessions and a model."""
    stub = tmp_path / "bin/pointcode"
    stub.parent.mkdir()
    stub.write_text(
        '#!/bin/sh\ncase "$1" in\nsessions) echo "one  2026 title"; echo "two  2026 title" ;;\n'
        'model) echo "* tiny   1 MB" ;;\nesac\n'
    )
    stub.chmod(0o755)
    return stub.parent


BASH = "source {file}; COMP_WORDS=({words}); COMP_CWORD={at}; _pointcode; printf '%s\\n' \"${{COMPREPLY[@]}}\""


def complete(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    file = tmp_path / "pointcode.bash"
    file.write_text(script("bash", forms()))
    quoted = " ".join(f"'{word}'" for word in words)
    code = BASH.format(file=file, words=quoted, at=len(words) - 1)
    environment = {**os.environ, "PATH": f"{folder_with_stub(tmp_path)}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, env=environment, timeout=30, check=True)
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["pointcode", ""], list(COMMANDS)),
        (["pointcode", "se"], ["serve", "sessions"]),
        (["pointcode", "--backend", ""], ["auto", "megakernel", "cpu", "torch"]),
        (["pointcode", "--backend", "=", "c"], ["cpu"]),
        (["pointcode", "--output", ], ["--output-format"]),
        (["pointcode", "--model", "serve", "sess"], ["sessions"]),
        (["pointcode", "acp", "--permission-mode", "a"], ["ask", "accept-edits", "auto"]),
        (["pointcode", "acp", "--output"], []),
        (["pointcode", "sessions", ""], ["list", "show", "rm"]),
        (["pointcode", "sessions", "rm", "one", "t"], ["two"]),
        (["pointcode", "--resume", "o"], ["one"]),
        (["pointcode", "config", "get", "perm"], ["permission_mode", "permissions.allow", "permissions.ask",
                                                 "permissions.deny"]),
        (["pointcode", "--model", "ti"], ["tiny"]),
        (["pointcode", "completion", ""], ["bash", "zsh", "fish"]),
    ],
)  # fmt: skip
def test_bash_offers_what_fits(tmp_path: Path, line: list[str], offered: list[str]):
    assert complete(tmp_path, *line) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_and_command_of_the_parsers_is_in_the_script(shell: str):
    text = script(shell, forms())
    for form in forms():
        assert form.name in text
        for option in form.options:
            for name in option.names:
                is_long = name.startswith("--")
                shown = {"fish": f"-l {name[2:]}" if is_long else f"-s {name[1:]}"}.get(shell, name)
                assert shown in text, (form.name, name)
            assert all(choice in text for choice in option.choices)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_valid(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert run(["completion", shell]) == 0
    file = tmp_path / "script"
    file.write_text(capsys.readouterr().out)
    done = subprocess.run([shell, "-n", str(file)], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pointcode comp", ["completion"]),
        ("pointcode --backend m", ["megakernel"]),
        ("pointcode sessions rm t", ["two"]),
        ("pointcode help a", ["acp"]),
    ],
)
def test_fish_offers_what_fits(tmp_path: Path, line: str, offered: list[str]):
    file = tmp_path / "pointcode.fish"
    file.write_text(script("fish", forms()))
    environment = {**os.environ, "PATH": f"{folder_with_stub(tmp_path)}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    code = f"source {file}; complete -C '{line}'"
    done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, env=environment, timeout=30, check=True)
    assert [found.split("\t")[0] for found in done.stdout.splitlines()] == offered


def test_the_manual_has_every_command_and_option(capsys: pytest.CaptureFixture[str]):
    assert run(["help"]) == 0
    text = capsys.readouterr().out
    for title in ("NAME", "SYNOPSIS", "COMMANDS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES"):
        assert f"\n{title}\n" in f"\n{text}"
    assert all(f"pointcode {name}" in text for name in COMMANDS)
    for form in forms():
        if form.name:
            assert run(["help", form.name]) == 0
            text = capsys.readouterr().out
        assert all(name in text for option in form.options for name in option.names)
        assert max(map(len, text.splitlines())) <= 100
        synopsis = text.partition("\nSYNOPSIS\n")[2].partition("\n\n")[0]
        assert len(synopsis.splitlines()) == 1, synopsis


def test_the_manual_of_config_names_the_setting_and_lists_each_one_below(capsys: pytest.CaptureFixture[str]):
    assert run(["help", "config"]) == 0
    text = capsys.readouterr().out
    assert "\n    pointcode config [get|set|unset|path|trust] [SETTING] [VALUE] [OPTIONS]\n" in text
    assert text.count("permission_mode") == 1 and "\n    permission_mode\n" in text


def test_the_manual_is_also_roff(capsys: pytest.CaptureFixture[str]):
    assert run(["help", "--roff"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('.TH "POINTCODE" 1') and '.SH "EXIT STATUS"' in lines
    assert "\\fB\\-p PROMPT\\fR" in lines


def test_a_command_nobody_knows_has_no_manual(capsys: pytest.CaptureFixture[str]):
    assert run(["help", "nothing"]) == 2
    assert run(["completion"]) == 2

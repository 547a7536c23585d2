"""What README and docs name exists: files, commands with their options, modules to run, environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pointcode_local.cli import forms
from pointcode_local.config import Settings, shown_values
from pointcode_local.exits import EXIT_MEANINGS
from pointcode_local.settings_help import MEANINGS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"(?<![\w/.-])((?:csrc|engine|tools|tests|docs|pointcode_local|\.ci)/[\w./*-]*\w)")
COMMAND = re.compile(r"`pointcode ([^`]+)`|^pointcode ([^\n]+)", re.MULTILINE)
MODULE = re.compile(r"-m (tests[\w.]+)")
VARIABLE = re.compile(r"\bPOINTCODE_[A-Z][A-Z_]*\b")

pages = pytest.mark.parametrize("page", PAGES, ids=NAMES)


@cache
def sources() -> str:
    """All code of ours, and what builds and tests it."""
    folders = ("engine", "tools", "pointcode_local", "tests", "csrc", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    kinds = {".py", ".cc", ".h", ".cu", ".cuh", ""}
    texts = [path.read_text(errors="replace") for path in files if path.suffix in kinds and path != Path(__file__)]
    return "\n".join([*texts, (ROOT / "CMakeLists.txt").read_text()])


def test_every_setting_is_explained_with_its_default() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = [f"| `{key}` | `{value}` | {MEANINGS[key]} |" for key, value, _ in shown_values(Settings())]
    assert [row for row in rows if row not in page] == []
    assert page.count("\n| `") == len(rows) == len(MEANINGS)


def test_every_exit_code_is_explained() -> None:
    page = (ROOT / "docs/scripted.md").read_text()
    assert [line for line in page.splitlines() if re.match(r"\| \d", line)] == [
        f"| {code} | {meaning} |" for code, meaning in EXIT_MEANINGS.items()
    ]


@pages
def test_every_link_and_path_leads_to_a_file(page: Path) -> None:
    text = page.read_text()
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [path for path in PATH.findall(text) if not any(ROOT.glob(path)) and not any(ROOT.glob(path + ".*"))] == []


def commands_of(text: str) -> Iterator[list[str]]:
    """The words behind `pointcode` wherever a command stands, without the explanation in a table of commands."""
    for quoted, line in COMMAND.findall(text):
        yield (quoted or line.split("  ")[0]).split()


@pages
def test_every_command_and_option_exists(page: Path) -> None:
    known = {form.name: form for form in forms()}
    for words in commands_of(page.read_text()):
        name = words[0] if words[0] in known else ""
        assert name or words[0].startswith(("-", "[", '"')), f"no command: pointcode {' '.join(words)}"
        choices = [choice for argument in known[name].positionals for choice in argument.choices]
        actions = set("|".join(words[1:2]).strip("[]").split("|")) if choices else set[str]()
        assert actions <= {*choices, ""}, f"{name}: {actions}"
        ours = {option for form in (known[name], known[""]) for one in form.options for option in one.names}
        for option in re.findall(r"(?<!\w)--[a-z][a-z-]+", " ".join(words)):
            assert option in ours or (name == "bench" and f'"{option}"' in sources()), f"pointcode {name}: {option}"


@pages
def test_every_module_to_run_and_every_variable_exists(page: Path) -> None:
    text = page.read_text()
    for module in MODULE.findall(text):
        assert (ROOT / module.rstrip(".").replace(".", "/")).with_suffix(".py").exists(), module
    assert [name for name in VARIABLE.findall(text) if name not in sources()] == []

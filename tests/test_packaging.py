"""What a wheel promises: declared dependencies, links that are links, documented commands that are the tested ones."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SHIPPED = [path for folder in ("pointcode_local", "engine", "tools") for path in (ROOT / folder).glob("**/*.py")]
OWN = {"pointcode_local"}
# where the import name differs from the distribution's
MODULE_OF = {"agent_client_protocol": "acp", "markdown_it_py": "markdown_it"}
# Imported only where they happen to be installed; each import says what to do when they are not.
OPTIONAL = {"xllamacpp", "triton", "transformers"}


def declared_modules() -> set[str]:
    requirements = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["mcp"]
    names = {re.split(r"[<>=!~\[; ]", line)[0].replace("-", "_").lower() for line in requirements}
    return {MODULE_OF.get(name, name) for name in names}


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        nodes += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]  # an expression imports nothing
    return found


def test_every_import_of_a_shipped_file_is_a_declared_dependency():
    known = set(sys.stdlib_module_names) | OWN | OPTIONAL | declared_modules()
    unknown = {str(path.relative_to(ROOT)): imported_modules(path) - known for path in SHIPPED}
    assert {path: names for path, names in unknown.items() if names} == {}


@pytest.mark.parametrize("name", ["engine", "tools"])
def test_the_packages_of_the_import_names_are_relative_links(name: str):
    link = ROOT / "pointcode_local" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name


def test_the_readme_begins_with_exactly_two_commands():
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    run, tests = (block.strip() for block in blocks[:2])
    assert [len(command.splitlines()) for command in (run, tests)] == [1, 1]
    assert ".venv/bin/pointcode -p" in run
    assert "pytest" in tests

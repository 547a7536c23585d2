"""What the tests of the application share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import textual._wait
from textual.css.stylesheet import Stylesheet

from pointcode_local.tools.workspace import Workspace

from .forked import ForkedProgram, ForkingProcess
from .permission_kit import made
from .program import Program

# How often Textual's pilot looks whether the process has become idle, after every key and in every pause: at its own 20
# ms a third of the tests' time is spent asleep. Tests wait for what they mean (tui_kit), not for this.
textual._wait.SLEEP_GRANULARITY = 0.004

# Every app would parse the same style sheets with the same colours, twice: a tenth of the tests' time.
_parse_rules, _parsed = Stylesheet._parse_rules, {}


def _parse_once(sheet: Stylesheet, *css: Any, **more: Any) -> Any:
    key = (css, *more.items(), *sheet._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, *css, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program, started anew for each command."""
    return Program(tmp_path)


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkingProcess]:
    made = ForkingProcess(Program(tmp_path_factory.mktemp("forking")).env)
    yield made
    made.close()


@pytest.fixture
def forked(tmp_path: Path, forking: ForkingProcess) -> ForkedProgram:
    """The program for tests in which its start is of no interest."""
    return ForkedProgram(tmp_path, forking)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The workspace of the permission tests, with everything in it that rules may be about."""
    return made(tmp_path_factory.mktemp("top"))

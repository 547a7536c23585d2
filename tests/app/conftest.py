"""What the tests of the application share."""

from __future__ import annotations

import pytest
import textual._wait

from pointcode_local.tools.workspace import Workspace

from .permission_kit import made

# How often Textual's pilot looks whether the process has become idle, after every key and in every pause: at its own 20
# ms a third of the tests' time is spent asleep. Tests wait for what they mean (tui_kit), not for this.
textual._wait.SLEEP_GRANULARITY = 0.004


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The workspace of the permission tests, with everything in it that rules may be about."""
    return made(tmp_path_factory.mktemp("top"))

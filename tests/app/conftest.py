"""What the tests of the application share."""

from __future__ import annotations

import pytest

from pointcode_local.tools.workspace import Workspace

from .permission_kit import made


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The workspace of the permission tests, with everything in it that rules may be about."""
    return made(tmp_path_factory.mktemp("top"))

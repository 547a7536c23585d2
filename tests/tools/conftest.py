from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .tool_kit import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    root = tmp_path / "project"
    root.mkdir()
    made = Bench(root)
    yield made
    made.box.close()
    made.workspace.close()

"""How torch's threads are told to wait, and that nobody else sees it."""

from __future__ import annotations

import os

import pytest

from pointcode_local.engine.openmp import patient_threads


def test_threads_that_start_inside_sleep_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with pytest.raises(RuntimeError), patient_threads():
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
        raise RuntimeError
    assert "OMP_WAIT_POLICY" not in os.environ


def test_what_the_person_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with patient_threads():
        assert os.environ["OMP_WAIT_POLICY"] == "active"
    assert os.environ["OMP_WAIT_POLICY"] == "active"

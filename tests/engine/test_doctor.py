"""The doctor reports what it finds and never fails on what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointcode_local.engine import doctor
from pointcode_local.engine.errors import DownloadError


def test_every_topic_is_reported_once_in_order() -> None:
    facts = doctor.examine(lambda: "a model", lambda: "landlock", {"TERM": "xterm-256color"})
    topics = [fact.topic for fact in facts]
    assert topics[-3:] == ["model", "sandbox", "terminal"]
    assert set(topics) == {"gpu", "nvcc", "cpu", "memory", "native", "model", "sandbox", "terminal"}
    assert facts[-3].text == "a model"
    assert facts[-2].verdict == "good"


def test_what_is_missing_comes_with_its_reason_and_advice() -> None:
    def no_model() -> str:
        raise DownloadError("qwen is not on disk")

    def no_sandbox() -> str:
        raise OSError("the kernel has no Landlock")

    facts = {fact.topic: fact for fact in doctor.examine(no_model, no_sandbox, {})}
    assert (facts["model"].verdict, facts["model"].text) == ("missing", "qwen is not on disk")
    assert "pointcode model pull" in facts["model"].advice
    assert facts["sandbox"].text == "the kernel has no Landlock"
    assert facts["terminal"].verdict == "poor"


def test_a_gpu_is_judged_by_its_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771 MiB, 580.82'\necho 'NVIDIA L4, 8.9, 23034 MiB, 580.82'\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    first, second = doctor.gpu_facts()
    assert (first.verdict, second.verdict) == ("good", "poor")
    assert "megakernel" in second.advice

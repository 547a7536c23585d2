"""What a start keeps for the next one: used when it is whole and of this very file and program, else made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pointcode_local.engine import schedule_proofs
from pointcode_local.engine.assembly import cpu_schedules
from pointcode_local.engine.bpe import token_to_bytes, tokens_to_bytes
from pointcode_local.engine.gguf import read_gguf
from pointcode_local.engine.memo import Proofs, digest, file_key, forget_old, keep, recall
from pointcode_local.engine.model_files import open_model
from pointcode_local.engine.scheduler import Schedule
from pointcode_local.engine.tasks import ModelPlan

from .tiny_gguf import make_tiny_gguf
from .tiny_models import make_tiny


def test_what_was_kept_comes_back_and_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    path, value = tmp_path / "a" / "kept", {"words": ["ä", "b"], "n": 3, "pairs": [("x", 1.5)]}
    assert recall(path) is None
    keep(path, value)
    assert recall(path) == value
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert recall(path) is None
        path.write_bytes(good[:at])
        assert recall(path) is None


def test_a_folder_that_cannot_be_written_only_loses_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    keep(tmp_path / "file" / "kept", 1)
    assert recall(tmp_path / "file" / "kept") is None


def test_only_the_newest_of_a_kind_are_kept(tmp_path: Path) -> None:
    for n in range(6):
        (tmp_path / f"gguf-{n}").write_bytes(b"")
        os.utime(tmp_path / f"gguf-{n}", ns=(n, n))
    (tmp_path / "other").write_bytes(b"")
    forget_old(tmp_path, "gguf-", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gguf-4", "gguf-5", "other"]


def test_a_files_key_changes_with_the_file_and_with_the_program(tmp_path: Path) -> None:
    path, source, other = tmp_path / "model", tmp_path / "a.py", tmp_path / "b.py"
    path.write_bytes(b"one")
    source.write_text("a")
    other.write_text("b")
    key = file_key(path, str(source))
    assert key == file_key(path, str(source)) != file_key(path, str(other))
    os.utime(path, ns=(1, 1))
    assert file_key(path, str(source)) != key
    assert file_key(path, str(tmp_path / "no source")) != file_key(path, str(tmp_path / "no source"))


def test_a_gguf_header_is_the_same_from_the_file_from_the_cache_and_from_a_damaged_cache(tmp_path: Path) -> None:
    path, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    make_tiny_gguf("qwen2", path)
    plain = read_gguf(path)
    for _ in range(3):
        found = read_gguf(path, cache)
        assert found.metadata == plain.metadata
        assert {n: (t.format, t.shape, t.data.tobytes()) for n, t in found.tensors.items()} == {
            n: (t.format, t.shape, t.data.tobytes()) for n, t in plain.tensors.items()
        }
        [kept] = cache.iterdir()
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")


def test_a_schedule_is_proved_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = open_model(make_tiny("llama", tmp_path / "llama")).config
    checked: list[int] = []
    check = schedule_proofs.check

    def watched(plan: ModelPlan, schedule: Schedule) -> None:
        checked.append(schedule.n_rows)
        check(plan, schedule)

    monkeypatch.setattr(schedule_proofs, "check", watched)
    path = tmp_path / "proofs"
    cpu_schedules(config, 1, 2, proofs=Proofs(path))
    assert checked == [1, 2]
    cpu_schedules(config, 1, 3, proofs=Proofs(path))
    assert checked == [1, 2, 3]
    cpu_schedules(config, 2, 3, proofs=Proofs(path))
    assert checked == [1, 2, 3, 1, 2, 3]
    path.write_bytes(b"damaged")
    cpu_schedules(config, 1, 1, proofs=Proofs(path))
    assert checked[-1:] == [1] and len(checked) == 7
    assert Proofs(None).has(digest(b"")) is False


def test_all_tokens_at_once_become_the_bytes_that_each_becomes_alone() -> None:
    tokens = ["Hello", "Ġworld", "Ċ", "ĉĉ", "é", "æĹ¥", ""]
    assert tokens_to_bytes(tokens) == [token_to_bytes(token) for token in tokens]
    assert tokens_to_bytes([*tokens, "<日本>"]) == [token_to_bytes(token) for token in [*tokens, "<日本>"]]

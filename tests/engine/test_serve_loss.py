"""bench serve --random-weights: the batch alone, then over HTTP with a client process, on a tiny CPU engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pointcode_local.engine.assembly import assemble
from pointcode_local.engine.bench.random_files import counted_tokenizer, random_files
from pointcode_local.engine.bench.serve_load import prompt_ids
from pointcode_local.engine.bench.serve_loss import Load, measure_loss
from pointcode_local.engine.control import ControlLimits
from pointcode_local.engine.model_files import open_model
from pointcode_local.engine.parts import EngineOptions

from .tiny_models import make_tiny


def test_both_measurements_run_the_same_batch_and_every_token_is_counted(tmp_path: Path) -> None:
    files = open_model(make_tiny("cohere2_moe", tmp_path))
    limits = ControlLimits(drafts=False, max_rows=2)
    parts = assemble(files, "tiny", EngineOptions(backend="cpu", n_threads=1, context_tokens=1024, limits=limits))
    load = Load(n_streams=2, context_tokens=100, n_tokens=600, repeats=1)
    found = measure_loss(replace(parts, grammars=None), random_files(files.config), load)
    assert found.alone_tokens_per_s > 0 and found.http.tokens_per_s > 0
    assert found.loss == 1 - found.http.tokens_per_s / found.alone_tokens_per_s
    assert 0 < found.http.window_tokens <= 2 * 600
    assert "without a server" in found.describe()


def test_every_token_of_the_counted_vocabulary_has_one_space_and_text_can_be_encoded() -> None:
    tokenizer = counted_tokenizer(1000)
    assert all(tokenizer.decode([i]).count(" ") == 1 for i in range(1000))
    assert len(tokenizer.encode("a space, ä")) == len("a space, ä".encode())


def test_a_streams_prompt_is_the_same_for_whoever_asks() -> None:
    assert prompt_ids(3, 50, 1000) == prompt_ids(3, 50, 1000) != prompt_ids(4, 50, 1000)

"""Tokenizers: round trips, markers that text cannot forge, streams cut inside characters, known ids."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from pointcode_local.engine.bpe import bpe_from_gguf, token_to_bytes
from pointcode_local.engine.errors import ModelError
from pointcode_local.engine.gguf import read_gguf
from pointcode_local.engine.tokenizer import StreamDecoder, Tokenizer

from .tiny_gguf import make_tiny_gguf
from .tiny_models import Family, write_tokenizer

FAMILIES: list[Family] = ["qwen2", "llama", "cohere2_moe"]
SAMPLES = [
    "Hello, world!",
    " leading and trailing ",
    "def f(x):\n\treturn x + 1234\n\n\n",
    "it's 'quoted' — naïve 日本語 Ünï",
    "👩‍👩‍👧 family, 🇩🇪 flag",
    "\r\n mixed \n\r line ends",
    "",
]


@functools.cache
def tokenizer_of(family: Family) -> tuple[Tokenizer, Reference]:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(family, Path(folder))
        return Tokenizer.from_folder(Path(folder)), Reference.from_file(str(Path(folder) / "tokenizer.json"))


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_encoded_as_the_reference_does_and_comes_back(family: Family, text: str) -> None:
    ours, reference = tokenizer_of(family)
    assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids
    assert ours.decode(ours.encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_round_trips_and_streams(text: str) -> None:
    tokenizer, _ = tokenizer_of("qwen2")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    decoder = StreamDecoder(tokenizer)
    assert "".join(decoder.push(i) for i in ids) + decoder.flush() == text


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(["<|im_end|>", "<|im_start|>", "<tool_call>", "user\n", "<", "|", "x"]), max_size=12
    )
)
def test_text_can_never_become_a_marker(pieces: list[str]) -> None:
    tokenizer, _ = tokenizer_of("qwen2")
    text = "".join(pieces)
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.markers.values())
    assert tokenizer.decode(ids) == text


def test_templates_may_write_markers() -> None:
    tokenizer, reference = tokenizer_of("cohere2_moe")
    text = "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>hi<|END_OF_TURN_TOKEN|>"
    ids = tokenizer.encode(text, allow_special=True)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text and tokenizer.decode(ids, skip_control=True) == "hi"


def test_a_marker_that_is_an_ordinary_entry_is_not_reached_by_text(tmp_path: Path) -> None:
    """Some vocabularies list markers as BPE entries, and some take a whole word when it is an entry."""
    write_tokenizer("llama", tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["model"]["ignore_merges"] = True
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.encode("<|im_end|>")
    assert not set(ids) & set(tokenizer.markers.values()) and tokenizer.decode(ids) == "<|im_end|>"


def test_a_character_split_over_tokens_waits_for_its_last_byte() -> None:
    tokenizer, _ = tokenizer_of("llama")
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(i) for i in tokenizer.encode(" é👍")]
    assert "".join(pieces) == " é👍" and all("\ufffd" not in p for p in pieces) and pieces[0] == " "
    assert decoder.flush() == ""


def test_a_truncated_tail_is_flushed_as_a_replacement_character() -> None:
    tokenizer, _ = tokenizer_of("llama")
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("a👍")
    assert "".join(decoder.push(i) for i in ids[:-1]) == "a"
    assert decoder.flush() == "\ufffd" and decoder.flush() == ""
    assert tokenizer.decode(ids[:-1]) == "a\ufffd"


def test_ids_without_a_text_are_nothing() -> None:
    tokenizer, _ = tokenizer_of("llama")
    assert tokenizer.decode([-1, tokenizer.size, 10**9]) == ""


def test_a_lone_surrogate_is_encoded_as_a_replacement_character() -> None:
    tokenizer, _ = tokenizer_of("llama")
    assert tokenizer.decode(tokenizer.encode("a\udcffb")) == "a\ufffdb"


def test_end_tokens_are_found_by_their_text() -> None:
    names = {f: {t for t, i in tokenizer_of(f)[0].markers.items() if i in tokenizer_of(f)[0].end_ids} for f in FAMILIES}
    assert names["qwen2"] == names["llama"] == {"<|im_end|>", "<|endoftext|>"}
    assert names["cohere2_moe"] == {"<|END_OF_TURN_TOKEN|>"}


def test_a_gguf_tokenizer_equals_the_one_it_was_made_from(tmp_path: Path) -> None:
    path, _ = make_tiny_gguf("qwen2", tmp_path / "m.gguf")
    ours, (reference, _) = Tokenizer.from_gguf(read_gguf(path).metadata), tokenizer_of("qwen2")
    for text in (*SAMPLES, "<|im_start|>user\n<tool_call>"):
        assert ours.encode(text) == reference.encode(text)
        assert ours.encode(text, allow_special=True) == reference.encode(text, allow_special=True)
    assert (ours.markers, ours.end_ids, ours.eos_token) == (reference.markers, reference.end_ids, reference.eos_token)


def test_every_byte_has_its_stand_in() -> None:
    assert token_to_bytes("ĠaĊ") == b" a\n"
    assert token_to_bytes("Ã©") == "é".encode()
    assert sorted(token_to_bytes(chr(c)) for c in [*range(33, 127), *range(161, 173), *range(174, 324)]) == [
        bytes([b]) for b in range(256)
    ]


def test_tokenizers_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unigram-thing"):
        bpe_from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "unigram-thing"})
    with pytest.raises(ModelError, match="'llama'"):
        bpe_from_gguf({"tokenizer.ggml.model": "llama"})


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": ["a", "b"], "merges": ["a w"]},
        {"tokens": ["a", "b"], "merges": ["ab"]},
        {"tokens": ["a", 7]},
        {"tokens": ["a"], "token_type": [1, 1]},
    ],
)
def test_a_damaged_tokenizer_is_refused_like_any_damage(damage: dict[str, Any], tmp_path: Path) -> None:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in damage.items()}
    with pytest.raises(ModelError, match="the tokenizer is damaged"):
        Tokenizer.from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", **metadata})
    folder = tmp_path
    write_tokenizer("qwen2", folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["model"]["merges"] = [["no", "such"]]
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match="the tokenizer is damaged"):
        Tokenizer.from_folder(folder)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    with pytest.raises(ModelError, match="Unigram"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ModelError, match="missing"):
        Tokenizer.from_folder(tmp_path / "nowhere")


# Pre-tokenisers on a vocabulary of single bytes with a few merges: where pieces may not join.
@pytest.mark.parametrize(
    ("pre", "text", "joined"),
    [
        ("qwen2", "12", False),
        ("smollm", "12", False),
        ("gpt-2", "12", True),
        ("llama-bpe", "12", True),
        ("qwen2", "!\n", True),
        ("gpt-2", "!\n", False),
        ("qwen2", "'S", True),
        ("gpt-2", "'S", False),
    ],
)
def test_each_pre_tokeniser_splits_as_its_family(pre: str, text: str, joined: bool) -> None:
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 324)]]
    pair = {"12": ("1", "2"), "!\n": ("!", "Ċ"), "'S": ("'", "S")}[text]
    tokens = [*alphabet, "".join(pair)]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair)],
    }
    assert (len(Tokenizer.from_gguf(metadata).encode(text)) == 1) == joined


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("qwen2.5-coder-0.5b", "Hello, world!", [9707, 11, 1879, 0]),
        ("smollm2-135m", "Hello, world!", [19556, 28, 905, 17]),
    ],
)
def test_known_ids_of_real_vocabularies(name: str, text: str, ids: list[int]) -> None:
    from pointcode_local.engine.download import pull

    tokenizer = Tokenizer.from_gguf(read_gguf(pull(name)).metadata)
    assert tokenizer.encode(text) == ids
    for sample in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(sample)) == sample


def test_a_long_text_has_the_ids_of_its_lines(tmp_path: Path) -> None:
    write_tokenizer("llama", tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    line = "hello there, <|im_end|> 漢字\n"
    assert tokenizer.encode(line * 2000) == tokenizer.encode(line) * 2000

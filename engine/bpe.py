"""Byte-level BPE tokenizers, as `tokenizers` objects: from tokenizer.json, or built from GGUF metadata.

Two are made of each: one that knows the added tokens (markers) and one that does not, so that text from outside can
never become a marker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from .errors import ModelError
from .model_config import read_json_object

# Pre-tokenisers by GGUF's `tokenizer.ggml.pre`; each is the published tokenizer's rule.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_GGUF_CONTROL, _GGUF_USER_DEFINED = 3, 4


@dataclass(frozen=True, slots=True, eq=False)
class BpeVocabulary:
    """What a tokenizer is made of. `token_bytes[id]` is b"" for ids without a text; `markers` maps text to id for
    every added token, of which `control` are those a template alone may write."""

    plain: Tokenizer
    token_bytes: tuple[bytes, ...]
    markers: Mapping[str, int]
    control: frozenset[int]
    bos_token: str
    eos_token: str


def bpe_from_folder(folder: Path) -> BpeVocabulary:
    """The tokenizer in a model folder (tokenizer.json, and tokenizer_config.json where there is one)."""
    spec = read_json_object(folder / "tokenizer.json")
    settings_path = folder / "tokenizer_config.json"
    settings = read_json_object(settings_path) if settings_path.exists() else {}
    added = cast("list[dict[str, object]]", spec.get("added_tokens") or [])
    _require_byte_level(spec, folder)
    # White-space runs are added tokens of some vocabularies; they are text, not markers.
    plain_spec = {**spec, "added_tokens": [t for t in added if not str(t["content"]).strip()], "post_processor": None}
    plain = Tokenizer.from_str(json.dumps(plain_spec))
    markers = {str(t["content"]): cast("int", t["id"]) for t in added if str(t["content"]).strip()}
    control = frozenset(cast("int", t["id"]) for t in added if t.get("special") and str(t["content"]).strip())
    vocab = plain.get_vocab(with_added_tokens=True)
    plain_added = {str(t["content"]) for t in added if not str(t["content"]).strip()}
    size = max((*vocab.values(), *markers.values()), default=-1) + 1
    token_bytes = [b""] * size
    for token, i in vocab.items():
        token_bytes[i] = token.encode() if token in plain_added else token_to_bytes(token)
    for token, i in markers.items():
        token_bytes[i] = token.encode()
    return BpeVocabulary(
        plain, tuple(token_bytes), markers, control, _named(settings, "bos_token"), _named(settings, "eos_token")
    )


def bpe_from_gguf(metadata: Mapping[str, object]) -> BpeVocabulary:
    """The tokenizer that GGUF metadata describes; only byte-level BPE with a known pre-tokeniser."""
    kind, pre = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre"))
    if kind != "gpt2" or pre not in _PRE:
        known = ", ".join(sorted(_PRE))
        raise ModelError(
            f"the GGUF tokenizer {kind!r} with pre-tokeniser {pre!r} is not implemented (gpt2 with {known})"
        )
    tokens = cast("list[str]", metadata.get("tokenizer.ggml.tokens") or [])
    types = cast("list[int]", metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens))
    merges = cast("list[str]", metadata.get("tokenizer.ggml.merges") or [])
    markers = {
        token: i
        for i, (token, kind_id) in enumerate(zip(tokens, types, strict=True))
        if kind_id in (_GGUF_CONTROL, _GGUF_USER_DEFINED) and token.strip()
    }
    text_ids = {t: i for i, (t, kind_id) in enumerate(zip(tokens, types, strict=True)) if kind_id in (1, 6)}
    plain = Tokenizer(models.BPE(vocab=text_ids, merges=list(map(_pair, merges))))
    if pre == "qwen2":
        plain.normalizer = normalizers.NFC()
    plain.pre_tokenizer = _PRE[pre]
    plain.decoder = decoders.ByteLevel()
    spaces = [t for t, kind_id in zip(tokens, types, strict=True) if kind_id == _GGUF_USER_DEFINED and not t.strip()]
    plain.add_tokens([AddedToken(t, normalized=False) for t in spaces])
    token_bytes = [b""] * len(tokens)
    for i, text in zip(text_ids.values(), tokens_to_bytes(list(text_ids)), strict=True):
        token_bytes[i] = text
    for token, i in markers.items():
        token_bytes[i] = token.encode()
    control = frozenset(i for i in markers.values() if types[i] == _GGUF_CONTROL)
    return BpeVocabulary(plain, tuple(token_bytes), markers, control, *(_gguf_named(metadata, n, tokens) for n in "be"))


def _isolate(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE: Mapping[str, pre_tokenizers.PreTokenizer] = {
    "qwen2": _isolate(_QWEN2_SPLIT),
    "llama-bpe": _isolate(_LLAMA3_SPLIT),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-ins of bytes, each with the Latin-1 character of its byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {256 + n: chr(b) for n, b in enumerate(others)}


_TO_LATIN1 = _byte_alphabet()


def token_to_bytes(token: str) -> bytes:
    """The bytes of an ordinary vocabulary entry; one outside the byte alphabet (a marker kept as text) as UTF-8."""
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def tokens_to_bytes(tokens: Sequence[str]) -> list[bytes]:
    """`token_to_bytes` of each; all at once where all are ordinary, which takes a third of the time."""
    try:
        whole = "".join(tokens).translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return [token_to_bytes(token) for token in tokens]
    ends = list(accumulate(map(len, tokens)))
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _require_byte_level(spec: Mapping[str, object], folder: Path) -> None:
    model = cast("Mapping[str, object]", spec.get("model") or {})
    if model.get("type") != "BPE" or '"ByteLevel"' not in json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")]):
        raise ModelError(
            f"{folder / 'tokenizer.json'}: only byte-level BPE is implemented, found {model.get('type')!r}"
        )


def _named(settings: Mapping[str, object], name: str) -> str:
    value = settings.get(name)
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("content")
    return value if isinstance(value, str) else ""


def _gguf_named(metadata: Mapping[str, object], initial: str, tokens: list[str]) -> str:
    i = metadata.get(f"tokenizer.ggml.{initial}os_token_id")
    return tokens[i] if isinstance(i, int) and 0 <= i < len(tokens) else ""


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right

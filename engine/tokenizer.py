"""Text to token ids and back. Text from outside is always encoded without markers; only templates may write them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from .bpe import BpeVocabulary, bpe_from_folder, bpe_from_gguf
from .errors import ModelError

_LONG_CHARS = 20_000
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
# Tokens that end a turn or a text in one of the families; those the vocabulary has as control tokens stop generation.
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>")


class Tokenizer:
    """A model's tokenizer.

    `markers` maps the text of every added token to its id; `control_ids` are those of them that are invisible (never
    part of a text); `end_ids` those that end a reply.
    """

    def __init__(self, vocabulary: BpeVocabulary) -> None:
        self._plain = vocabulary.plain
        self._bytes = vocabulary.token_bytes
        self.longest_token_bytes = max(1, *map(len, self._bytes))
        self.markers: Mapping[str, int] = vocabulary.markers
        self.control_ids = vocabulary.control
        self.bos_token = vocabulary.bos_token
        self.eos_token = vocabulary.eos_token
        ends = {*_END_TOKENS, vocabulary.eos_token}
        self.end_ids = frozenset(i for text, i in self.markers.items() if text in ends)
        longest_first = sorted(self.markers, key=len, reverse=True)
        self._marker_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._marker_ids = frozenset(self.markers.values())

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json; raises ModelError when it is missing, damaged or not byte-level BPE."""
        with _damage_is_named():
            return cls(bpe_from_folder(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """From the metadata of a GGUF file; raises ModelError for one that is damaged, or of a kind not implemented."""
        with _damage_is_named():
            return cls(bpe_from_gguf(metadata))

    @property
    def size(self) -> int:
        """One more than the largest id (a model's vocabulary may be padded beyond it)."""
        return len(self._bytes)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Ids of `text`. With `allow_special`, markers in it become their ids; otherwise they stay ordinary text."""
        if not allow_special:
            return self._encode_text(text)
        ids: list[int] = []
        end = 0
        for found in self._marker_pattern.finditer(text):
            ids += self._encode_text(text[end : found.start()])
            ids.append(self.markers[found.group()])
            end = found.end()
        return ids + self._encode_text(text[end:])

    def decode(self, ids: Iterable[int], skip_control: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids without a text become nothing."""
        return b"".join(self.token_bytes(i) for i in ids if not (skip_control and i in self.control_ids)).decode(
            "utf-8", "replace"
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `token_id` stands for; b"" for ids outside the vocabulary or without a text."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def find_markers(self, text: str) -> list[tuple[int, int]]:
        """(begin, end) of every marker spelled in `text`, left to right, not overlapping."""
        return [found.span() for found in self._marker_pattern.finditer(text)]

    def _encode_text(self, text: str) -> list[int]:
        if not text:
            return []
        text = _LONE_SURROGATES.sub("\ufffd", text)  # what is no character has no bytes
        ids = self._ids_of(text)
        if self._marker_ids.isdisjoint(ids):
            return ids
        # A vocabulary that lists its markers as ordinary entries can merge to one: cut each inside its spelling.
        cuts = [0, *(begin + 1 for begin, _ in self.find_markers(text)), len(text)]
        pieces = (text[a:b] for a, b in zip(cuts, cuts[1:], strict=False) if a < b)
        return [i for piece in pieces for i in self._ids_of(piece)]

    def _ids_of(self, text: str) -> list[int]:
        """A batch of one gives the same ids without holding the GIL, which a megabyte would hold for two seconds."""
        if len(text) < _LONG_CHARS:
            return self._plain.encode(text, add_special_tokens=False).ids
        return self._plain.encode_batch([text], add_special_tokens=False)[0].ids


@contextmanager
def _damage_is_named() -> Generator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library that builds it raises nothing narrower
        raise ModelError(f"the tokenizer is damaged: {error}") from error


class StreamDecoder:
    """Decodes ids as they come: a character split over tokens waits for its last byte."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes (possibly none)."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def feed_bytes(self, data: bytes) -> str:
        """The text that `data` completes: the end of what came before the first token."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """U+FFFD for a character that never got its last bytes; nothing otherwise."""
        return self._decoder.decode(b"", True)

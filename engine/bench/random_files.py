"""What a model of random weights has beside them: a vocabulary whose every token can be counted in a text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as PlainTokenizer
from tokenizers import models, pre_tokenizers

from ..bpe import BpeVocabulary
from ..chat import ChatTemplate
from ..model_files import ModelFiles
from ..models.config import ModelConfig
from ..tokenizer import Tokenizer
from ..weights import ModelWeights

_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def counted_tokenizer(vocab: int) -> Tokenizer:
    """Token i stands for its number with a space in front; text is encoded byte by byte. No token ends a text."""
    bytes_of = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = PlainTokenizer(models.BPE(vocab=bytes_of, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = tuple(f" {i}".encode() for i in range(vocab))
    return Tokenizer(BpeVocabulary(plain, texts, {}, frozenset(), "", ""))


def random_files(config: ModelConfig) -> ModelFiles:
    """Files without weights: whoever uses them has made the weights already."""
    tokenizer = counted_tokenizer(config.vocab)
    template = ChatTemplate(_TEMPLATE, tokenizer)
    return ModelFiles(Path("random-weights"), ModelWeights(config, {}, {}), tokenizer, template, tokenizer.end_ids)

"""Opening a model: its weights, tokenizer and chat template together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .chat import ChatTemplate, template_of_folder, template_of_gguf
from .errors import ModelError
from .gguf import read_gguf
from .models.config import ModelConfig
from .tokenizer import Tokenizer
from .weights import ModelWeights, open_weights, weights_from_gguf

SMALL_MODEL_PARAMETERS = 3_000_000_000  # below it a model wants fewer tools and shorter schemas


@dataclass(frozen=True, slots=True, eq=False)
class ModelFiles:
    """Everything that a model's files say. `stop_ids` end a reply."""

    path: Path
    weights: ModelWeights
    tokenizer: Tokenizer
    template: ChatTemplate
    stop_ids: frozenset[int]

    @property
    def config(self) -> ModelConfig:
        """Sizes and constants."""
        return self.weights.config

    @property
    def is_small(self) -> bool:
        """Whether the model has fewer than SMALL_MODEL_PARAMETERS parameters."""
        return self.config.n_params < SMALL_MODEL_PARAMETERS


def open_model(path: Path, cache_dir: Path | None = None, **template_variables: object) -> ModelFiles:
    """Open a GGUF file or a folder of safetensors; raises ModelError saying what was found and what was expected.

    `cache_dir` is where what takes long to read may be kept for the next start.
    """
    if path.is_dir():
        weights, tokenizer = open_weights(path), Tokenizer.from_folder(path)
        template = template_of_folder(path, tokenizer, **template_variables)
    elif path.is_file():
        file = read_gguf(path, cache_dir)
        weights, tokenizer = weights_from_gguf(file), Tokenizer.from_gguf(file.metadata)
        template = template_of_gguf(file.metadata, tokenizer, **template_variables)
    else:
        raise ModelError(f"there is no model at {path}")
    if tokenizer.size > weights.config.vocab:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.size} tokens, the embedding only {weights.config.vocab} rows"
        )
    return ModelFiles(path, weights, tokenizer, template, tokenizer.end_ids | frozenset(weights.config.eos_ids))

"""Tiny random checkpoints, built with transformers, that every engine test may use.

`make_tiny(family, folder)` writes a complete model folder: config.json, model.safetensors, tokenizer.json,
tokenizer_config.json and chat_template.jinja. All sizes are multiples of 16, as the kernels want them. The constants
are exaggerated on purpose (eps, theta, window, logit scale), so that an implementation that drops one is far off.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from . import tiny_templates
from .tiny_templates import CHATML, CHATML_TOOLS, COHERE

KEPT = Path(__file__).parents[2] / "build/tiny_models"  # every process of a test run needs the same few

Family = Literal["qwen2", "llama", "cohere2_moe"]
ExpertLayout = Literal["per_expert", "fused"]

VOCAB_SIZE = 320
_SPECIALS: dict[Family, tuple[str, ...]] = {
    "qwen2": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    "llama": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "cohere2_moe": (
        "<PAD>", "<UNK>", "<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
        "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>",
        "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_ACTION|>", "<|END_ACTION|>",
        "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>",
    ),
}  # fmt: skip
_EOS: dict[Family, str] = {
    "qwen2": "<|im_end|>",
    "llama": "<|im_end|>",
    "cohere2_moe": "<|END_OF_TURN_TOKEN|>",
}
_BOS: dict[Family, str] = {"qwen2": "<|endoftext|>", "llama": "<|im_start|>", "cohere2_moe": "<BOS_TOKEN>"}
_TEMPLATE: dict[Family, str] = {"qwen2": CHATML_TOOLS, "llama": CHATML, "cohere2_moe": COHERE}
_PAIRS = (
    "th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it", "al",
    "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le", "ve", "co", "me", "de", "hi", "ri", "ro", "ic",
    "ne", "ea", "ra", "ce", "li", "ch", "ll", "be", "ma", "si", "om", "ur", "Ġt", "Ġa", "Ġs", "Ġw", "Ġi", "Ġo", "Ġc",
    "Ġb",
)  # fmt: skip


def make_tiny(
    family: Family,
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    experts: ExpertLayout = "per_expert",
    prefix: str = "",
    **overrides: Any,
) -> Path:
    """Write a tiny random model of `family` into `folder` (made if needed) and return the folder.

    `overrides` replace fields of the transformers config. `experts` picks the tensor layout of cohere2_moe's experts;
    `prefix` is put before every tensor name ("language_model." in some repacks).
    """
    name = repr((family, seed, dtype, experts, prefix, sorted(overrides.items())))
    kept = _kept_here() / hashlib.sha256(name.encode()).hexdigest()[:16]
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            made = Path(scratch) / "model"
            made.mkdir()
            _write(made, family, seed, dtype, experts, prefix, overrides)
            with suppress(OSError):  # another process was faster
                made.rename(kept)
    torch.manual_seed(seed)  # what a test draws next does not depend on who made the model
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    return folder


@cache
def _kept_here() -> Path:
    """The folder of what this code makes with these versions; what others made goes."""
    sources = [Path(str(module)).read_bytes() for module in (__file__, tiny_templates.__file__)]
    versions = [version(package).encode() for package in ("torch", "transformers", "tokenizers", "safetensors")]
    here = KEPT / hashlib.sha256(b"\0".join([*sources, *versions])).hexdigest()[:16]
    here.mkdir(parents=True, exist_ok=True)
    for other in KEPT.iterdir():
        if other != here:
            shutil.rmtree(other, ignore_errors=True)
    return here


def _write(
    folder: Path,
    family: Family,
    seed: int,
    dtype: torch.dtype,
    experts: ExpertLayout,
    prefix: str,
    overrides: dict[str, Any],
) -> None:
    from safetensors.torch import save_file

    model = build_reference(family, seed=seed, **overrides)
    tensors = checkpoint_tensors(model, experts)
    save_file({prefix + name: t.to(dtype).contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    model.config.architectures = [type(model).__name__]
    model.config.dtype = str(dtype).removeprefix("torch.")
    model.config.save_pretrained(folder)
    write_tokenizer(family, folder)


def build_reference(family: Family, *, seed: int = 0, **overrides: Any) -> Any:
    """The transformers model itself, fp32, eval mode, every parameter random (norms near 1, biases not 0)."""
    torch.manual_seed(seed)
    model = _model_class(family)(_config(family, overrides)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.2)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
    return model


def load_reference(family: Family, folder: Path) -> Any:
    """The transformers model that `make_tiny` wrote to `folder`, as fp32 in eval mode with eager attention."""
    return _model_class(family).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def checkpoint_tensors(model: Any, experts: ExpertLayout = "per_expert") -> dict[str, torch.Tensor]:
    """The model's tensors under the names a published checkpoint uses (a tied head is left out)."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if experts == "per_expert" and name.endswith("experts.gate_up_proj"):
            for e, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2)
                tensors[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate.clone()
                tensors[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up.clone()
        elif experts == "per_expert" and name.endswith("experts.down_proj"):
            for e, matrix in enumerate(tensor):
                tensors[name.replace("down_proj", f"{e}.down_proj.weight")] = matrix.clone()
        else:
            tensors[name] = tensor.clone()
    return tensors


def _model_class(family: Family) -> Any:
    import transformers

    names = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM", "cohere2_moe": "Cohere2MoeForCausalLM"}
    return getattr(transformers, names[family])


def _config(family: Family, overrides: dict[str, Any]) -> Any:
    import transformers

    ids = {token: i for i, token in enumerate(_SPECIALS[family])}
    common: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "initializer_range": 0.05, "max_position_embeddings": 4096, "rms_norm_eps": 1e-2, "rope_theta": 100.0,
        "bos_token_id": ids[_BOS[family]], "eos_token_id": ids[_EOS[family]], "pad_token_id": 0,
        "attn_implementation": "eager",
    }  # fmt: skip
    own: dict[Family, dict[str, Any]] = {
        "qwen2": {"num_hidden_layers": 3, "intermediate_size": 128, "tie_word_embeddings": True},
        "llama": {"num_hidden_layers": 3, "intermediate_size": 96, "head_dim": 32, "tie_word_embeddings": False},
        "cohere2_moe": {
            "num_hidden_layers": 6, "intermediate_size": 48, "head_dim": 32, "sliding_window": 7, "logit_scale": 0.7,
            "num_experts": 8, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "expert_selection_fn": "sigmoid",
            "prefix_dense_intermediate_size": 96, "norm_topk_prob": False, "layer_norm_eps": 0.3,
            "tie_word_embeddings": True,
        },
    }  # fmt: skip
    names = {"qwen2": "Qwen2Config", "llama": "LlamaConfig", "cohere2_moe": "Cohere2MoeConfig"}
    return getattr(transformers, names[family])(**(common | own[family] | overrides))


def write_tokenizer(family: Family, folder: Path) -> None:
    """A byte-level BPE of exactly VOCAB_SIZE entries: the family's special tokens, 256 bytes, a few pairs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    specials = _SPECIALS[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = _PAIRS[: VOCAB_SIZE - len(specials) - len(alphabet)]
    vocab = {token: i for i, token in enumerate((*specials, *alphabet, *pairs))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(pair[0], pair[1]) for pair in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": _EOS[family], "bos_token": _BOS[family], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.jinja").write_text(_TEMPLATE[family])

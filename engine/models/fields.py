"""Typed reading of config.json and GGUF metadata; what is missing or not implemented is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ..errors import ModelError
from .config import LayerSpec, ModelConfig

MAX_LAYERS = 4096
_NO_SCALING = (None, "default", "none")


class Fields:
    """A configuration mapping with typed, checked access. `source` names it in errors."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self.values = values
        self.source = source

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer field; `default` where it is absent or null."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.source}: {name} should be an integer, found {value!r}")
        return value

    def count(self, name: str, default: int | None = None, *, most: int = 1 << 31) -> int:
        """An integer field from 1 to `most`."""
        value = self.integer(name, default)
        if not 1 <= value <= most:
            raise ModelError(f"{self.source}: {name} = {value} is not from 1 to {most:,}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number field; `default` where it is absent or null."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.source}: {name} should be a number, found {value!r}")
        return float(value)

    def ids(self, name: str) -> tuple[int, ...]:
        """A token id or a list of them; empty where absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        ids = cast("list[object]", value) if isinstance(value, list) else [value]
        if not all(isinstance(i, int) for i in ids):
            raise ModelError(f"{self.source}: {name} should be a token id or a list of them, found {value!r}")
        return tuple(cast("list[int]", ids))

    def strings(self, name: str, length: int) -> list[str]:
        """A list of `length` strings."""
        value = self._present(name, None)
        items = cast("list[object]", value) if isinstance(value, list) else []
        if len(items) != length or not all(isinstance(item, str) for item in items):
            raise ModelError(f"{self.source}: {name} should be a list of {length} strings, found {value!r}")
        return cast("list[str]", items)

    def only(self, name: str, *accepted: object) -> None:
        """Refuse a field that is stated and not one of the values that this engine implements."""
        if name in self.values and self.values[name] not in accepted:
            expected = " or ".join(repr(a) for a in accepted)
            raise ModelError(f"{self.source}: {name} = {self.values[name]!r} is not implemented (only {expected})")

    def _present(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.source}: the field {name} is missing")
        return value


def hf_rope_theta(fields: Fields) -> float:
    """RoPE's base from a config.json of any age; refuses every kind of scaling."""
    parameters = fields.values.get("rope_parameters")
    scaling = fields.values.get("rope_scaling")
    for stated in (parameters, scaling):
        if stated is None:
            continue
        rope = cast("Mapping[str, object]", stated) if isinstance(stated, Mapping) else {"rope_type": stated}
        kind = rope.get("rope_type", rope.get("type"))
        if kind not in _NO_SCALING or rope.get("partial_rotary_factor") not in (None, 1.0, 1):
            raise ModelError(f"{fields.source}: RoPE scaling {stated!r} is not implemented (only plain RoPE)")
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        return Fields(cast("Mapping[str, object]", parameters), f"{fields.source}: rope_parameters").number(
            "rope_theta"
        )
    return fields.number("rope_theta", 10000.0)


def dense_config_from_hf(values: Mapping[str, object], family: str, *, attention_bias: bool) -> ModelConfig:
    """The configuration of a llama-like dense model from its config.json."""
    fields = Fields(values, "config.json")
    fields.only("hidden_act", "silu")
    fields.only("mlp_bias", False)
    hidden, n_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layer = LayerSpec(rope=True, sliding=False, moe=False, intermediate=fields.count("intermediate_size"))
    return ModelConfig(
        family=family,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=fields.count("num_key_value_heads", n_heads),
        head_dim=fields.count("head_dim", hidden // n_heads),
        vocab=fields.count("vocab_size"),
        layers=(layer,) * fields.count("num_hidden_layers", most=MAX_LAYERS),
        eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=hf_rope_theta(fields),
        max_positions=fields.count("max_position_embeddings", 2048),
        tied=bool(values.get("tie_word_embeddings", False)),
        attention_bias=attention_bias,
        eos_ids=fields.ids("eos_token_id"),
    )


def dense_config_from_gguf(
    metadata: Mapping[str, object], family: str, *, attention_bias: bool, rope_interleaved: bool
) -> ModelConfig:
    """The configuration of a llama-like dense model from GGUF metadata.

    The file reader adds `pointcode.vocab` (rows of the embedding) and `pointcode.tied` (no separate output matrix).
    """
    fields = Fields(metadata, "GGUF metadata")
    fields.only(f"{family}.rope.scaling.type", "none")
    fields.only(f"{family}.expert_count", 0)
    hidden, n_heads = fields.count(f"{family}.embedding_length"), fields.count(f"{family}.attention.head_count")
    head_dim = fields.count(f"{family}.attention.key_length", hidden // n_heads)
    fields.only(f"{family}.attention.value_length", head_dim)
    fields.only(f"{family}.rope.dimension_count", head_dim)
    intermediate = fields.count(f"{family}.feed_forward_length")
    layer = LayerSpec(rope=True, sliding=False, moe=False, intermediate=intermediate)
    return ModelConfig(
        family=family,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=fields.count(f"{family}.attention.head_count_kv", n_heads),
        head_dim=head_dim,
        vocab=fields.count("pointcode.vocab"),
        layers=(layer,) * fields.count(f"{family}.block_count", most=MAX_LAYERS),
        eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number(f"{family}.rope.freq_base", 10000.0),
        max_positions=fields.count(f"{family}.context_length"),
        tied=bool(metadata.get("pointcode.tied")),
        attention_bias=attention_bias,
        rope_interleaved=rope_interleaved,
        eos_ids=fields.ids("tokenizer.ggml.eos_token_id"),
    )

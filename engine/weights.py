"""A model's weights by (layer, WeightKind), opened from a folder of safetensors or from a GGUF file.

Opening checks every name and shape and reads nothing else; a weight is a map of the file wherever the file's layout
allows it. Copies are made only for vectors (norms and biases become F32), for experts that lie apart in the file (they
are stacked into one bank) and for tensors whose address is not a multiple of their element size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError
from .gguf import GgufFile, read_gguf
from .model_config import read_hf_config
from .models import find_family
from .models.config import Family, ModelConfig, WeightFormat, WeightKind
from .tensor_files import PLAIN, Bytes, Extent, RawTensor, read_safetensors_folder, row_bytes_of

if TYPE_CHECKING:
    import torch

__all__ = ["ModelWeights", "StoredMatrices", "WeightFormat", "WeightKind", "WeightTensor", "open_weights"]

_VECTORS = (
    WeightKind.NORM_ATTN, WeightKind.NORM_FFN, WeightKind.FINAL_NORM,
    WeightKind.Q_BIAS, WeightKind.K_BIAS, WeightKind.V_BIAS,
)  # fmt: skip
_HF_GLOBAL = {
    WeightKind.EMBED: "model.embed_tokens.weight",
    WeightKind.FINAL_NORM: "model.norm.weight",
    WeightKind.LM_HEAD: "lm_head.weight",
}
_GGUF_GLOBAL = {
    WeightKind.EMBED: "token_embd.weight",
    WeightKind.FINAL_NORM: "output_norm.weight",
    WeightKind.LM_HEAD: "output.weight",
}
_HF_REPACK_PREFIX = "language_model."
_SHOWN_NAMES = 40

Slot = tuple[int, WeightKind]


@dataclass(frozen=True, slots=True, eq=False)
class WeightTensor:
    """`count` row-major matrices (rows, cols); a vector is one row. Matrix e begins at data[e * matrix_bytes].

    `data` is a uint8 array over the stored bytes and keeps them (the map) alive; its base address is a multiple of the
    element size for the plain formats and arbitrary for the blocked ones.
    """

    format: WeightFormat
    rows: int
    cols: int
    count: int
    data: Bytes
    row_bytes: int
    matrix_bytes: int

    @property
    def address(self) -> int:
        """Where matrix 0 begins in memory."""
        return self.data.ctypes.data

    def matrix(self, e: int = 0) -> Bytes:
        """Matrix e as (rows, row_bytes) uint8."""
        begin = e * self.matrix_bytes
        return self.data[begin : begin + self.rows * self.row_bytes].reshape(self.rows, self.row_bytes)

    def dequantize(self, e: int = 0) -> torch.Tensor:
        """Matrix e as (rows, cols) fp32."""
        from .dequant import dequantize_rows

        return dequantize_rows(self.matrix(e), self.format, self.cols)

    def run(self, begin: int, end: int) -> WeightTensor:
        """Rows [begin, end) of matrix 0 as a weight of their own, over the same memory."""
        n_bytes = (end - begin) * self.row_bytes
        data = self.data[begin * self.row_bytes :][:n_bytes]
        return WeightTensor(self.format, end - begin, self.cols, 1, data, self.row_bytes, n_bytes)

    def dequantize_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The chosen rows of matrix 0, in the order given, as (len(rows), cols) fp32."""
        from .dequant import dequantize_rows

        return dequantize_rows(self.matrix()[rows.numpy()], self.format, self.cols)


@dataclass(frozen=True, slots=True)
class StoredMatrices:
    """Where a weight's matrices (rows, cols) lie: matrix e from byte places[e][1] of file places[e][0] on."""

    format: WeightFormat
    rows: int
    cols: int
    row_bytes: int
    places: tuple[tuple[Path, int], ...]

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        return self.rows * self.row_bytes

    def extent(self, e: int, begin: int, end: int) -> Extent:
        """Rows [begin, end) of matrix e."""
        path, first = self.places[e]
        return Extent(path, first + begin * self.row_bytes, (end - begin) * self.row_bytes)

    def split(self, n: int) -> StoredMatrices:
        """Every matrix as `n` matrices of as many rows each."""
        rows = self.rows // n
        places = ((path, first + i * rows * self.row_bytes) for path, first in self.places for i in range(n))
        return replace(self, rows=rows, places=tuple(places))


class ModelWeights:
    """The weights of one model. `get` makes a WeightTensor on first use and keeps it."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, RawTensor], slots: Mapping[Slot, _Binding]) -> None:
        self.config = config
        self._tensors = tensors
        self._slots = slots
        self._made: dict[Slot, WeightTensor] = {}

    def get(self, layer: int, kind: WeightKind) -> WeightTensor | None:
        """The weight, or None where the model has none. Per-model kinds lie at layer = n_layers."""
        slot = (layer, kind)
        if slot not in self._slots:
            return None
        if slot not in self._made:
            self._made[slot] = self.load(layer, kind)
        return self._made[slot]

    def need(self, layer: int, kind: WeightKind) -> WeightTensor:
        """Like `get`, for a weight that the model's shape promises."""
        found = self.get(layer, kind)
        if found is None:
            raise ModelError(f"layer {layer} has no {kind.name}")
        return found

    def load(self, layer: int, kind: WeightKind) -> WeightTensor:
        """Like `need`, without keeping what had to be copied (for a backend that uploads layer by layer)."""
        return _make(self._slots[(layer, kind)], self._tensors, kind)

    def stored(self, layer: int, kind: WeightKind) -> StoredMatrices:
        """Where the weight's matrices lie in the files. Raises ModelError for experts of different formats."""
        binding = self._slots[(layer, kind)]
        parts = [self._tensors[name] for name in binding.names]
        format, rows = _common_format(parts, binding), max(binding.rows, 1)
        row_bytes = row_bytes_of(format, binding.cols)
        matrix_bytes = (binding.bank_rows or rows) * row_bytes
        first = binding.row_offset * row_bytes
        per_part = binding.count // len(parts)
        places = ((p.path, p.begin + first + e * matrix_bytes) for p in parts for e in range(per_part))
        return StoredMatrices(format, rows, binding.cols, row_bytes, tuple(places))

    def slots(self) -> list[Slot]:
        """Every (layer, kind) the model has, in order."""
        return sorted(self._slots)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(t.data.size for t in self._tensors.values())


@dataclass(frozen=True, slots=True)
class _Binding:
    """Which tensors make a weight: one, one part of a fused bank, or one per expert."""

    names: tuple[str, ...]
    rows: int
    cols: int
    count: int = 1
    row_offset: int = 0  # fused banks: first row of this part inside every matrix
    bank_rows: int = 0  # fused banks: rows of a stored matrix

    def expected_shape(self) -> tuple[int, ...]:
        """The shape that each of `names` must have."""
        if self.bank_rows:
            return (self.count, self.bank_rows, self.cols)
        return (self.rows, self.cols) if self.rows else (self.cols,)


def open_weights(path: Path) -> ModelWeights:
    """Open the model at `path`: a folder with config.json and safetensors, or a GGUF file.

    Raises ModelError, with the names, for an unknown architecture, an unknown or missing tensor, a wrong shape.
    """
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise ModelError(f"there is no model at {path}")
    return weights_from_gguf(read_gguf(path))


def weights_from_gguf(file: GgufFile) -> ModelWeights:
    """The weights of a GGUF file that was read already."""
    arch = file.metadata.get("general.architecture")
    family = find_family(str(arch))
    embed = file.tensors.get(_GGUF_GLOBAL[WeightKind.EMBED])
    if family.config_from_gguf is None or family.gguf_layer_names is None or embed is None:
        raise ModelError(f"GGUF files of the architecture {arch!r} are not implemented, or hold no embedding")
    derived = {"pointcode.vocab": embed.shape[0], "pointcode.tied": "output.weight" not in file.tensors}
    config = family.config_from_gguf({**file.metadata, **derived})
    slots = _bind(config, family.gguf_layer_names, "blk.{}.", _GGUF_GLOBAL, {})
    return _checked(config, file.tensors, slots)


def _open_folder(folder: Path) -> ModelWeights:
    config, family = read_hf_config(folder)
    tensors = read_safetensors_folder(folder)
    if all(name.startswith(_HF_REPACK_PREFIX) for name in tensors):
        tensors = {name.removeprefix(_HF_REPACK_PREFIX): t for name, t in tensors.items()}
    if config.tied:
        tensors.pop("lm_head.weight", None)  # some exports store the tied matrix twice
    experts = _bind_experts(config, family, tensors)
    return _checked(config, tensors, _bind(config, family.layer_names, "model.layers.{}.", _HF_GLOBAL, experts))


def _bind(
    config: ModelConfig,
    layer_names: Mapping[WeightKind, str],
    layer_prefix: str,
    global_names: Mapping[WeightKind, str],
    experts: Mapping[Slot, _Binding],
) -> dict[Slot, _Binding]:
    """Every weight that the configuration promises, with the tensors that it is made of."""
    slots = dict(experts)
    for i, layer in enumerate(config.layers):
        shapes = _layer_shapes(config, i)
        for kind, name in layer_names.items():
            if kind in shapes and not (layer.moe and kind in (WeightKind.GATE, WeightKind.UP, WeightKind.DOWN)):
                slots[i, kind] = _Binding((layer_prefix.format(i) + name,), *shapes[kind])
    last = config.n_layers
    head = WeightKind.EMBED if config.tied else WeightKind.LM_HEAD
    slots[last, WeightKind.EMBED] = _Binding((global_names[WeightKind.EMBED],), config.vocab, config.hidden)
    slots[last, WeightKind.LM_HEAD] = _Binding((global_names[head],), config.vocab, config.hidden)
    slots[last, WeightKind.FINAL_NORM] = _Binding((global_names[WeightKind.FINAL_NORM],), 0, config.hidden)
    return slots


def _layer_shapes(config: ModelConfig, layer: int) -> dict[WeightKind, tuple[int, int]]:
    """(rows, cols) of the layer's weights, experts left out; rows = 0 stands for a vector."""
    spec, d = config.layers[layer], config.hidden
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    shapes = {
        WeightKind.NORM_ATTN: (0, d), WeightKind.NORM_FFN: (0, d), WeightKind.Q: (q, d), WeightKind.K: (kv, d),
        WeightKind.V: (kv, d), WeightKind.O: (d, q), WeightKind.GATE: (spec.intermediate, d),
        WeightKind.UP: (spec.intermediate, d), WeightKind.DOWN: (d, spec.intermediate),
    }  # fmt: skip
    if config.attention_bias:
        shapes |= {WeightKind.Q_BIAS: (0, q), WeightKind.K_BIAS: (0, kv), WeightKind.V_BIAS: (0, kv)}
    if spec.moe:
        shapes[WeightKind.ROUTER] = (config.n_experts, d)
    return shapes


def _bind_experts(config: ModelConfig, family: Family, tensors: Mapping[str, RawTensor]) -> dict[Slot, _Binding]:
    """The experts of every routed layer, in the layout that the layer's tensors have."""
    slots: dict[Slot, _Binding] = {}
    if family.expert_names is None or family.fused_experts is None:
        return slots
    for i, spec in enumerate(config.layers):
        if not spec.moe:
            continue
        prefix, n, d, f = f"model.layers.{i}.", config.n_experts, config.hidden, spec.intermediate
        gate_up, down = (prefix + name for name in family.fused_experts)
        if gate_up in tensors or down in tensors:
            slots[i, WeightKind.EXPERT_GATE] = _Binding((gate_up,), f, d, n, 0, 2 * f)
            slots[i, WeightKind.EXPERT_UP] = _Binding((gate_up,), f, d, n, f, 2 * f)
            slots[i, WeightKind.EXPERT_DOWN] = _Binding((down,), d, f, n, 0, d)
            continue
        for kind, name in family.expert_names.items():
            rows, cols = (d, f) if kind == WeightKind.EXPERT_DOWN else (f, d)
            slots[i, kind] = _Binding(tuple(prefix + name.format(e=e) for e in range(n)), rows, cols, n)
    return slots


def _checked(config: ModelConfig, tensors: Mapping[str, RawTensor], slots: Mapping[Slot, _Binding]) -> ModelWeights:
    """Refuse missing tensors, tensors nobody asked for, and wrong shapes."""
    wanted = {name: binding.expected_shape() for binding in slots.values() for name in binding.names}
    problems: list[str] = []
    if missing := sorted(wanted.keys() - tensors.keys()):
        problems.append(f"missing tensors: {_shown(missing)}")
    if unknown := sorted(tensors.keys() - wanted.keys()):
        problems.append(f"unknown tensors: {_shown(unknown)}")
    for name in sorted(wanted.keys() & tensors.keys()):
        if tensors[name].shape != wanted[name]:
            problems.append(f"{name} has shape {list(tensors[name].shape)}, expected {list(wanted[name])}")
    if problems:
        raise ModelError(f"this is not a complete {config.family} checkpoint: " + "; ".join(problems[:_SHOWN_NAMES]))
    return ModelWeights(config, tensors, slots)


def _shown(names: list[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _make(binding: _Binding, tensors: Mapping[str, RawTensor], kind: WeightKind) -> WeightTensor:
    parts = [tensors[name] for name in binding.names]
    format, rows, cols = _common_format(parts, binding), max(binding.rows, 1), binding.cols
    if kind in _VECTORS:
        row = _fp32(parts[0].data.reshape(1, -1), format, cols)
        return WeightTensor(WeightFormat.F32, 1, cols, 1, row.reshape(-1).view(np.uint8), cols * 4, cols * 4)
    row_bytes = row_bytes_of(format, cols)
    if len(parts) > 1:
        bank = np.concatenate([part.data for part in parts])
        return WeightTensor(format, rows, cols, binding.count, bank, row_bytes, rows * row_bytes)
    matrix_bytes = (binding.bank_rows or rows) * row_bytes
    data = _aligned(parts[0].data[binding.row_offset * row_bytes :], format)
    return WeightTensor(format, rows, cols, binding.count, data, row_bytes, matrix_bytes)


def _common_format(parts: Sequence[RawTensor], binding: _Binding) -> WeightFormat:
    if any(part.format != parts[0].format for part in parts):
        raise ModelError(f"{binding.names[0]} and its sister experts have different formats")
    return parts[0].format


def _fp32(data: Bytes, format: WeightFormat, cols: int) -> NDArray[np.float32]:
    """A vector's values. The usual formats need no torch."""
    if format in PLAIN:
        return PLAIN[format](np.ascontiguousarray(data))
    from .dequant import dequantize_rows

    return dequantize_rows(data, format, cols).numpy()


def _aligned(data: Bytes, format: WeightFormat) -> Bytes:
    element = {WeightFormat.F32: 4, WeightFormat.F16: 2, WeightFormat.BF16: 2}.get(format, 1)
    return data if data.ctypes.data % element == 0 else data.copy()

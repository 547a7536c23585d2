"""A model's matrices on the device, packed for the megakernel or plain, and views of them as row-major matrices.

Both storages hold the same logical matrices: QKV rows grouped by KV head (its query heads, its K, its V), gate and up
rows alternating in runs of eight (so that 16 rows of the FFN's first product make 8 hidden units).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..errors import BackendError
from ..models.config import LayerSpec, ModelConfig
from .packing import PackPlan, empty_packed, unpack, unpack_row_ids

UNITS = 8  # rows of gate, then rows of up


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMatrix:
    """`count` (rows, k) bf16 matrices: `data` is (count, tiles, k-tiles, 256) when packed, else (count, rows, k)."""

    data: torch.Tensor
    rows: int
    k: int
    packed: bool

    @classmethod
    def empty(cls, rows: int, k: int, count: int = 1, *, packed: bool, device: torch.device) -> DeviceMatrix:
        """Memory for the matrices; only padding is set."""
        if packed:
            return cls(empty_packed(rows, k, count, device=device), rows, k, True)
        return cls(torch.empty(count, rows, k, dtype=torch.bfloat16, device=device), rows, k, False)

    @property
    def count(self) -> int:
        """Matrices in the bank."""
        return self.data.shape[0]

    def dense(self, scratch: Scratch) -> torch.Tensor:
        """(count, rows, k) row-major; in `scratch` when packed, valid until the scratch is used again."""
        if not self.packed:
            return self.data
        return unpack(self.data, self.rows, self.k, scratch.take(self.count, self.rows, self.k))

    def row_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` (T,) int64 of matrix 0: (T, k)."""
        return unpack_row_ids(self.data, ids, self.k) if self.packed else self.data[0][ids]


class Scratch:
    """One block of memory that unpacked matrices take turns in; work on one stream keeps the turns apart."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(0, dtype=torch.bfloat16, device=device)

    def take(self, *shape: int) -> torch.Tensor:
        """An uninitialised tensor that shares its memory with every other one taken."""
        n = torch.Size(shape).numel()
        if n > self._memory.numel():
            self._memory = torch.empty(0, dtype=torch.bfloat16, device=self._device)
            self._memory = torch.empty(n, dtype=torch.bfloat16, device=self._device)
        return self._memory[:n].view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLayer:
    """One layer. `router` is None in dense layers; `norm` is (hidden,) fp32."""

    qkv: DeviceMatrix
    o: DeviceMatrix
    router: DeviceMatrix | None
    upgate: DeviceMatrix
    down: DeviceMatrix
    norm: torch.Tensor

    def matrices(self) -> Iterator[DeviceMatrix]:
        """All matrices."""
        yield from (m for m in (self.qkv, self.o, self.router, self.upgate, self.down) if m is not None)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """The whole model. `embed` is `head` where they are tied."""

    config: ModelConfig
    layers: tuple[DeviceLayer, ...]
    final_norm: torch.Tensor
    head: DeviceMatrix
    embed: DeviceMatrix

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.final_norm.device


def empty_layer(config: ModelConfig, spec: LayerSpec, *, packed: bool, device: torch.device) -> DeviceLayer:
    """Memory for one layer."""

    def matrix(rows: int, k: int, count: int = 1) -> DeviceMatrix:
        return DeviceMatrix.empty(rows, k, count, packed=packed, device=device)

    experts = config.n_experts if spec.moe else 1
    return DeviceLayer(
        qkv=matrix((config.n_heads + 2 * config.n_kv_heads) * config.head_dim, config.hidden),
        o=matrix(config.hidden, config.n_heads * config.head_dim),
        router=matrix(config.n_experts, config.hidden) if spec.moe else None,
        upgate=matrix(2 * spec.intermediate, config.hidden, experts),
        down=matrix(config.hidden, spec.intermediate, experts),
        norm=torch.empty(config.hidden, dtype=torch.float32, device=device),
    )


def empty_model(config: ModelConfig, *, packed: bool, device: torch.device) -> DeviceModel:
    """Memory for the whole model."""
    head = DeviceMatrix.empty(config.vocab, config.hidden, packed=packed, device=device)
    embed = head if config.tied else DeviceMatrix.empty(config.vocab, config.hidden, packed=packed, device=device)
    return DeviceModel(
        config,
        tuple(empty_layer(config, spec, packed=packed, device=device) for spec in config.layers),
        torch.empty(config.hidden, dtype=torch.float32, device=device),
        head,
        embed,
    )


def require_supported(config: ModelConfig) -> None:
    """Raises BackendError, naming what, for a model that the GPU backends cannot run (limits of csrc/mk_params.h)."""
    group = config.n_heads // max(config.n_kv_heads, 1)
    widths = {s.intermediate for s in config.layers}
    has_moe = any(s.moe for s in config.layers)
    problems = {
        "serial blocks": not config.parallel_block,
        "LayerNorm": config.layer_norm,
        "a softmax router": config.softmax_router and has_moe,
        "attention biases": config.attention_bias,
        "half-split RoPE": not config.rope_interleaved and any(s.rope for s in config.layers),
        f"a hidden size of {config.hidden}": config.hidden % 16 != 0 or config.hidden > 2048,
        f"heads of {config.head_dim} dims": config.head_dim not in (16, 32, 64, 128),
        f"{group} query heads per KV head": config.n_heads % config.n_kv_heads != 0 or group > 8,
        f"{config.n_experts} experts": has_moe and (config.n_experts > 128 or config.n_experts % 4 != 0),
        f"{config.top_k} experts a token": has_moe and config.top_k > 8,
        f"{config.n_layers} layers": config.n_layers > 254,
        f"a vocabulary of {config.vocab}": config.vocab > 262144,
        f"FFN widths {sorted(widths)}": any(w % 16 or PackPlan.of(w).stages > 64 for w in widths),
    }
    found = [text for text, is_problem in problems.items() if is_problem]
    if found:
        raise BackendError(f"the GPU backends cannot run this model: {', '.join(found)}")

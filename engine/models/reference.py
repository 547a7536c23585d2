"""The forward pass in torch, fp32: the numerical reference, and the chunked prefill of every backend.

Letters: T new tokens, D hidden, H query heads, G KV heads, C head_dim, S keys visible to a chunk, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

from ..weights import ModelWeights, WeightKind
from .config import LayerSpec, ModelConfig
from .matrices import Matrices

Logits = Literal["all", "last", "none"]

# The head's rows are taken in runs, so that a vocabulary of 151,936 never stands in memory as fp32.
_HEAD_ROWS = 4096


class KvStore(Protocol):
    """Where a sequence's keys and values live. Positions are absolute and contiguous from 0."""

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> None:
        """Store k and v, (T, G, C) fp32 each (k already rotated), at `positions` (T,) int64, ascending by 1."""
        ...

    def gather(self, layer: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of positions [begin, end), (end - begin, G, C) fp32 each. Just appended ones included."""
        ...


class GrowingKv:
    """The plain store: one growing pair of tensors per layer."""

    def __init__(self, n_layers: int) -> None:
        self._keys: list[torch.Tensor | None] = [None] * n_layers
        self._values: list[torch.Tensor | None] = [None] * n_layers

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> None:
        """See KvStore; a position that is stored already drops what follows it."""
        begin = int(positions[0])
        keys, values = self._keys[layer], self._values[layer]
        self._keys[layer] = k if keys is None else torch.cat([keys[:begin], k])
        self._values[layer] = v if values is None else torch.cat([values[:begin], v])

    def gather(self, layer: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """See KvStore."""
        keys, values = self._keys[layer], self._values[layer]
        assert keys is not None and values is not None, f"nothing was appended to layer {layer}"
        return keys[begin:end], values[begin:end]


class TorchModel:
    """A model that torch can run.

    Matrices are de-quantised when a chunk comes to them; `cache_bytes` bounds what is kept as fp32 between calls.
    `use_native` lets the extension's kernels de-quantise and multiply (False: torch alone, the independent oracle).
    """

    def __init__(self, weights: ModelWeights, *, cache_bytes: int = 0, use_native: bool = True) -> None:
        self.config = weights.config
        self._weights = weights
        self._head_matrices = Matrices(cache_bytes=0, use_native=use_native)
        self._matrices = Matrices(cache_bytes=cache_bytes, use_native=use_native)
        self._vectors: dict[tuple[int, WeightKind], torch.Tensor | None] = {}
        half = self.config.head_dim // 2
        exponents = torch.arange(half, dtype=torch.float32) * 2 / self.config.head_dim
        self._frequencies = 1.0 / self.config.rope_theta**exponents  # (C/2,)

    @torch.inference_mode()
    def forward(
        self, ids: Sequence[int], kv: KvStore, *, first_position: int = 0, logits: Logits = "last"
    ) -> torch.Tensor | None:
        """Run tokens `ids` at positions first_position, first_position + 1, … after what `kv` holds already.

        Writes their keys and values to `kv`. Returns (T, vocab), (1, vocab) or None, as `logits` says, in fp32.
        """
        config, n = self.config, self.config.n_layers
        positions = torch.arange(first_position, first_position + len(ids))
        rotation = self._rotation(positions)
        x = self._weights.need(n, WeightKind.EMBED).dequantize_rows(torch.tensor(ids, dtype=torch.int64))
        for i, spec in enumerate(config.layers):
            h = self._norm(x, i, WeightKind.NORM_ATTN)
            attention = self._attention(h, i, spec, positions, rotation, kv)
            if config.parallel_block:
                x = x + attention + self._ffn(h, i, spec)
            else:
                x = x + attention
                x = x + self._ffn(self._norm(x, i, WeightKind.NORM_FFN), i, spec)
        if logits == "none":
            return None
        x = self._norm(x[-1:] if logits == "last" else x, n, WeightKind.FINAL_NORM)
        return self._head(x)

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        head = self._weights.need(self.config.n_layers, WeightKind.LM_HEAD)
        runs = [head.run(i, min(i + _HEAD_ROWS, head.rows)) for i in range(0, head.rows, _HEAD_ROWS)]
        return torch.cat([self._head_matrices.product(x, run) for run in runs], dim=1).mul_(self.config.logit_scale)

    def _attention(
        self,
        h: torch.Tensor,
        layer: int,
        spec: LayerSpec,
        positions: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        kv: KvStore,
    ) -> torch.Tensor:
        config, n_tokens = self.config, h.shape[0]
        q = self._project(h, layer, WeightKind.Q, WeightKind.Q_BIAS).view(n_tokens, config.n_heads, config.head_dim)
        k = self._project(h, layer, WeightKind.K, WeightKind.K_BIAS).view(n_tokens, config.n_kv_heads, config.head_dim)
        v = self._project(h, layer, WeightKind.V, WeightKind.V_BIAS).view(n_tokens, config.n_kv_heads, config.head_dim)
        if spec.rope:
            q, k = (rotate(t, *rotation, interleaved=config.rope_interleaved) for t in (q, k))
        kv.append(layer, k, v, positions)
        first, end = int(positions[0]), int(positions[-1]) + 1
        begin = max(0, first - config.window + 1) if spec.sliding else 0
        keys, values = kv.gather(layer, begin, end)
        mask = visible(positions, torch.arange(begin, end), config.window if spec.sliding else 0)
        o = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            keys.transpose(0, 1).unsqueeze(0),
            values.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            scale=config.attn_scale,
            enable_gqa=True,
        )
        return self._product(o.squeeze(0).transpose(0, 1).reshape(n_tokens, -1), layer, WeightKind.O)

    def _ffn(self, h: torch.Tensor, layer: int, spec: LayerSpec) -> torch.Tensor:
        if spec.moe:
            return self._experts(h, layer)
        gate, up = (self._product(h, layer, kind) for kind in (WeightKind.GATE, WeightKind.UP))
        return self._product(F.silu(gate).mul_(up), layer, WeightKind.DOWN)

    def _experts(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        config = self.config
        ids, scores = route(self._product(h, layer, WeightKind.ROUTER), config)
        out = torch.zeros_like(h)
        for e in ids.unique().tolist():
            tokens, places = (ids == e).nonzero(as_tuple=True)
            x = h[tokens]
            gate, up = (self._product(x, layer, kind, e) for kind in (WeightKind.EXPERT_GATE, WeightKind.EXPERT_UP))
            y = self._product(F.silu(gate).mul_(up), layer, WeightKind.EXPERT_DOWN, e)
            out.index_add_(0, tokens, y * scores[tokens, places].unsqueeze(1))
        return out

    def _project(self, h: torch.Tensor, layer: int, kind: WeightKind, bias: WeightKind) -> torch.Tensor:
        return self._matrices.product(h, self._weights.need(layer, kind), 0, self._vector(layer, bias))

    def _product(self, h: torch.Tensor, layer: int, kind: WeightKind, e: int = 0) -> torch.Tensor:
        return self._matrices.product(h, self._weights.need(layer, kind), e)

    def _norm(self, x: torch.Tensor, layer: int, kind: WeightKind) -> torch.Tensor:
        weight = self._vector(layer, kind)
        if self.config.layer_norm:
            return F.layer_norm(x, x.shape[-1:], weight, None, self.config.eps)
        return F.rms_norm(x, x.shape[-1:], weight, self.config.eps)

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, (T, 1, C/2) fp32 each."""
        angles = (positions.float().unsqueeze(1) * self._frequencies).unsqueeze(1)
        return angles.cos(), angles.sin()

    def _vector(self, layer: int, kind: WeightKind) -> torch.Tensor | None:
        slot = (layer, kind)
        if slot not in self._vectors:
            weight = self._weights.get(layer, kind)
            self._vectors[slot] = None if weight is None else weight.dequantize().view(-1)
        return self._vectors[slot]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """RoPE in fp32 on x (T, heads, C): pairs (2i, 2i + 1) when interleaved, (i, i + C/2) otherwise."""
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def visible(queries: torch.Tensor, keys: torch.Tensor, window: int) -> torch.Tensor:
    """(T, S) bool: key not later than query and, with a window, among its last `window` keys (itself included)."""
    distance = queries.unsqueeze(1) - keys.unsqueeze(0)
    return (distance >= 0) & (distance < window) if window else distance >= 0


def route(logits: torch.Tensor, config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The chosen experts (T, top_k) int64 and their weights (T, top_k): largest logits first, ties to the lower id."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, : config.top_k]
    scores = torch.softmax(logits, dim=-1) if config.softmax_router else torch.sigmoid(logits)
    chosen = scores.gather(1, ids)
    return ids, chosen / chosen.sum(dim=-1, keepdim=True) if config.norm_topk else chosen


def full_logits(model: TorchModel, ids: Sequence[int]) -> torch.Tensor:
    """The plain reference: (T, vocab) logits of a whole sequence in one pass."""
    logits = model.forward(ids, GrowingKv(model.config.n_layers), logits="all")
    assert logits is not None
    return logits

"""A small random model whose opcodes can be run one at a time, with NumPy copies of all its weights.

Letters as in docs/tasks.md. Layer 0 is dense, full attention; layer 1 slides and routes to experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pointcode_local.engine import _native
from pointcode_local.engine._native import Opcode, WeightFormat, WeightKind
from pointcode_local.engine.tasks import make_tasks

from .packed import Floats, Packed, random_weight

N_PAGES = 24
PAGE = 64
MAX_SPLITS = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes and constants of the bench model; widths are multiples of 32 so that every block format of 32 fits."""

    hidden: int = 64
    n_heads: int = 6
    n_kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 160
    expert_ffn: int = 96
    n_experts: int = 8
    top_k: int = 3
    vocab: int = 104
    window: int = 70
    parallel_block: bool = True
    rope_interleaved: bool = True
    layer_norm: bool = False
    norm_topk: bool = False
    softmax_router: bool = False
    bias: bool = True
    format: WeightFormat = WeightFormat.F32
    logit_scale: float = 0.5


_CONSTANTS = {"eps": 1e-3, "rope_theta": 500.0, "attn_scale": 0.2}  # attn_scale on purpose not C^-0.5


class Model:
    """Random weights: read-only, since the tests of one kind of model share them."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes = s = sizes
        self.weights: dict[tuple[int, WeightKind], Packed] = {}
        self.shape = model = _native.ModelShape()
        self._rng = np.random.default_rng([seed, 1])
        for name in (
            *("hidden", "n_heads", "n_kv_heads", "head_dim", "vocab", "n_experts", "top_k", "window", "logit_scale"),
            *("parallel_block", "rope_interleaved", "layer_norm", "norm_topk", "softmax_router"),
        ):
            setattr(model, name, getattr(s, name))
        for name, value in _CONSTANTS.items():
            setattr(model, name, value)
        model.n_layers = 2
        model.layers = [
            _native.LayerShape(rope=True, sliding=False, moe=False, intermediate=s.ffn),
            _native.LayerShape(rope=True, sliding=True, moe=True, intermediate=s.expert_ffn),
        ]
        q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
        for layer in (0, 1):
            for kind, rows, cols in (
                (WeightKind.Q, q, s.hidden),
                (WeightKind.K, kv, s.hidden),
                (WeightKind.V, kv, s.hidden),
                (WeightKind.O, s.hidden, q),
            ):
                self._add(layer, kind, rows, cols)
            for kind in (WeightKind.NORM_ATTN, WeightKind.NORM_FFN):
                self._add(layer, kind, 1, s.hidden, format=WeightFormat.F32)
            for kind, n in ((WeightKind.Q_BIAS, q), (WeightKind.K_BIAS, kv), (WeightKind.V_BIAS, kv)):
                if s.bias:
                    self._add(layer, kind, 1, n, format=WeightFormat.F32)
        self._add(0, WeightKind.GATE, s.ffn, s.hidden)
        self._add(0, WeightKind.UP, s.ffn, s.hidden)
        self._add(0, WeightKind.DOWN, s.hidden, s.ffn)
        self._add(1, WeightKind.ROUTER, s.n_experts, s.hidden)
        self._add(1, WeightKind.EXPERT_GATE, s.expert_ffn, s.hidden, s.n_experts)
        self._add(1, WeightKind.EXPERT_UP, s.expert_ffn, s.hidden, s.n_experts)
        self._add(1, WeightKind.EXPERT_DOWN, s.hidden, s.expert_ffn, s.n_experts)
        self._add(2, WeightKind.FINAL_NORM, 1, s.hidden, format=WeightFormat.F32)
        self._add(2, WeightKind.LM_HEAD, s.vocab, s.hidden)
        self._add(2, WeightKind.EMBED, s.vocab, s.hidden)

    def _add(
        self,
        layer: int,
        kind: WeightKind,
        rows: int,
        cols: int,
        count: int = 1,
        format: WeightFormat | None = None,
    ) -> None:
        packed = random_weight(self._rng, self.sizes.format if format is None else format, rows, cols, count, scale=0.3)
        self.weights[layer, kind] = packed
        self.shape.set_weight(layer, kind, packed.weight)


@cache
def model_of(sizes: Sizes, seed: int) -> Model:
    """The same sizes and seed always give the same weights; making them takes longer than most tests."""
    return Model(sizes, seed)


class Bench:
    """The model, its KV pages and a one-processor backend. `run` executes a single task on the buffers as they are."""

    def __init__(self, sizes: Sizes, n_rows: int, *, seed: int = 0, **backend_options: object) -> None:
        self.sizes = sizes
        self.n_rows = n_rows
        self.rng = np.random.default_rng(seed)
        self.model = model_of(sizes, seed)
        shape = (2, N_PAGES, sizes.n_kv_heads, PAGE, sizes.head_dim)
        self.k: Floats = self.rng.standard_normal(shape).astype(np.float32)
        self.v: Floats = self.rng.standard_normal(shape).astype(np.float32)
        k_pages, v_pages = ([int(cache[i].ctypes.data) for i in range(2)] for cache in (self.k, self.v))
        self.backend = _native.CpuBackend(
            self.model.shape,
            k_pages,
            v_pages,
            [None] * 8,
            max_splits=MAX_SPLITS,
            owners=self,
            **backend_options,  # pyright: ignore[reportArgumentType]
        )
        positions = self.rng.integers(0, 2 * PAGE, n_rows)
        positions[0] = 2 * PAGE - 1  # the last place of a page
        self.set_positions([int(p) for p in positions])

    def set_positions(self, positions: list[int]) -> None:
        """Gives the rows new positions; row r owns pages 3r, 3r + 1 and 3r + 2 in a scrambled order."""
        self.positions = positions
        self.pages = [np.array([3 * r + 2, 3 * r, 3 * r + 1], np.int32) for r in range(self.n_rows)]
        self.rows = [
            _native.StepRow(token=r, position=p, full_pages=pages, sliding_pages=pages)
            for r, (p, pages) in enumerate(zip(positions, self.pages, strict=True))
        ]

    def w(self, layer: int, kind: WeightKind) -> NDArray[np.float64]:
        """The weight's values: (count, rows, cols), without axes of length 1 in front."""
        values = self.model.weights[layer, kind].values.astype(np.float64)
        return values[0] if len(values) == 1 else values

    def buffer(self, name: str) -> Floats:
        """The buffer's live rows, over the backend's own memory."""
        whole = self.backend.buffer(name)
        return whole[: self.n_rows * (self.sizes.top_k if name == "moe_in" else 1)]

    def fill(self, *names: str) -> None:
        """Random values into the live rows of buffers, and NaN into the others, which nobody may read."""
        for name in names:
            self.backend.buffer(name)[:] = np.nan
            live = self.buffer(name)
            live[:] = self.rng.standard_normal(live.shape)

    def poison(self, *names: str) -> None:
        """NaN into whole buffers: what a task must write."""
        for name in names:
            self.backend.buffer(name)[:] = np.nan

    def run(self, opcode: Opcode, layer: int, **fields: int) -> None:
        """Runs one task with these descriptor fields."""
        task = make_tasks(int(opcode), layer, 1, n_rows=self.n_rows)
        for name, value in fields.items():
            task[name] = value
        self.backend.run_lists(self.rows, ([task], 1, 1))

    def normalised(self, x: Floats, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """RMSNorm or LayerNorm of rows, in fp64."""
        y = x.astype(np.float64)
        if self.sizes.layer_norm:
            y = y - y.mean(axis=-1, keepdims=True)
        return y / np.sqrt((y * y).mean(axis=-1, keepdims=True) + _CONSTANTS["eps"]) * weight.reshape(-1)

    def rotated(self, heads: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        """RoPE on (heads, C)."""
        half = self.sizes.head_dim // 2
        angle = position / _CONSTANTS["rope_theta"] ** (2 * np.arange(half) / self.sizes.head_dim)
        cos, sin = np.cos(angle), np.sin(angle)
        out = np.empty_like(heads)
        first = slice(0, None, 2) if self.sizes.rope_interleaved else slice(0, half)
        second = slice(1, None, 2) if self.sizes.rope_interleaved else slice(half, None)
        a, b = heads[:, first], heads[:, second]
        out[:, first], out[:, second] = a * cos - b * sin, b * cos + a * sin
        return out

    def keys_values(self, layer: int, row: int, begin: int, end: int) -> tuple[Floats, Floats]:
        """K and V of positions [begin, end) of a row: (G, tokens, C) each."""
        both = (
            np.concatenate([cache[layer, page] for page in self.pages[row]], axis=1)[:, begin:end]
            for cache in (self.k, self.v)
        )
        k, v = both
        return k, v


def variants() -> list[Sizes]:
    """Models that differ in every constant an opcode looks at."""
    base = Sizes()
    return [
        base,
        replace(base, rope_interleaved=False, parallel_block=False, bias=False, format=WeightFormat.BF16),
        replace(base, layer_norm=True, norm_topk=True, format=WeightFormat.Q8_0, window=0),
        replace(
            base, softmax_router=True, norm_topk=True, n_experts=20, top_k=5, format=WeightFormat.Q4_1, n_kv_heads=1
        ),
        replace(
            base, head_dim=64, n_heads=20, n_kv_heads=2, hidden=96, rope_interleaved=False, format=WeightFormat.Q5_0
        ),
    ]

"""Weights from files to the device: read in large blocks, copied, and packed many matrices at a time into their place.

Nothing is held twice on the card: blocks of a few dozen megabytes pass through (staging.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from ..errors import ModelError
from ..models.config import LayerSpec, ModelConfig, WeightFormat, WeightKind
from ..weights import ModelWeights, StoredMatrices
from .device_weights import UNITS, DeviceLayer, DeviceMatrix, DeviceModel, empty_model
from .packing import TILE, group_tiles, pack_half_rows, pack_rows
from .staging import BLOCK_BYTES, Piece, StagingTimes, n_readers, staged

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_DTYPES = {
    WeightFormat.F32: torch.float32,
    WeightFormat.F16: torch.float16,
    WeightFormat.BF16: torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load took. `empty_s`: memory for the model; `plan_s`: what goes where; `times`: the rest, in parts."""

    n_bytes: int
    seconds: float
    empty_s: float
    plan_s: float
    times: StagingTimes

    @property
    def gb_per_s(self) -> float:
        """Decimal gigabytes a second."""
        return self.n_bytes / max(self.seconds, 1e-9) / 1e9

    def describe(self) -> str:
        """One line for people."""
        times = self.times
        return (
            f"loaded {self.n_bytes / 1e9:.1f} GB in {self.seconds:.2f} s at {self.gb_per_s:.2f} GB/s: memory "
            f"{self.empty_s:.2f} s, plan {self.plan_s:.2f} s, waiting for files {times.starved_s:.2f} s; "
            f"{times.n_readers} readers, together: read {times.read_s:.2f} s, wait for the card {times.card_s:.2f} s, "
            f"pin {times.pin_s:.2f} s"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Bank:
    """Matrices of the files and where they go: tiles (E, M, J, 256), or rows (E, rows, K). A half is that of gate or
    up: rows 8 half .. 8 half + 7 of every 16."""

    name: str
    source: StoredMatrices
    target: torch.Tensor
    packed: bool
    half: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the files. Raises ModelError for a blocked format."""
        dtype = _DTYPES.get(self.source.format)
        if dtype is None:
            raise ModelError(f"{self.name}: {self.source.format.name} cannot be loaded to the GPU as bf16")
        return dtype

    def put(self, matrices: slice, begin: int, rows: torch.Tensor) -> None:
        """Puts rows (E, n, K) of any plain type in place, those from row `begin` on of the chosen matrices."""
        rows = rows.to(torch.bfloat16)
        n = rows.shape[1]
        if self.half is None and self.packed:
            short = -n % TILE  # the last tile of a matrix may not be full
            padded = torch.nn.functional.pad(rows, (0, 0, 0, short)) if short else rows
            pack_rows(self.target[matrices, begin // TILE : -(-(begin + n) // TILE)], padded)
        elif self.half is None:
            self.target[matrices, begin : begin + n] = rows
        elif self.packed:
            pack_half_rows(self.target[matrices, begin // UNITS : (begin + n) // UNITS], rows, self.half)
        else:
            runs = self.target.unflatten(1, (-1, 2, UNITS))[matrices, begin // UNITS : (begin + n) // UNITS, self.half]
            runs.copy_(rows.unflatten(1, (-1, UNITS)))


def load_model(
    weights: ModelWeights,
    device: torch.device,
    *,
    packed: bool = True,
    progress: Progress | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> tuple[DeviceModel, LoadReport]:
    """Loads everything; raises ModelError for blocked formats and for files that cannot be read to their end."""
    started_s = time.perf_counter()
    model = empty_model(weights.config, packed=packed, device=device)
    empty_s = time.perf_counter() - started_s
    pieces = list(_pieces(weights, model, block_bytes))
    plan_s = time.perf_counter() - started_s - empty_s
    times = StagingTimes(n_readers())
    total, done = sum(piece.n_bytes for piece in pieces), 0
    with closing(staged(pieces, device, times, block_bytes=block_bytes)) as stream:
        for piece, values in stream:
            piece.put(values)
            done += piece.n_bytes
            if progress is not None:
                progress(done, total)
    return model, LoadReport(done, time.perf_counter() - started_s, empty_s, plan_s, times)


# ------------------------------------------------------------------ where everything goes
def _pieces(weights: ModelWeights, model: DeviceModel, block_bytes: int) -> Iterator[Piece]:
    config = weights.config
    for i, (spec, layer) in enumerate(zip(config.layers, model.layers, strict=True)):
        yield _vector(weights, i, WeightKind.NORM_ATTN, layer.norm)
        for bank in _attention(weights, i, layer, config):
            yield from _cut(bank, block_bytes)
        yield from _side_by_side(list(_ffn(weights, i, spec, layer)), block_bytes)
    n = config.n_layers
    yield _vector(weights, n, WeightKind.FINAL_NORM, model.final_norm)
    yield from _cut(_plain(weights, n, WeightKind.EMBED, model.embed), block_bytes)
    if model.head is not model.embed:
        yield from _cut(_plain(weights, n, WeightKind.LM_HEAD, model.head), block_bytes)


def _plain(weights: ModelWeights, layer: int, kind: WeightKind, target: DeviceMatrix, half: int | None = None) -> _Bank:
    name = f"layer {layer} {kind.name}"
    return _Bank(name, weights.stored(layer, kind), target.data, target.packed, half)


def _ffn(weights: ModelWeights, i: int, spec: LayerSpec, layer: DeviceLayer) -> Iterator[_Bank]:
    """Gate, up, down of a layer, and its router."""
    gate, up, down = WeightKind.GATE, WeightKind.UP, WeightKind.DOWN
    if spec.moe:
        gate, up, down = WeightKind.EXPERT_GATE, WeightKind.EXPERT_UP, WeightKind.EXPERT_DOWN
    yield _plain(weights, i, gate, layer.upgate, 0)
    yield _plain(weights, i, up, layer.upgate, 1)
    yield _plain(weights, i, down, layer.down)
    if layer.router is not None:
        yield _plain(weights, i, WeightKind.ROUTER, layer.router)


def _attention(weights: ModelWeights, i: int, layer: DeviceLayer, config: ModelConfig) -> Iterator[_Bank]:
    """Q, K and V as a matrix per KV head, then O."""
    groups, heads, dims = config.n_kv_heads, config.n_heads // config.n_kv_heads, config.head_dim
    qkv = layer.qkv
    if qkv.packed:
        targets = group_tiles(qkv.data, groups, dims, config.n_heads)
    else:
        parts = qkv.data[0].view(groups, (heads + 2) * dims, qkv.k).split((heads * dims, dims, dims), 1)
        targets = dict(zip("qkv", parts, strict=True))
    for name, kind in (("q", WeightKind.Q), ("k", WeightKind.K), ("v", WeightKind.V)):
        yield _Bank(f"layer {i} {kind.name}", weights.stored(i, kind).split(groups), targets[name], qkv.packed)
    yield _plain(weights, i, WeightKind.O, layer.o)


def _side_by_side(banks: Sequence[_Bank], block_bytes: int) -> Iterator[Piece]:
    """The same few matrices of every bank, then the next few, as they lie in most files. Banks may end early."""
    count = len(banks[0].source.places)
    step = max(1, block_bytes // sum(bank.source.matrix_bytes for bank in banks[:3]))
    for first in range(0, count, step):
        for bank in banks:
            yield from _cut(bank, block_bytes, first, first + step)


def _cut(bank: _Bank, block_bytes: int, first: int = 0, last: int | None = None) -> Iterator[Piece]:
    """Matrices [first, last) of a bank in pieces of at most `block_bytes`: whole matrices, or runs of rows of one."""
    source = bank.source
    stop = min(len(source.places), len(source.places) if last is None else last)
    n = max(1, block_bytes // source.matrix_bytes)
    step = source.rows
    if source.matrix_bytes > block_bytes:
        step = max(block_bytes // source.row_bytes // TILE, 1) * TILE
    for e in range(first, stop, n):
        for begin in range(0, source.rows, step):
            yield _piece(bank, slice(e, min(e + n, stop)), begin, min(begin + step, source.rows))


def _piece(bank: _Bank, matrices: slice, begin: int, end: int) -> Piece:
    source = bank.source
    extents = [source.extent(e, begin, end) for e in range(matrices.start, matrices.stop)]
    shape = (len(extents), end - begin, source.cols)
    return Piece(extents, bank.dtype, shape, lambda rows: bank.put(matrices, begin, rows))


def _vector(weights: ModelWeights, layer: int, kind: WeightKind, target: torch.Tensor) -> Piece:
    """A norm: fp32, not through bf16."""
    bank = _Bank(f"layer {layer} {kind.name}", weights.stored(layer, kind), target, packed=False)
    shape = (bank.source.cols,)
    return Piece([bank.source.extent(0, 0, 1)], bank.dtype, shape, target.copy_)

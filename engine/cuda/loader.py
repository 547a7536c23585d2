"""Weights from files to the device: each matrix is staged in pinned memory, copied, and packed into its final place.

Nothing is held twice on the card. Reader threads copy the next matrices out of the file's map into a few staging
blocks while the card takes and packs the ones before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from ..errors import ModelError
from ..models.config import ModelConfig, WeightFormat, WeightKind
from ..models.matrices import readable
from ..weights import ModelWeights
from .device_weights import UNITS, DeviceLayer, DeviceMatrix, DeviceModel, empty_model
from .packing import group_tiles, pack_grouped, pack_half_rows, pack_rows

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_DTYPES = {
    WeightFormat.F32: torch.float32,
    WeightFormat.F16: torch.float16,
    WeightFormat.BF16: torch.bfloat16,
}
_RUN_BYTES = 64 << 20  # a longer matrix is staged in runs of rows
_READERS = 4
_AHEAD = 6


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load took."""

    n_bytes: int
    seconds: float

    @property
    def gb_per_s(self) -> float:
        """Decimal gigabytes a second."""
        return self.n_bytes / max(self.seconds, 1e-9) / 1e9


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Rows [begin, end) of one stored matrix, and what to do with them on the device."""

    rows: torch.Tensor  # (n, K) of the file's type, over its map
    put: Callable[[torch.Tensor], None]  # takes (n, K) bf16 on the device


def load_model(
    weights: ModelWeights, device: torch.device, *, packed: bool = True, progress: Progress | None = None
) -> tuple[DeviceModel, LoadReport]:
    """Loads everything; raises ModelError for blocked formats."""
    started_s = time.perf_counter()
    model = empty_model(weights.config, packed=packed, device=device)
    total = weights.stored_bytes
    done = 0
    for piece, staged in _staged(_pieces(weights, model), device):
        piece.put(staged.to(device, non_blocking=True).to(torch.bfloat16))
        done += piece.rows.nbytes
        if progress is not None:
            progress(done, total)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return model, LoadReport(done, time.perf_counter() - started_s)


# ------------------------------------------------------------------ staging
def _staged(pieces: Iterator[_Piece], device: torch.device) -> Iterator[tuple[_Piece, torch.Tensor]]:
    """Every piece with its rows in memory that the card can read fast."""
    if device.type != "cuda":
        yield from ((piece, piece.rows) for piece in pieces)
        return
    blocks = [torch.empty(_RUN_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_AHEAD)]
    uploaded = [torch.cuda.Event() for _ in blocks]
    waiting: deque[tuple[_Piece, int, Future[torch.Tensor]]] = deque()
    turn = 0
    with ThreadPoolExecutor(_READERS, "weights") as readers:

        def deliver() -> Iterator[tuple[_Piece, torch.Tensor]]:
            piece, block, copied = waiting.popleft()
            yield piece, copied.result()
            uploaded[block].record()

        for piece in pieces:
            if len(waiting) == _AHEAD:
                yield from deliver()
            block = turn % _AHEAD
            turn += 1
            uploaded[block].synchronize()
            waiting.append((piece, block, readers.submit(_copy, piece.rows, blocks[block])))
        while waiting:
            yield from deliver()


def _copy(rows: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    staged = block[: rows.nbytes].view(rows.dtype).view(rows.shape)
    return staged.copy_(rows)


# ------------------------------------------------------------------ where everything goes
def _pieces(weights: ModelWeights, model: DeviceModel) -> Iterator[_Piece]:
    config = weights.config
    for i, (spec, layer) in enumerate(zip(config.layers, model.layers, strict=True)):
        yield from _attention(weights, i, layer, config)
        yield _vector(weights, i, WeightKind.NORM_ATTN, layer.norm)
        if spec.moe:
            assert layer.router is not None
            yield from _plain(weights, i, WeightKind.ROUTER, layer.router)
            kinds = (WeightKind.EXPERT_GATE, WeightKind.EXPERT_UP, WeightKind.EXPERT_DOWN)
        else:
            kinds = (WeightKind.GATE, WeightKind.UP, WeightKind.DOWN)
        for half, kind in enumerate(kinds[:2]):
            yield from _halves(weights, i, kind, layer.upgate, half)
        yield from _plain(weights, i, kinds[2], layer.down)
    n = config.n_layers
    yield _vector(weights, n, WeightKind.FINAL_NORM, model.final_norm)
    yield from _plain(weights, n, WeightKind.EMBED, model.embed)
    if model.head is not model.embed:
        yield from _plain(weights, n, WeightKind.LM_HEAD, model.head)


def _runs(
    weights: ModelWeights, layer: int, kind: WeightKind, multiple: int
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(matrix, first row, rows) of a stored weight, in runs of a multiple of `multiple` rows."""
    for e, tensor in enumerate(weights.matrices(layer, kind)):
        dtype = _DTYPES.get(tensor.format)
        if dtype is None:
            raise ModelError(f"layer {layer} {kind.name}: {tensor.format.name} cannot be loaded to the GPU as bf16")
        matrix = readable(tensor.matrix()).view(dtype).view(tensor.rows, tensor.cols)
        step = max(_RUN_BYTES // tensor.row_bytes // multiple * multiple, multiple)
        for begin in range(0, tensor.rows, step):
            yield e, begin, matrix[begin : begin + step]


def _plain(weights: ModelWeights, layer: int, kind: WeightKind, target: DeviceMatrix) -> Iterator[_Piece]:
    for e, begin, rows in _runs(weights, layer, kind, 16):
        yield _Piece(rows, lambda x, e=e, begin=begin: _put_rows(target, e, begin, x))


def _put_rows(target: DeviceMatrix, e: int, begin: int, rows: torch.Tensor) -> None:
    if not target.packed:
        target.data[e, begin : begin + rows.shape[0]] = rows
        return
    short = -rows.shape[0] % 16  # the last tile of a matrix may not be full
    padded = torch.nn.functional.pad(rows, (0, 0, 0, short)) if short else rows
    pack_rows(target.data[e, begin // 16 :][: padded.shape[0] // 16], padded)


def _halves(weights: ModelWeights, layer: int, kind: WeightKind, target: DeviceMatrix, half: int) -> Iterator[_Piece]:
    for e, begin, rows in _runs(weights, layer, kind, UNITS):
        yield _Piece(rows, lambda x, e=e, begin=begin: _put_half(target, e, begin, x, half))


def _put_half(target: DeviceMatrix, e: int, begin: int, rows: torch.Tensor, half: int) -> None:
    n, first = rows.shape[0] // UNITS, begin // UNITS
    if target.packed:
        pack_half_rows(target.data[e, first : first + n], rows, half)
    else:
        runs = target.data[e].view(-1, 2, UNITS, target.k)
        runs[first : first + n, half] = rows.view(n, UNITS, target.k)


def _attention(weights: ModelWeights, layer: int, target: DeviceLayer, config: ModelConfig) -> Iterator[_Piece]:
    for name, kind in (("q", WeightKind.Q), ("k", WeightKind.K), ("v", WeightKind.V)):
        per_group = config.head_dim * (config.n_heads // config.n_kv_heads if name == "q" else 1)
        tensor = weights.load(layer, kind)
        dtype = _DTYPES.get(tensor.format)
        if dtype is None:
            raise ModelError(f"layer {layer} {kind.name}: {tensor.format.name} cannot be loaded to the GPU as bf16")
        rows = readable(tensor.matrix()).view(dtype).view(tensor.rows, tensor.cols)
        for g in range(config.n_kv_heads):
            part = rows[g * per_group : (g + 1) * per_group]
            yield _Piece(part, lambda x, g=g, name=name: _put_group(target.qkv, config, name, g, x))
    yield from _plain(weights, layer, WeightKind.O, target.o)


def _put_group(target: DeviceMatrix, config: ModelConfig, name: str, g: int, rows: torch.Tensor) -> None:
    if target.packed:
        view = group_tiles(target.data, config.n_kv_heads, config.head_dim, config.n_heads)[name]
        pack_grouped(view[g : g + 1], rows)
        return
    dims, heads = config.head_dim, config.n_heads // config.n_kv_heads
    first = {"q": 0, "k": heads, "v": heads + 1}[name] * dims
    grouped = target.data[0].view(config.n_kv_heads, -1, target.k)
    grouped[g, first : first + rows.shape[0]] = rows


def _vector(weights: ModelWeights, layer: int, kind: WeightKind, target: torch.Tensor) -> _Piece:
    row = weights.load(layer, kind).dequantize()
    target.copy_(row.view(-1))  # fp32, not through bf16
    return _Piece(row, lambda _x: None)

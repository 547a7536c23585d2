"""Random weights of every format and their values, by the gguf package: a reference that shares no code with ours."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from pointcode_local.engine import _native
from pointcode_local.engine._native import WeightFormat

Floats = NDArray[np.float32]

_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
_HALVES_AT = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """`stored` (count * rows, row bytes) uint8 keeps the memory of `weight`; `values` (count, rows, cols) fp32."""

    stored: NDArray[np.uint8]
    values: Floats
    weight: _native.Weight


def is_k_format(format: WeightFormat) -> bool:
    """Whether a block has 256 values."""
    return format.name.endswith("_K")


def random_weight(
    rng: np.random.Generator, format: WeightFormat, rows: int, cols: int, count: int = 1, scale: float = 0.1
) -> Packed:
    """A weight whose codes are uniform; block formats get random bytes and sensible fp16 scales, some subnormal."""
    n = count * rows
    if format == WeightFormat.F32:
        values = (rng.standard_normal((n, cols)) * scale).astype(np.float32)
        stored = values.view(np.uint8)
    elif format == WeightFormat.F16:
        halves = (rng.standard_normal((n, cols)) * scale).astype(np.float16)
        stored, values = halves.view(np.uint8), halves.astype(np.float32)
    elif format == WeightFormat.BF16:
        words = ((rng.standard_normal((n, cols)) * scale).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        stored, values = words.view(np.uint8), (words.astype(np.uint32) << 16).view(np.float32)
    else:
        stored = rng.integers(0, 256, (n, _native.packed_row_bytes(format, cols)), dtype=np.uint8)
        blocks = stored.reshape(n, -1, _BLOCK_BYTES[format.name])
        for at in _HALVES_AT[format.name]:
            halves = (10.0 ** rng.uniform(-5, -2, blocks.shape[:2])).astype(np.float16)
            blocks[:, :, at : at + 2] = halves[..., None].view(np.uint8)
        kind = gguf.GGMLQuantizationType[format.name]
        values = gguf.dequantize(stored, kind).astype(np.float32).reshape(n, cols)
    stored = np.ascontiguousarray(stored)
    weight = _native.Weight(format, stored.ctypes.data, rows, cols, count)
    return Packed(stored, values.reshape(count, rows, cols), weight)

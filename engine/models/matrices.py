"""Products with stored matrices, for the torch forward: de-quantised when a chunk comes to them, or used as they are.

Few rows multiply the stored blocks directly, more rows pay for de-quantising the matrix once and use torch's GEMM
(measured: they meet near 16 rows on 2 cores with AVX-512). Without the native extension everything goes through torch.
"""

from __future__ import annotations

import ctypes
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F

from ..tensor_files import Bytes
from ..weights import WeightFormat, WeightTensor

try:
    from .. import _native
except ImportError:  # the extension was not built
    _native = None

_DIRECT_ROWS = 16


class Matrices:
    """`cache_bytes` bounds what is kept de-quantised; the first matrices that come are kept, as far as that reaches."""

    def __init__(self, *, cache_bytes: int, use_native: bool) -> None:
        self._native: ModuleType | None = _native if use_native else None
        self._cache_left = cache_bytes
        self._cache: dict[tuple[int, int], torch.Tensor] = {}

    def product(
        self, x: torch.Tensor, weight: WeightTensor, e: int = 0, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x (T, cols) times matrix e transposed, plus bias: (T, rows) fp32."""
        kept = self._cache.get((id(weight), e))
        if kept is None and self._native is not None and x.shape[0] <= _DIRECT_ROWS:
            y = self._native.linear(_described(weight, self._native), _array(x), e, torch.get_num_threads())
            product = torch.from_numpy(y)
            return product if bias is None else product.add_(bias)
        return F.linear(x, self._matrix(weight, e) if kept is None else kept, bias)

    def _matrix(self, weight: WeightTensor, e: int) -> torch.Tensor:
        """(rows, cols) fp32. It may be the file's own memory: not to be written to."""
        if weight.format == WeightFormat.F32:
            return _view_f32(weight, e)
        matrix = self._dequantized(weight, e)
        if matrix.nbytes <= self._cache_left:
            self._cache_left -= matrix.nbytes
            self._cache[id(weight), e] = matrix
        return matrix

    def _dequantized(self, weight: WeightTensor, e: int) -> torch.Tensor:
        if self._native is None:
            return weight.dequantize(e)
        out = np.empty((weight.rows, weight.cols), np.float32)
        self._native.dequantize(_described(weight, self._native), out, e, torch.get_num_threads())
        return torch.from_numpy(out)


def _described(weight: WeightTensor, native: ModuleType) -> object:
    return native.Weight(
        native.WeightFormat(int(weight.format)),
        weight.address,
        weight.rows,
        weight.cols,
        weight.count,
        weight.row_bytes,
        weight.matrix_bytes,
    )


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


def _view_f32(weight: WeightTensor, e: int) -> torch.Tensor:
    return readable(weight.matrix(e)).view(torch.float32).view(weight.rows, weight.cols)


def readable(data: Bytes) -> torch.Tensor:
    """A tensor over the same memory, which may be a read-only map: not to be written to. `data` must outlive it."""
    flat = data.reshape(-1)
    buffer = (ctypes.c_uint8 * flat.size).from_address(flat.ctypes.data)
    return torch.frombuffer(buffer, dtype=torch.uint8)

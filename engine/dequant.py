"""From stored blocks to fp32: one function per format, vectorised in torch.

Block layouts are GGUF's (ggml-common.h): d and m are fp16; nibbles hold value i in the low and value i + 16 (or i + 32)
in the high half. Checked bit for bit against the `gguf` package in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from .models.config import WeightFormat
from .tensor_files import BLOCK, PLAIN, Bytes

# Rows are converted in runs of about this many values, so that the temporaries stay in the cache.
_RUN_VALUES = 1 << 17


def dequantize_rows(data: Bytes, format: WeightFormat, cols: int) -> torch.Tensor:
    """(rows, row_bytes) uint8 to (rows, cols) fp32. Read-only input is fine; a fresh tensor comes back."""
    rows = data.shape[0]
    if format in PLAIN:
        return torch.from_numpy(PLAIN[format](np.ascontiguousarray(data))).view(rows, cols)
    values, size = BLOCK[format]
    blocks_per_row = cols // values
    blocks = torch.from_numpy(np.array(data)).view(rows * blocks_per_row, size)
    out = torch.empty(rows * blocks_per_row, values)
    convert = _BLOCKS[format]
    run = max(1, _RUN_VALUES // values)
    for i in range(0, blocks.shape[0], run):
        convert(blocks[i : i + run], out[i : i + run])
    return out.view(rows, cols)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The fp16 at byte `at` of every block, as (n, 1) fp32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, out: torch.Tensor) -> None:
    """(n, w) bytes to (n, 2w): low halves, then high halves."""
    width = packed.shape[1]
    out[:, :width] = packed & 15
    out[:, width:] = packed >> 4


def _bit_table() -> torch.Tensor:
    """Byte to eight bytes, each 16 where the bit is set, packed into one int64."""
    bits = (np.arange(256, dtype=np.uint8)[:, None] >> np.arange(8, dtype=np.uint8)) & 1
    return torch.from_numpy((bits * 16).astype(np.uint8)).view(torch.int64).view(256)


_BITS = _bit_table()


def _fives(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The 32 five-bit values of every block as (n, 32) uint8; their fifth bits lie at `at`, the rest behind."""
    high = _BITS[blocks[:, at : at + 4].to(torch.int32)].view(torch.uint8)
    packed = blocks[:, at + 4 : at + 20]
    high[:, :16] |= packed & 15
    high[:, 16:] |= packed >> 4
    return high


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8))
    out.mul_(_half(blocks, 0))


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 2:], out)
    out.sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    _nibbles(blocks[:, 4:], out)
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(_fives(blocks, 2))
    out.sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(_fives(blocks, 4))
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 8 scales and 8 minima of a Q4_K or Q5_K block, as (n, 8, 1) fp32 each, times d and dmin.

    Six bits each in 12 bytes: the first four lie whole in bytes 0-3 and 4-7; of the last four the low nibbles lie in
    bytes 8-11 and the top two bits in the top of bytes 0-7.
    """
    packed = blocks[:, 4:16]
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([a & 63, (c & 15) | ((a >> 6) << 4)], dim=1)
    minima = torch.cat([b & 63, (c >> 4) | ((b >> 6) << 4)], dim=1)
    return (scales.float() * _half(blocks, 0)).unsqueeze(2), (minima.float() * _half(blocks, 2)).unsqueeze(2)


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, minima = _k_scales(blocks)
    packed = blocks[:, 16:].view(-1, 4, 32)
    pairs = out.view(-1, 4, 2, 32)
    pairs[:, :, 0] = packed & 15
    pairs[:, :, 1] = packed >> 4
    out.view(-1, 8, 32).mul_(scales).sub_(minima)


def _q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, minima = _k_scales(blocks)
    high = blocks[:, 16:48]
    packed = blocks[:, 48:].view(-1, 4, 32)
    groups = out.view(-1, 8, 32)
    for j in range(4):
        groups[:, 2 * j] = (packed[:, j] & 15) | (((high >> (2 * j)) & 1) << 4)
        groups[:, 2 * j + 1] = (packed[:, j] >> 4) | (((high >> (2 * j + 1)) & 1) << 4)
    groups.mul_(scales).sub_(minima)


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    low = blocks[:, :128].view(-1, 2, 2, 32)  # (n, half, pair, 32)
    high = blocks[:, 128:192].view(-1, 2, 32)
    groups = out.view(-1, 2, 4, 32)
    for pair in range(2):
        groups[:, :, pair] = (low[:, :, pair] & 15) | (((high >> (2 * pair)) & 3) << 4)
        groups[:, :, 2 + pair] = (low[:, :, pair] >> 4) | (((high >> (4 + 2 * pair)) & 3) << 4)
    scales = blocks[:, 192:208].view(torch.int8).float() * _half(blocks, 208)
    out.view(-1, 16, 16).sub_(32).mul_(scales.unsqueeze(2))


_BLOCKS: Mapping[WeightFormat, Callable[[torch.Tensor, torch.Tensor], None]] = {
    WeightFormat.Q8_0: _q8_0,
    WeightFormat.Q4_0: _q4_0,
    WeightFormat.Q4_1: _q4_1,
    WeightFormat.Q5_0: _q5_0,
    WeightFormat.Q5_1: _q5_1,
    WeightFormat.Q4_K: _q4_k,
    WeightFormat.Q5_K: _q5_k,
    WeightFormat.Q6_K: _q6_k,
}

"""The routed experts of a chunk: one grouped product per matrix bank."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from . import ops
from .device_weights import DeviceMatrix, Scratch
from .packed_products import can_multiply, products

GroupedMm = Callable[..., torch.Tensor]


def grouped_linear(x: torch.Tensor, bank: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows [ends[e - 1], ends[e]) of x (n, K) times bank[e] (rows, K) transposed: (n, rows). ends (E,) int32."""
    native = _native_grouped_mm()
    if x.is_cuda and native is not None and x.shape[1] % 8 == 0 and bank.shape[1] % 8 == 0:
        return native(x, bank.transpose(1, 2), offs=ends)
    out = x.new_empty(x.shape[0], bank.shape[1])
    begin = 0
    for e, end in enumerate(ends.tolist()):
        if end > begin:
            torch.mm(x[begin:end], bank[e].t(), out=out[begin:end])
        begin = end
    return out


def run_experts(
    h: torch.Tensor, pairs: ops.Pairs, upgate: DeviceMatrix, down: DeviceMatrix, scratch: Scratch
) -> torch.Tensor:
    """Outputs (T · top_k, D) of all pairs, weighted, in the order of the pairs; h (T, D) bf16.

    `upgate` is the bank (E, 2F, D), `down` (E, D, F). Where the native kernel cannot take them as they are packed,
    first one and then the other is unpacked into the scratch.
    """
    if can_multiply(upgate, down):
        hidden = products(
            upgate.data, upgate.rows, upgate.k, h, pairs.ends, source=pairs.source, scale=pairs.weights, gated=True
        )
        return products(down.data, down.rows, down.k, hidden, pairs.ends)
    wide = grouped_linear(ops.gather(h, pairs), upgate.dense(scratch), pairs.ends)
    return grouped_linear(ops.silu_up(wide, pairs.weights), down.dense(scratch), pairs.ends)


def _native_grouped_mm() -> GroupedMm | None:
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return cast("GroupedMm | None", public or getattr(torch, "_grouped_mm", None))

"""The routed experts of a chunk: one grouped product per matrix bank."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from . import ops

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


def run_experts(pairs: ops.Pairs, upgate: Callable[[], torch.Tensor], down: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Outputs (T · top_k, D) of all pairs, weighted, in the order of the pairs.

    `upgate` gives the bank (E, 2F, D), `down` (E, D, F); the second is asked for after the first was used, so both
    may be unpacked into the same memory.
    """
    hidden = ops.silu_up(grouped_linear(pairs.x, upgate(), pairs.ends), pairs.weights)
    return grouped_linear(hidden, down(), pairs.ends)


def _native_grouped_mm() -> GroupedMm | None:
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return cast("GroupedMm | None", public or getattr(torch, "_grouped_mm", None))

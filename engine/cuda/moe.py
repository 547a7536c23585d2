"""The routed experts of a chunk: one grouped product per matrix bank."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from . import ops
from .device_weights import DeviceMatrix, Scratch
from .packed_products import RUN_UNIT, can_multiply, gather_panels, products

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
    h: torch.Tensor,
    logits: torch.Tensor,
    top_k: int,
    *,
    normalise: bool,
    upgate: DeviceMatrix,
    down: DeviceMatrix,
    scratch: Scratch,
) -> ops.Parts:
    """What the experts that logits (T, E) fp32 choose for the tokens h (T, D) bf16 give, and how much each counts.

    `upgate` is the bank (E, 2F, D), `down` (E, D, F). Where the native kernels cannot take them as they are packed,
    first one and then the other is unpacked into the scratch.
    """
    if can_multiply(upgate, down):
        pairs = ops.dispatch(logits, top_k, normalise=normalise, unit=RUN_UNIT)
        x = gather_panels(h, pairs.source)
        hidden = products(upgate.data, upgate.rows, upgate.k, x, pairs.begins, pairs.ends, gated=True)
        out = products(down.data, down.rows, down.k, hidden, pairs.begins, pairs.ends)
    else:
        pairs = ops.dispatch(logits, top_k, normalise=normalise)
        wide = grouped_linear(ops.gather(h, pairs), upgate.dense(scratch), pairs.ends)
        out = grouped_linear(ops.silu_up(wide), down.dense(scratch), pairs.ends)
    return ops.Parts(out, pairs.places, pairs.weights)


def _native_grouped_mm() -> GroupedMm | None:
    public = getattr(torch.nn.functional, "grouped_mm", None)
    return cast("GroupedMm | None", public or getattr(torch, "_grouped_mm", None))

"""Prefill on the GPU: a chunk of a prompt through all layers, keys and values written into the sequence's pages.

The weights are those that decoding uses. Packed ones are unpacked layer by layer into one scratch block: 1.25 GB read
and written per expert layer, well below the time of a large chunk's products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..kv_cache import SLIDING, SequencePages
from ..models.config import LayerSpec
from . import moe, ops
from .attention import attend
from .device_weights import DeviceLayer, DeviceModel, Scratch
from .pages import PageLayout, read_tokens, write_tokens

Rotation = tuple[torch.Tensor, torch.Tensor]


class GpuPrefill:
    """`control.Prefill` over a DeviceModel. `layout` is how the backend's pages are laid out."""

    def __init__(self, model: DeviceModel, layout: PageLayout) -> None:
        self._model = model
        self._layout = layout
        self._scratch = Scratch(model.device)

    @torch.inference_mode()
    def __call__(
        self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: Callable[[], None]
    ) -> None:
        """Computes tokens [begin, end); returns when their keys and values are in memory for every stream."""
        model, device = self._model, self._model.device
        tokens = torch.tensor(ids[begin:end], dtype=torch.int64).to(device, non_blocking=True)
        rotation = ops.rotation_table(torch.arange(begin, end, device=device), model.config)
        x = model.embed.row_ids(tokens).float()
        last = model.config.n_layers - 1
        try:
            for i, (spec, layer) in enumerate(zip(model.config.layers, model.layers, strict=True)):
                at_layer()
                self._layer(x, i, spec, layer, pages, begin, rotation, only_kv=i == last)
        finally:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()

    def forward_logits(self, ids: Sequence[int], pages: SequencePages, n_last: int = 1) -> torch.Tensor:
        """Logits (n_last, vocab) fp32 of the last tokens of a whole prompt; for tests, evaluation and comparisons."""
        with torch.inference_mode():
            model, device = self._model, self._model.device
            rotation = ops.rotation_table(torch.arange(len(ids), device=device), model.config)
            x = model.embed.row_ids(torch.tensor(ids, dtype=torch.int64, device=device)).float()
            for i, (spec, layer) in enumerate(zip(model.config.layers, model.layers, strict=True)):
                self._layer(x, i, spec, layer, pages, 0, rotation, only_kv=False)
            h = ops.rms_norm(x[-n_last:].contiguous(), model.final_norm, model.config.eps)
            head = model.head.dense(self._scratch)[0]
            return F.linear(h, head).float() * model.config.logit_scale

    def _layer(
        self,
        x: torch.Tensor,
        index: int,
        spec: LayerSpec,
        layer: DeviceLayer,
        pages: SequencePages,
        begin: int,
        rotation: Rotation,
        *,
        only_kv: bool,
    ) -> None:
        """Adds the layer's output to x (T, D) fp32 in place."""
        config = self._model.config
        h = ops.rms_norm(x, layer.norm, config.eps)
        qkv = F.linear(h, layer.qkv.dense(self._scratch)[0])
        q, k, v = ops.split_qkv(qkv, rotation if spec.rope else None, config.n_heads, config.n_kv_heads)
        keys, values = self._with_earlier(index, pages, begin, k, v)
        if only_kv:
            return
        attention = attend(q, keys, values, window=config.window if spec.sliding else 0, scale=config.attn_scale)
        attention = F.linear(attention.flatten(1), layer.o.dense(self._scratch)[0])
        parts, places = self._ffn(h, spec, layer)
        ops.add_parts(x, attention, parts, places)

    def _ffn(self, h: torch.Tensor, spec: LayerSpec, layer: DeviceLayer) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the FFN and where each token's parts lie in them (ops.add_parts)."""
        if not spec.moe or layer.router is None:
            hidden = ops.silu_up(F.linear(h, layer.upgate.dense(self._scratch)[0]), None)
            out = F.linear(hidden, layer.down.dense(self._scratch)[0])
            return out, torch.arange(h.shape[0], device=h.device).unsqueeze(1)
        ids, weights = ops.route(h, layer.router.dense(self._scratch)[0], self._model.config)
        return moe.run_experts(
            h, ids, weights, lambda: layer.upgate.dense(self._scratch), lambda: layer.down.dense(self._scratch)
        )

    def _with_earlier(
        self, index: int, pages: SequencePages, begin: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes k and v (T, G, C) into their pages; returns them behind those of the earlier tokens that are seen."""
        pools = pages.kv.layer(index)
        group = pages.kv.group_of(index)
        table = pages.tables[group]
        first = max(0, begin - self._model.config.window + 1) if group == SLIDING else 0
        both: list[torch.Tensor] = []
        for pool, new, is_value in zip(pools, (k, v), (False, True), strict=True):
            write_tokens(self._layout, pool, table, begin, new, is_value=is_value)
            if first == begin:
                both.append(new)
                continue
            earlier = read_tokens(self._layout, pool, table, first, begin, is_value=is_value)
            both.append(torch.cat([earlier, new]))
        return both[0], both[1]

"""Prefill on the GPU: a chunk of a prompt through all layers, keys and values written into the sequence's pages.

The weights are those that decoding uses. Where the native kernel can, experts are multiplied as they are packed, and in
short chunks the dense matrices too; all else is unpacked layer by layer into one scratch block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..control_parts import AtLayer
from ..kv_cache import NO_PAGE, PAGE_TOKENS, SLIDING, KvCache, SequencePages, pages_for
from . import moe, ops
from .attention import attend
from .device_weights import DeviceMatrix, DeviceModel, Scratch
from .packed_products import can_multiply, linear
from .pages import PageLayout, page_index, read_tokens, write_tokens

# Chunks of up to so many tokens wait for the host: native launches, which are cheap, multiply the dense matrices too.
FEW_TOKENS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """What the layers of a chunk share: where it begins, its rotation, and its pages on the device."""

    begin: int
    kv: KvCache
    tables: tuple[torch.Tensor, ...]
    rotation: tuple[torch.Tensor, torch.Tensor]


class GpuPrefill:
    """`control.Prefill` over a DeviceModel. `layout` is how the backend's pages are laid out."""

    def __init__(self, model: DeviceModel, layout: PageLayout) -> None:
        self._model = model
        self._layout = layout
        self._scratch = Scratch(model.device)
        # Small enough to be kept as rows beside the packed ones (25 MB in all), which spares a launch a layer.
        routers = [layer.router for layer in model.layers]
        self._routers = [None if r is None else r.dense(Scratch(model.device))[0] for r in routers]

    @torch.inference_mode()
    def __call__(self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: AtLayer) -> None:
        """Computes tokens [begin, end); returns when their keys and values are in memory for every stream."""
        model, device = self._model, self._model.device
        tokens = torch.tensor(ids[begin:end], dtype=torch.int64).to(device, non_blocking=True)
        chunk = self._chunk(begin, end, pages)
        x = model.embed.row_ids(tokens).float()
        h = self._first_norm(x)
        last = model.config.n_layers - 1
        try:
            for i in range(last):
                at_layer(i / model.config.n_layers)
                h = self._layer(x, h, i, chunk)
            at_layer(last / model.config.n_layers)
            self._with_earlier(last, h, chunk)
        finally:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()

    def forward_logits(self, ids: Sequence[int], pages: SequencePages, n_last: int = 1) -> torch.Tensor:
        """Logits (n_last, vocab) fp32 of the last tokens of a whole prompt; for tests, evaluation and comparisons."""
        with torch.inference_mode():
            model, device = self._model, self._model.device
            chunk = self._chunk(0, len(ids), pages)
            x = model.embed.row_ids(torch.tensor(ids, dtype=torch.int64, device=device)).float()
            h = self._first_norm(x)
            for i in range(model.config.n_layers):
                h = self._layer(x, h, i, chunk)
            head = model.head.dense(self._scratch)[0]
            return F.linear(h[-n_last:], head).float() * model.config.logit_scale

    def _first_norm(self, x: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(x, self._model.layers[0].norm, self._model.config.eps)

    def _chunk(self, begin: int, end: int, pages: SequencePages) -> _Chunk:
        """Raises AssertionError when pages of tokens that the chunk sees were given back."""
        model, device = self._model, self._model.device
        for group in pages.kv.groups:
            first = max(0, begin - model.config.window + 1) if group == SLIDING else 0
            if NO_PAGE in pages.tables[group][first // PAGE_TOKENS : pages_for(end)]:
                raise AssertionError(f"tokens [{first}, {end}) are needed, of which some have left the window")
        tables = tuple(page_index(table, device) for table in pages.tables)
        return _Chunk(
            begin, pages.kv, tables, ops.rotation_table(torch.arange(begin, end, device=device), model.config)
        )

    def _layer(self, x: torch.Tensor, h: torch.Tensor, index: int, chunk: _Chunk) -> torch.Tensor:
        """Adds the layer's output to x (T, D) fp32 in place, given x's norm h; returns the next layer's (T, D) bf16."""
        model, config = self._model, self._model.config
        layer, spec = model.layers[index], config.layers[index]
        q, keys, values = self._with_earlier(index, h, chunk)
        attention = attend(q, keys, values, window=config.window if spec.sliding else 0, scale=config.attn_scale)
        attention = self._linear(attention.flatten(1), layer.o)
        is_last = index + 1 == config.n_layers
        norm = model.final_norm if is_last else model.layers[index + 1].norm
        return ops.add_parts(x, attention, self._ffn(h, index), norm, config.eps)

    def _ffn(self, h: torch.Tensor, index: int) -> ops.Parts:
        config, layer, router = self._model.config, self._model.layers[index], self._routers[index]
        if router is None:
            out = self._linear(ops.silu_up(self._linear(h, layer.upgate)), layer.down)
            return ops.Parts(out, torch.arange(h.shape[0], dtype=torch.int32, device=h.device).unsqueeze(1), None)
        logits = ops.router_logits(h, router)
        return moe.run_experts(
            h,
            logits,
            config.top_k,
            normalise=config.norm_topk,
            upgate=layer.upgate,
            down=layer.down,
            scratch=self._scratch,
        )

    def _linear(self, x: torch.Tensor, matrix: DeviceMatrix) -> torch.Tensor:
        if x.shape[0] <= FEW_TOKENS and can_multiply(matrix):
            return linear(x, matrix)
        return F.linear(x, matrix.dense(self._scratch)[0])

    def _with_earlier(
        self, index: int, h: torch.Tensor, chunk: _Chunk
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q (T, H, C), and keys and values (S, G, C): those of the earlier tokens that are seen, then the chunk's,
        which are also written to their pages. h (T, D): the layer's normed input."""
        config, begin = self._model.config, chunk.begin
        layer, spec = self._model.layers[index], config.layers[index]
        qkv = self._linear(h, layer.qkv)
        group = chunk.kv.group_of(index)
        first = max(0, begin - config.window + 1) if group == SLIDING else 0
        lead = begin - first
        keys, values = qkv.new_empty(2, lead + qkv.shape[0], config.n_kv_heads, config.head_dim).unbind(0)
        rotation = chunk.rotation if spec.rope else None
        q = ops.split_qkv(qkv, rotation, config.n_heads, keys[lead:], values[lead:])
        table = chunk.tables[group]
        pools = chunk.kv.layer(index)
        if lead:
            for pool, run, is_value in zip(pools, (keys, values), (False, True), strict=True):
                read_tokens(self._layout, pool, table, first, begin, is_value=is_value, out=run[:lead])
        write_tokens(self._layout, pools, table, begin, keys[lead:], values[lead:])
        return q, keys, values

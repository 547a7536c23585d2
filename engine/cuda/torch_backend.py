"""Decoding with one kernel or library call per operation, replayed from CUDA graphs.

The opponent of the megakernel in every benchmark, and the backend of GPUs that the megakernel does not run on: fused
QKV product, RoPE with KV write, split paged attention, grouped expert products, fused add and norm.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..kv_cache import GROUPS, KvCache, pages_for
from . import decode_kernels as kernels
from . import triton_kernels
from .card import n_sms
from .device_weights import DeviceLayer, DeviceModel

MAX_ROWS = 8
_WARM_UPS = 2


class TorchDecoder:
    """Decode steps of up to 8 rows over plain weights and plain pages. Work goes to the current stream.

    The caller fills `tokens` (8,) int64, `positions` (8,) int32 and `tables` (2, 8, max_pages) int32; a step leaves
    `logits` (8, vocab) fp32. With `feed` a step also replaces tokens by their greedy successors and advances positions.
    """

    def __init__(self, model: DeviceModel, kv: KvCache, context_tokens: int, *, feed: bool = False) -> None:
        device, config = model.device, model.config
        self._model = model
        self._kv = kv
        self._feed = feed
        self.tokens = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        self.positions = torch.zeros(MAX_ROWS, dtype=torch.int32, device=device)
        self.tables = torch.zeros(
            len(GROUPS), MAX_ROWS, pages_for(context_tokens) + 1, dtype=torch.int32, device=device
        )
        self.logits = torch.zeros(MAX_ROWS, config.vocab, dtype=torch.float32, device=device)
        exponents = torch.arange(config.head_dim // 2, dtype=torch.float32, device=device) * 2 / config.head_dim
        self._frequencies = 1.0 / config.rope_theta**exponents
        self._routers = [layer.router.data[0].float() if layer.router is not None else None for layer in model.layers]
        self._wanted_splits = 2 * n_sms(device) // config.n_kv_heads  # two programs an SM
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def step(self, n_rows: int) -> torch.Tensor:
        """Runs one step of the first `n_rows` rows; returns their logits (n_rows, vocab), valid until the next step."""
        if n_rows not in self._graphs:
            self._graphs[n_rows] = self._capture(n_rows)
        self._graphs[n_rows].replay()
        return self.logits[:n_rows]

    def _capture(self, n: int) -> torch.cuda.CUDAGraph:
        kept = self.tokens.clone(), self.positions.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):  # compiles kernels, lets cuBLAS take its workspace
                self.positions.copy_(kept[1])
                self._forward(n)
        torch.cuda.current_stream().wait_stream(side)
        self.tokens.copy_(kept[0])
        self.positions.copy_(kept[1])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._forward(n)
        return graph

    def _forward(self, n: int) -> None:
        model, config = self._model, self._model.config
        x = model.embed.data[0][self.tokens[:n]].float()
        attention: torch.Tensor | None = None
        ffn: torch.Tensor | None = None
        for i, layer in enumerate(model.layers):
            h = kernels.add_norm(x, attention, ffn, layer.norm, config.eps)
            attention = self._attention(h, i, layer)
            ffn = self._ffn(h, i, layer)
        h = kernels.add_norm(x, attention, ffn, model.final_norm, config.eps)
        self.logits[:n] = F.linear(h, model.head.data[0])
        if config.logit_scale != 1.0:
            self.logits[:n] *= config.logit_scale
        if self._feed:
            self.tokens[:n] = self.logits[:n].argmax(-1)
            self.positions[:n] += 1

    def _attention(self, h: torch.Tensor, index: int, layer: DeviceLayer) -> torch.Tensor:
        config, n = self._model.config, h.shape[0]
        spec = config.layers[index]
        pools, table = self._kv.layer(index), self.tables[self._kv.group_of(index)][:n]
        positions = self.positions[:n]
        qkv = F.linear(h, layer.qkv.data[0])
        frequencies = self._frequencies if spec.rope else None
        q = kernels.rope_write(qkv, frequencies, positions, table, pools, config.n_heads)
        out = kernels.paged_attention(
            q,
            pools,
            positions,
            table,
            window=config.window if spec.sliding else 0,
            scale=config.attn_scale,
            n_splits=max(1, min(self._wanted_splits // n, table.shape[1])),
        )
        return F.linear(out, layer.o.data[0])

    def _ffn(self, h: torch.Tensor, index: int, layer: DeviceLayer) -> torch.Tensor:
        """(n, parts, D)."""
        config, router = self._model.config, self._routers[index]
        if router is None:
            hidden = triton_kernels.silu_up(F.linear(h, layer.upgate.data[0]))
            return F.linear(hidden, layer.down.data[0]).unsqueeze(1)
        ids, weights = kernels.route(F.linear(h.float(), router), config.top_k, normalise=config.norm_topk)
        return kernels.experts(h, layer.upgate.data, layer.down.data, ids, weights)

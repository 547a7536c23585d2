"""Prefill of paged sequences with the torch forward pass (models.reference). Imported when torch is first needed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .control_parts import AtLayer
from .kv_cache import NO_PAGE, PAGE_TOKENS, SequencePages
from .models.reference import TorchModel


class PagedKv:
    """One sequence's pages as the forward pass sees them (models.reference.KvStore). `at_layer` runs at each layer."""

    def __init__(self, pages: SequencePages, at_layer: AtLayer, n_layers: int) -> None:
        self._pages = pages
        self._at_layer = at_layer
        self._n_layers = n_layers

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> None:
        """Writes (T, G, C) keys and values of consecutive positions into their pages."""
        self._at_layer(layer / self._n_layers)
        keys, values = self._pages.kv.layer(layer)  # (P, G, 64, C)
        table = self._table(layer)
        begin = int(positions[0])
        done = 0
        while done < k.shape[0]:
            page, offset = divmod(begin + done, PAGE_TOKENS)
            n = min(PAGE_TOKENS - offset, k.shape[0] - done)
            keys[table[page], :, offset : offset + n] = k[done : done + n].transpose(0, 1)
            values[table[page], :, offset : offset + n] = v[done : done + n].transpose(0, 1)
            done += n

    def gather(self, layer: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of (end - begin, G, C) keys and values."""
        first = begin // PAGE_TOKENS
        pages = self._table(layer)[first : -(-end // PAGE_TOKENS)]
        if NO_PAGE in pages:
            raise AssertionError(f"layer {layer} reads tokens [{begin}, {end}), of which some have left the window")
        index = torch.tensor(pages)
        keys, values = (
            pool[index].transpose(1, 2).flatten(0, 1)[begin - first * PAGE_TOKENS : end - first * PAGE_TOKENS]
            for pool in self._pages.kv.layer(layer)
        )
        return keys, values

    def _table(self, layer: int) -> list[int]:
        return self._pages.tables[self._pages.kv.group_of(layer)]


class TorchPrefill:
    """`control.Prefill` over a TorchModel. `n_threads` bounds torch's threads on the calling thread."""

    def __init__(self, model: TorchModel, n_threads: int) -> None:
        self._model = model
        self._n_threads = n_threads

    def __call__(self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: AtLayer) -> None:
        """Computes tokens [begin, end)."""
        if torch.get_num_threads() != self._n_threads:
            torch.set_num_threads(self._n_threads)
        paged = PagedKv(pages, at_layer, self._model.config.n_layers)
        self._model.forward(ids[begin:end], paged, first_position=begin, logits="none")

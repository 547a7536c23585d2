"""Prefill of paged sequences: with the torch forward pass, or eight tokens a step on the native CPU backend.

On one core of a Xeon with the 0.5B model in Q4_K (CPU time, so that other load does not count): torch computes 138
tokens/s in chunks of 256, but 24 in its first chunk, because it de-quantises every matrix then; the native backend
computes 45 tokens/s from the first token on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from . import _native
from .kv_cache import FULL, NO_PAGE, PAGE_TOKENS, SLIDING, SequencePages
from .models.reference import TorchModel


class PagedKv:
    """One sequence's pages as the forward pass sees them (models.reference.KvStore). `at_layer` runs at each layer."""

    def __init__(self, pages: SequencePages, at_layer: Callable[[], None]) -> None:
        self._pages = pages
        self._at_layer = at_layer

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> None:
        """Writes (T, G, C) keys and values of consecutive positions into their pages."""
        self._at_layer()
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
        self.is_warm = False

    def __call__(
        self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: Callable[[], None]
    ) -> None:
        """Computes tokens [begin, end)."""
        if torch.get_num_threads() != self._n_threads:
            torch.set_num_threads(self._n_threads)
        self._model.forward(ids[begin:end], PagedKv(pages, at_layer), first_position=begin, logits="none")
        self.is_warm = True


class NativePrefill:
    """`control.Prefill` over a CPU backend whose schedules end before the head: up to 8 tokens are the rows of a step.

    The rows share their page tables. A step writes the keys of all rows of a layer before it reads any, so that each
    token sees those before it.
    """

    def __init__(self, make_backend: Callable[[], _native.CpuBackend]) -> None:
        self._make_backend = make_backend
        self._backend: _native.CpuBackend | None = None

    def __call__(
        self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: Callable[[], None]
    ) -> None:
        """Computes tokens [begin, end); `at_layer` is called between steps."""
        if self._backend is None:
            self._backend = self._make_backend()
        full, sliding = (np.asarray(pages.tables[group], np.int32) for group in (FULL, SLIDING))
        for first in range(begin, end, _native.MAX_ROWS):
            at_layer()
            self._backend.forward(
                [
                    _native.StepRow(token=ids[i], position=i, full_pages=full, sliding_pages=sliding)
                    for i in range(first, min(end, first + _native.MAX_ROWS))
                ]
            )


class HybridPrefill:
    """Torch, except for prompts of which so little is left that the native backend is faster.

    That is `few_tokens` always (torch reads all matrices as fp32 for them) and `short_tokens` as long as torch is cold,
    as after a restart, when most of a prompt comes from disk.
    """

    def __init__(
        self, torch_prefill: TorchPrefill, native: NativePrefill, few_tokens: int = 24, short_tokens: int = 128
    ) -> None:
        self.torch = torch_prefill
        self.native = native
        self._few_tokens = few_tokens
        self._short_tokens = short_tokens

    def __call__(
        self, ids: Sequence[int], begin: int, end: int, pages: SequencePages, at_layer: Callable[[], None]
    ) -> None:
        """Computes tokens [begin, end)."""
        limit = self._few_tokens if self.torch.is_warm else self._short_tokens
        (self.native if len(ids) - 1 - begin <= limit else self.torch)(ids, begin, end, pages, at_layer)

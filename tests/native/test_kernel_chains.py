"""Consecutive tokens of one sequence in one step of the kernel have the bits that they have step by step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES, write_tokens
from pointcode_local.engine.kv_cache import PAGE_TOKENS
from pointcode_local.engine.weights import ModelWeights, open_weights
from tests.engine.tiny_models import make_tiny

from .host_build import compiler
from .host_kernel import HostKernel
from .kernel import Row
from .test_megakernel import WINDOW, prompt_of, release, started
from .test_megakernel import library as library
from .test_megakernel import weights as weights

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the kernel is compiled for the host, and there is no C++ compiler"),
    pytest.mark.timeout(300),
]
Logits = NDArray[np.float32]


@pytest.fixture(scope="module", params=["lean", "shipped"])
def kernel(request: pytest.FixtureRequest, library: ctypes.CDLL, weights: ModelWeights) -> HostKernel:
    return HostKernel.of(library, weights, 4, order=request.param)


def chain_of(row: Row, n: int, *, wrong_from: int | None = None) -> list[Row]:
    """The row's token and those that follow it, as rows of one step; from some on, others than wanted."""
    tokens = [row.token, *prompt_of(n - 1, seed=row.position)]
    if wrong_from is not None:
        tokens[wrong_from:] = [(token + 1) % 320 for token in tokens[wrong_from:]]
    return [Row(row.pages, token, row.position + i) for i, token in enumerate(tokens)]


def one_by_one(kernel: HostKernel, rows: Sequence[Row]) -> Logits:
    return np.concatenate([kernel.step([row]) for row in rows])


def poison(kernel: HostKernel, row: Row) -> None:
    """NaN in every place of the row's pages from its position on."""
    for layer in range(kernel.model.config.n_layers):
        table = row.pages.tables[kernel.kv.group_of(layer)]
        pools = kernel.kv.layer(layer)
        shape = len(table) * PAGE_TOKENS - row.position, pools[0].shape[1], pools[0].shape[3]
        nans = torch.full(shape, torch.nan).bfloat16()
        write_tokens(FRAGMENT_PAGES, pools, table, row.position, nans, nans)


LONG = 64 * 11  # more pages in a split than the ring can hold for several rows


BORDERS = [(1, (8,)), (61, (2, 5, 8)), (WINDOW - 3, (8,)), (187, (4, 7)), (445, (5,)), (LONG, (3,))]


@pytest.mark.parametrize(
    ("kernel", "length", "sizes"),
    [*(("lean", *border) for border in BORDERS), *(("shipped", *border) for border in BORDERS[2:5])],
    indirect=["kernel"],
)
def test_a_chain_at_any_border_has_the_bits_of_single_steps(
    kernel: HostKernel, length: int, sizes: tuple[int, ...]
) -> None:
    [row] = started(kernel, (length,), 9)
    wanted = one_by_one(kernel, chain_of(row, max(sizes)))
    for n in sizes:
        poison(kernel, row)
        assert np.array_equal(kernel.step(chain_of(row, n)), wanted[:n]), f"{n} tokens"
    release([row])


def test_full_groups_and_wide_heads_have_them_too(library: ctypes.CDLL, tmp_path: Path) -> None:
    folder = make_tiny(
        "cohere2_moe", tmp_path, dtype=torch.bfloat16, num_hidden_layers=2, hidden_size=256, num_attention_heads=16,
        head_dim=128, sliding_window=WINDOW,
    )  # fmt: skip
    kernel = HostKernel.of(library, open_weights(folder), 4)
    [row] = started(kernel, (126,), 9)
    wanted = one_by_one(kernel, chain_of(row, 5))
    poison(kernel, row)
    assert np.array_equal(kernel.step(chain_of(row, 5)), wanted)
    release([row])


def test_chains_and_single_rows_of_one_step_do_not_know_of_each_other(kernel: HostKernel) -> None:
    a, b, single = rows = started(kernel, (62, 126, 71), 5)
    alone: dict[tuple[int, int], Logits] = {}
    for chain in (chain_of(a, 4), chain_of(b, 3), [single]):
        for row, logits in zip(chain, one_by_one(kernel, chain), strict=True):
            alone[id(row.pages), row.position] = logits
    for batch in (
        [*chain_of(a, 4), single, *chain_of(b, 3)],
        [single, *chain_of(b, 3)],
        [*chain_of(b, 2), *chain_of(a, 2)],
    ):
        for row in rows:
            poison(kernel, row)
        for row, logits in zip(batch, kernel.step(batch), strict=True):
            assert np.array_equal(logits, alone[id(row.pages), row.position])
    release(rows)


def test_wrong_tokens_of_a_chain_leave_nothing_behind(kernel: HostKernel) -> None:
    [row] = started(kernel, (60,), 7)
    wanted = one_by_one(kernel, chain_of(row, 6))
    wrong = kernel.step(chain_of(row, 6, wrong_from=3))
    assert np.array_equal(wrong[:3], wanted[:3])
    assert not np.array_equal(wrong[3], wanted[3])
    rest = chain_of(row, 6)[3:]
    assert np.array_equal(kernel.step(rest), wanted[3:])
    release([row])


def test_a_chain_in_many_interleavings_has_the_same_bits(kernel: HostKernel) -> None:
    [row] = started(kernel, (61,), 9)
    wanted = one_by_one(kernel, chain_of(row, 4))
    for _ in range(4):
        poison(kernel, row)
        assert np.array_equal(kernel.step(chain_of(row, 4)), wanted)
    release([row])

"""Layers of the full North Mini Code size, one of each kind, at page and window borders and far beyond.

The megakernel against the one-kernel-per-operation decoder: the same weights, the same keys and values.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from pointcode_local.engine import _native
from pointcode_local.engine.cuda.backend import megakernel_backend, megakernel_schedules
from pointcode_local.engine.cuda.card import n_sms
from pointcode_local.engine.cuda.device_weights import DeviceMatrix, DeviceModel, Scratch
from pointcode_local.engine.cuda.pages import FRAGMENT_PAGES, PLAIN_PAGES
from pointcode_local.engine.cuda.random_weights import north_mini, random_model
from pointcode_local.engine.kv_cache import GROUPS, PAGE_TOKENS, KvCache, pages_for
from pointcode_local.engine.models.config import ModelConfig
from pointcode_local.engine.plans import kv_geometry
from pointcode_local.engine.scheduler import ORDER_NAMES

from .support import needs_gpu

pytestmark = [*needs_gpu, pytest.mark.timeout(300)]
LENGTHS = (1, 63, 64, 65, 4095, 4096, 4097, 8192, 131072)
ROWS = 4
VOCAB = 4096
GPU = torch.device("cuda", 0)


def one_layer(index: int) -> ModelConfig:
    """The model cut down to one of its layers: 0 dense, full, RoPE; 1 experts, sliding; 4 experts, full, no RoPE."""
    config = north_mini(5, VOCAB)
    return replace(config, layers=(config.layers[index],))


def plain(matrix: DeviceMatrix) -> DeviceMatrix:
    return DeviceMatrix(matrix.dense(Scratch(GPU)).clone(), matrix.rows, matrix.k, False)


def unpacked(model: DeviceModel) -> DeviceModel:
    layers = tuple(
        replace(
            layer,
            qkv=plain(layer.qkv),
            o=plain(layer.o),
            router=plain(layer.router) if layer.router is not None else None,
            upgate=plain(layer.upgate),
            down=plain(layer.down),
        )
        for layer in model.layers
    )
    head = plain(model.head)
    return replace(model, layers=layers, head=head, embed=head)


@pytest.fixture(scope="module", params=[0, 1, 4], ids=["dense", "sliding experts", "full experts"])
def model(request: pytest.FixtureRequest) -> Iterator[DeviceModel]:
    yield random_model(one_layer(request.param), GPU, seed=request.param)
    gc.collect()
    torch.cuda.empty_cache()


def two_caches(config: ModelConfig, n_pages: int) -> tuple[KvCache, KvCache]:
    """The same random keys and values in fragment order and plain; what lies past a row's end is NaN."""
    fragment, flat = (KvCache(kv_geometry(config, 2), n_pages, n_pages, GPU) for _ in range(2))
    generator = torch.Generator(GPU).manual_seed(n_pages)
    for layer in range(config.n_layers):
        for ours, theirs, is_value in zip(fragment.layer(layer), flat.layer(layer), (False, True), strict=True):
            for begin in range(0, n_pages, 256):
                pages = torch.arange(begin, min(begin + 256, n_pages), device=GPU)
                shape = len(pages), PAGE_TOKENS, config.n_kv_heads, config.head_dim
                values = torch.randn(shape, device=GPU, generator=generator).bfloat16()
                FRAGMENT_PAGES.store(ours, pages, values, is_value=is_value)
                PLAIN_PAGES.store(theirs, pages, values, is_value=is_value)
    return fragment, flat


@pytest.mark.parametrize("order", ORDER_NAMES)
@pytest.mark.parametrize("length", LENGTHS)
def test_one_full_size_layer_agrees_with_the_other_backend(model: DeviceModel, length: int, order: str) -> None:
    from pointcode_local.engine.cuda.torch_backend import TorchDecoder

    config, n = model.config, pages_for(length + 1)
    fragment, flat = two_caches(config, ROWS * n)
    tables = np.random.default_rng(length).permutation(ROWS * n).astype(np.int32).reshape(ROWS, n)
    rows = [
        _native.StepRow(token=97 * r + 5, position=length - 1, full_pages=tables[r], sliding_pages=tables[r])
        for r in range(ROWS)
    ]
    schedules = megakernel_schedules(config, n_sms(GPU), order=order)
    backend = megakernel_backend(model, fragment, schedules, length + PAGE_TOKENS)
    backend.step(rows)
    ours = torch.from_numpy(np.stack([backend.logits(r) for r in range(ROWS)]))
    backend.step(rows)
    assert all(np.array_equal(backend.logits(r), ours[r].numpy()) for r in range(ROWS)), "the same step, other bits"
    backend.step(rows[1:2])
    assert np.array_equal(backend.logits(0), ours[1].numpy()), "a row alone, other bits"

    decoder = TorchDecoder(unpacked(model), flat, length + PAGE_TOKENS)
    for group in GROUPS:
        decoder.tables[group, :ROWS, :n] = torch.from_numpy(tables).to(GPU)
    decoder.tokens[:ROWS] = torch.arange(ROWS, device=GPU) * 97 + 5
    decoder.positions[:ROWS] = length - 1
    wanted = decoder.step(ROWS).cpu()
    distance = (ours - wanted).norm(dim=1) / wanted.norm(dim=1)
    # A near-tie of the router may give a row another expert than the other backend: one such row is let pass.
    assert int((distance > 0.02).sum()) <= (1 if config.layers[0].moe else 0), distance.tolist()

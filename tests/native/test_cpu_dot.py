"""The matrix kernels of every format and instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from pointcode_local.engine import _native
from pointcode_local.engine._native import Isa, WeightFormat

from .packed import is_k_format, random_weight

ISAS = [isa for isa in Isa if isa <= _native.best_isa()]
FORMATS = list(WeightFormat)
# fp32 rounding of a sum, relative to the sum of the absolute products; a de-quantised fp32 product has the same
TOLERANCE = 2e-6


def columns(format: WeightFormat) -> list[int]:
    """Row lengths: one block, odd numbers of blocks, more than 16 blocks, and for plain formats ragged ends."""
    if is_k_format(format):
        return [256, 768, 1280]
    return [32, 96, 544, 1056] + ([1, 15, 49, 100] if format <= WeightFormat.BF16 else [])


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_products_equal_those_of_the_dequantised_matrix(format: WeightFormat, isa: Isa) -> None:
    rng = np.random.default_rng(7)
    for cols in columns(format):
        packed = random_weight(rng, format, 21, cols)
        x = rng.standard_normal((8, cols)).astype(np.float32)
        exact = x.astype(np.float64) @ packed.values[0].T.astype(np.float64)
        size = np.abs(x).astype(np.float64) @ np.abs(packed.values[0].T).astype(np.float64)
        y = _native.linear(packed.weight, x, isa=isa)
        assert np.all(np.abs(y - exact) <= TOLERANCE * size), f"{cols} columns: {np.max(np.abs(y - exact) / size)}"


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_a_rows_product_has_the_same_bits_whatever_else_is_in_the_batch(format: WeightFormat, isa: Isa) -> None:
    rng = np.random.default_rng(8)
    cols = 768
    packed = random_weight(rng, format, 20, cols)
    x = rng.standard_normal((8, cols)).astype(np.float32)
    alone = np.concatenate([_native.linear(packed.weight, x[r : r + 1], isa=isa) for r in range(8)])
    for n in range(2, 9):
        assert np.array_equal(_native.linear(packed.weight, x[:n], isa=isa), alone[:n]), f"{n} rows"


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_dequantised_values_are_exactly_those_of_the_format(format: WeightFormat, isa: Isa) -> None:
    rng = np.random.default_rng(9)
    for cols in columns(format):
        packed = random_weight(rng, format, 5, cols, count=2)
        out = np.full((5, cols), np.nan, np.float32)
        _native.dequantize(packed.weight, out, 1, 2, isa)
        assert np.array_equal(out, packed.values[1])


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_many_rows_and_threads_give_the_same_product(format: WeightFormat) -> None:
    rng = np.random.default_rng(10)
    packed = random_weight(rng, format, 70, 512, count=3)
    x = rng.standard_normal((37, 512)).astype(np.float32)
    y = _native.linear(packed.weight, x, 2, 3)
    assert y.shape == (37, 70)
    np.testing.assert_allclose(y, x @ packed.values[2].T, rtol=1e-4, atol=1e-4)
    assert np.array_equal(y, _native.linear(packed.weight, x, 2, 1))


def test_a_huge_activation_spoils_nothing_outside_its_own_rounding() -> None:
    rng = np.random.default_rng(11)
    for format in (WeightFormat.Q5_0, WeightFormat.Q8_0, WeightFormat.Q6_K):
        packed = random_weight(rng, format, 16, 1024)
        x = rng.standard_normal((1, 1024)).astype(np.float32)
        x[0, 100] = 3000.0
        exact = x.astype(np.float64) @ packed.values[0].T.astype(np.float64)
        error = np.abs(_native.linear(packed.weight, x) - exact)
        plain = np.abs(x @ packed.values[0].T - exact)
        assert error.max() <= 4 * plain.max() + 1e-6


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_an_activation_that_is_not_a_number_reaches_the_result(isa: Isa) -> None:
    rng = np.random.default_rng(12)
    for format in FORMATS:
        packed = random_weight(rng, format, 3, 512)
        x = rng.standard_normal((2, 512)).astype(np.float32)
        x[1, 300] = np.nan
        y = _native.linear(packed.weight, x, isa=isa)
        assert np.all(np.isfinite(y[0])) and np.all(np.isnan(y[1])), format.name


def test_zeros_and_the_smallest_numbers_are_multiplied_without_trouble() -> None:
    rng = np.random.default_rng(13)
    for format in FORMATS:
        packed = random_weight(rng, format, 3, 256)
        x = np.zeros((2, 256), np.float32)
        x[1] = 1e-42
        y = _native.linear(packed.weight, x)
        assert np.all(y[0] == 0.0) and np.all(np.abs(y[1]) < 1e-30), format.name


def test_a_row_that_does_not_end_with_a_block_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Q4_K needs a multiple of 256 columns, got 896"):
        _native.packed_row_bytes(WeightFormat.Q4_K, 896)

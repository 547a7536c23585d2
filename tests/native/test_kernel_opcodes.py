"""Every opcode of the megakernel alone on the emulated device, against torch (opcode_cases.py).

tests/gpu/test_opcodes.py runs the same cases on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from pointcode_local.engine.weights import ModelWeights

from .host_build import compiler
from .host_kernel import HostKernel, build
from .opcode_bed import Bed
from .opcode_cases import CASES, ORDERS, Case
from .test_megakernel import weights  # noqa: F401  # pyright: ignore[reportUnusedImport]

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the kernel is compiled for the host, and there is no C++ compiler"),
    pytest.mark.timeout(300),
]
LONGEST = 200


@pytest.fixture(scope="module")
def kernels(weights: ModelWeights) -> Callable[[str], HostKernel]:  # noqa: F811
    library = build()

    def made(order: str) -> HostKernel:
        return HostKernel.of(library, weights, 5, order=order)

    return cache(made)


@pytest.mark.parametrize("n_rows", [1, 2, 4, 5, 8])
@pytest.mark.parametrize(
    ("case", "order"), [(c, order) for c in CASES for order in c.orders], ids=lambda x: getattr(x, "name", x)
)
def test_the_opcode_alone_agrees_with_torch(
    kernels: Callable[[str], HostKernel], case: Case, order: str, n_rows: int
) -> None:
    case.check(Bed(kernels(order), n_rows, torch.Generator().manual_seed(n_rows), LONGEST))


@pytest.mark.parametrize("order", ORDERS)
def test_the_cases_run_every_opcode_that_the_order_uses(kernels: Callable[[str], HostKernel], order: str) -> None:
    kernel = kernels(order)
    for case in CASES:
        if order in case.orders:
            case.check(Bed(kernel, 1, torch.Generator().manual_seed(7), LONGEST))
    assert kernel.ran_alone == {int(opcode) for opcode in kernel.schedules[0].tasks["opcode"]}

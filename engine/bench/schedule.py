"""The wave orders against each other on the GPU, with random weights of the North Mini Code shape."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the options are those of `bench.gpu`."""
    from .gpu import main as measure_gpu

    return measure_gpu(["schedule", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())

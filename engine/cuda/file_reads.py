"""Scattered reads: many extents of files, each into memory of its own, with as few system calls as the files allow.

A read drops the interpreter's lock for its whole length and, unlike a copy out of a map, takes no page faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import ModelError
from ..tensor_files import Extent

Read = tuple[Extent, memoryview]  # what is read, and the memory (of as many bytes) that it fills
_MAX_VIEWS = 1000  # Linux takes 1,024 a call


class OpenFiles:
    """Files that stay open for reading until `close`. `read_all` may be called from several threads."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Raises ModelError for one that cannot be opened."""
        self._files: dict[Path, int] = {}
        try:
            for path in paths:
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise ModelError(f"cannot read {error.filename}: {error.strerror}") from error

    def close(self) -> None:
        """Closes all."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def read_all(self, reads: Sequence[Read]) -> None:
        """Fills all the memory. Raises ModelError for a file that ends early or cannot be read."""
        for run in _runs(sorted(reads, key=lambda read: (read[0].path, read[0].begin))):
            first = run[0][0]
            _fill(self._files[first.path], first.path, first.begin, [view for _, view in run])


def _runs(reads: Sequence[Read]) -> Iterable[list[Read]]:
    """Neighbours in one file together."""
    run: list[Read] = []
    end = -1
    for read in reads:
        extent = read[0]
        if run and (extent.path != run[0][0].path or extent.begin != end or len(run) == _MAX_VIEWS):
            yield run
            run = []
        run.append(read)
        end = extent.begin + extent.n_bytes
    if run:
        yield run


def _fill(file: int, path: Path, begin: int, views: list[memoryview]) -> None:
    """Reads from byte `begin` on into one view after the other. A call may give less than it was asked for."""
    while views:
        try:
            n = os.preadv(file, views, begin)
        except OSError as error:
            raise ModelError(f"cannot read {path} at byte {begin}: {error.strerror}") from error
        if n == 0:
            missing = sum(len(view) for view in views)
            raise ModelError(f"{path} ends at byte {begin}; {missing} bytes of weights are missing: it was cut short")
        begin += n
        while views and n >= len(views[0]):
            n -= len(views.pop(0))
        if n:
            views[0] = views[0][n:]

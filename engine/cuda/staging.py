"""Pieces of files on their way to a device, many in a block: files → pinned block → block on the card → the taker.

Reader threads fill pinned blocks ahead; a stream of its own carries them over while the taker's stream works on the
blocks before. On a CPU the taker gets the block that was read, and the rest is the same.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

import torch

from ..tensor_files import Extent
from .file_reads import OpenFiles, Read

BLOCK_BYTES = 64 << 20
_ALIGNMENT = 256
_CARD_BLOCKS = 3  # one is filled, one is unpacked, one is between
_SPARE_BLOCKS = 3  # pinned blocks beyond one a reader: full, or on their way to the card
_MOST_READERS = 12
_SWITCH_S = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Extents that lie one behind the other on the device as `shape` of `dtype`, and what to do with them there."""

    extents: Sequence[Extent]
    dtype: torch.dtype
    shape: tuple[int, ...]
    put: Callable[[torch.Tensor], object]

    @property
    def n_bytes(self) -> int:
        """Bytes in the files."""
        return sum(extent.n_bytes for extent in self.extents)


@dataclass(slots=True)
class StagingTimes:
    """Where the time went: seconds of all readers together, and seconds that the taker waited for them."""

    n_readers: int
    pin_s: float = 0.0
    card_s: float = 0.0  # readers wait for a block that is still on its way to the card
    read_s: float = 0.0
    starved_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, pin_s: float, card_s: float, read_s: float) -> None:
        """From any thread."""
        with self._lock:
            self.pin_s += pin_s
            self.card_s += card_s
            self.read_s += read_s


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """What a block will hold: pieces and the bytes at which they begin."""

    pieces: list[tuple[Piece, int]]
    n_bytes: int


class _HostBlock:
    """A block of this process that readers fill, again and again."""

    def __init__(self, n_bytes: int, pinned: bool) -> None:
        self._n_bytes = n_bytes
        self._memory: torch.Tensor | None = None
        self.taken = torch.cuda.Event(blocking=True) if pinned else None  # recorded when it has reached the card

    def fill(self, load: _Load, files: OpenFiles, times: StagingTimes) -> torch.Tensor:
        """The block's memory with the load in it; in a reader thread."""
        marks = [time.perf_counter()]
        if self._memory is None:
            self._memory = torch.empty(self._n_bytes, dtype=torch.uint8, pin_memory=self.taken is not None)
        marks.append(time.perf_counter())
        if self.taken is not None:
            self.taken.synchronize()
        marks.append(time.perf_counter())
        files.read_all(list(_reads(load, self._memory.numpy().data)))
        marks.append(time.perf_counter())
        times.add(*(b - a for a, b in zip(marks, marks[1:], strict=False)))
        return self._memory


class _Card:
    """Blocks on a CUDA device. `upload` and `release` take turns."""

    def __init__(self, n_bytes: int, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._blocks = [torch.empty(n_bytes, dtype=torch.uint8, device=device) for _ in range(_CARD_BLOCKS)]
        self._free = [torch.cuda.Event() for _ in self._blocks]
        self._arrived = torch.cuda.Event()
        self._turn = 0
        for event in self._free:
            event.record()

    def upload(self, block: _HostBlock, host: torch.Tensor, n_bytes: int) -> torch.Tensor:
        """Copies the block's first bytes; valid on the current stream until `release`."""
        assert block.taken is not None
        here = self._blocks[self._turn]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free[self._turn])
            here[:n_bytes].copy_(host[:n_bytes], non_blocking=True)
            block.taken.record()
            self._arrived.record()
        torch.cuda.current_stream(self._device).wait_event(self._arrived)
        return here

    def release(self) -> None:
        """What the current stream was given to do with the block is all."""
        self._free[self._turn].record()
        self._turn = (self._turn + 1) % _CARD_BLOCKS

    def close(self) -> None:
        """The blocks may be freed."""
        torch.cuda.synchronize(self._device)


def n_readers() -> int:
    """Reader threads: all but two of the cores, one at least; more than 12 give nothing more."""
    return max(1, min(_MOST_READERS, len(os.sched_getaffinity(0)) - 2))


def staged(
    pieces: Iterable[Piece], device: torch.device, times: StagingTimes, *, block_bytes: int = BLOCK_BYTES
) -> Generator[tuple[Piece, torch.Tensor]]:
    """Every piece, in order, with its values on the device: valid until the next one is asked for.

    A piece may have `block_bytes` at most. Raises ModelError for a file that cannot be read, or ends early.
    """
    loads = list(_loads(pieces, block_bytes))
    is_cuda = device.type == "cuda"
    files = OpenFiles({extent.path for load in loads for piece, _ in load.pieces for extent in piece.extents})
    with ExitStack() as ending:
        ending.enter_context(closing(files))
        card = ending.enter_context(closing(_Card(block_bytes, device))) if is_cuda else None
        readers = ThreadPoolExecutor(times.n_readers, "weights")
        ending.callback(readers.shutdown, cancel_futures=True)
        ending.enter_context(_quick_switches())
        blocks = [_HostBlock(block_bytes, is_cuda) for _ in range(times.n_readers + _SPARE_BLOCKS)]
        waiting: deque[tuple[_Load, _HostBlock, Future[torch.Tensor]]] = deque()
        for turn in range(len(loads) + len(blocks)):
            if turn >= len(blocks) and waiting:
                load, block, filled = waiting.popleft()
                memory = _awaited(filled, times)
                here = card.upload(block, memory, load.n_bytes) if card is not None else memory
                yield from ((piece, _values(piece, here, at)) for piece, at in load.pieces)
                if card is not None:
                    card.release()
            if turn < len(loads):
                block = blocks[turn % len(blocks)]
                waiting.append((loads[turn], block, readers.submit(block.fill, loads[turn], files, times)))


def _awaited(filled: Future[torch.Tensor], times: StagingTimes) -> torch.Tensor:
    began_s = time.perf_counter()
    memory = filled.result()
    times.starved_s += time.perf_counter() - began_s
    return memory


def _loads(pieces: Iterable[Piece], block_bytes: int) -> Iterator[_Load]:
    """Pieces in order, as many in a block as fit."""
    placed: list[tuple[Piece, int]] = []
    end = 0
    for piece in pieces:
        at = -(-end // _ALIGNMENT) * _ALIGNMENT
        if placed and at + piece.n_bytes > block_bytes:
            yield _Load(placed, end)
            placed, at = [], 0
        assert piece.n_bytes <= block_bytes
        placed.append((piece, at))
        end = at + piece.n_bytes
    if placed:
        yield _Load(placed, end)


def _reads(load: _Load, memory: memoryview) -> Iterator[Read]:
    for piece, at in load.pieces:
        for extent in piece.extents:
            yield extent, memory[at : at + extent.n_bytes]
            at += extent.n_bytes


def _values(piece: Piece, block: torch.Tensor, at: int) -> torch.Tensor:
    return block[at : at + piece.n_bytes].view(piece.dtype).view(piece.shape)


@contextmanager
def _quick_switches() -> Generator[None]:
    """Threads get the interpreter's lock soon: one that computes in Python beside the load would hold each of the
    load's many short steps up for 5 ms."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)

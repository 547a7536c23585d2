"""Bytes that come in pieces, cut into lines in one pass."""

from __future__ import annotations

import sys

TOO_LONG = b"[too long"  # no JSON


class ByteLines:
    """Gives lines without their ends, however they come; `n_bytes` are of the line that is not complete.

    Of a line of more than `max_bytes` nothing is held: TOO_LONG stands for it.
    """

    def __init__(self, max_bytes: int = sys.maxsize) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self.n_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *whole, rest = data.split(b"\n")
        lines = [self._ended(piece) for piece in whole]
        self._keep(rest)
        return lines

    def rest(self) -> bytes:
        """What no line feed has ended."""
        return self._ended(b"")

    def _ended(self, piece: bytes) -> bytes:
        self._keep(piece)
        line = TOO_LONG if self.n_bytes > self._max_bytes else b"".join(self._parts)
        self._parts, self.n_bytes = [], 0
        return line

    def _keep(self, piece: bytes) -> None:
        self.n_bytes += len(piece)
        if self.n_bytes > self._max_bytes:
            self._parts = []
        elif piece:
            self._parts.append(piece)

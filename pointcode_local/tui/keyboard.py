"""What the terminal sends, as events: pastes are taken whole before anything in them could be read as keys."""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Callable, Iterable

from textual._xterm_parser import XTermParser
from textual.events import Paste
from textual.message import Message

PASTE_BEGINS = "\x1b[200~"
PASTE_ENDS = "\x1b[201~"
READ_BYTES = 65_536
TICK_S = 0.1
LOST_TICKS = 100  # without a word, and a paste that was begun is over: its end got lost
_SURELY = 3  # characters of PASTE_BEGINS that are held back; fewer may be Escape: the parser has a time limit for that


class PasteParser(XTermParser):
    """Textual's parser looks for keys within a paste once it holds an escape character: colours copied with a text
    would then press Enter, or answer a question. Here what stands between the two marks is text and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._pasted: str | None = None  # of the paste that is under way
        self._held = ""  # the beginning of a mark, perhaps
        self._n_quiet = 0  # ticks since the last piece

    def feed(self, data: str) -> Iterable[Message]:
        """The events of the next piece; an empty one is the end."""
        if not data:
            yield from super().feed("")
            return
        data, self._held, self._n_quiet = self._held + data, "", 0
        while data:
            if self._pasted is None:
                keys, mark, data = data.partition(PASTE_BEGINS)
                if mark:
                    self._pasted = ""
                else:
                    keys = self._hold(keys)
                if keys:
                    yield from super().feed(keys)
            else:
                whole, mark, rest = (self._pasted + data).partition(PASTE_ENDS)
                self._pasted, data = (None, rest) if mark else (whole, "")
                if mark:
                    yield Paste(whole.replace("\x00", ""))

    def tick(self) -> Iterable[Message]:
        """Called ten times a second while nothing comes: what was held back is no mark, a paste has an end."""
        self._n_quiet += 1
        if self._held and self._n_quiet > 1:
            held, self._held = self._held, ""
            yield from super().feed(held)
        if self._pasted is not None and self._n_quiet > LOST_TICKS:
            whole, self._pasted = self._pasted, None
            yield Paste(whole.replace("\x00", ""))
        yield from super().tick()

    def _hold(self, keys: str) -> str:
        """Keep back an end that may be half a mark."""
        for n in range(len(PASTE_BEGINS) - 1, _SURELY - 1, -1):
            if keys.endswith(PASTE_BEGINS[:n]):
                self._held = keys[-n:]
                return keys[:-n]
        return keys


def read_keys(descriptor: int, has_ended: Callable[[], bool], take: Callable[[Message], None]) -> None:
    """Read the terminal until `has_ended`. Bytes that are no UTF-8 come as U+FFFD: they end nothing."""
    parser = PasteParser()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    data = _typed_ahead(descriptor)
    while not has_ended():
        if not data and select.select([descriptor], [], [], TICK_S)[0]:
            data = os.read(descriptor, READ_BYTES)
            if not data:
                return
        text, data = decoder.decode(data), b""
        for event in parser.feed(text) if text else ():
            take(event)
        for event in parser.tick():
            take(event)


def _typed_ahead(descriptor: int) -> bytes:
    """What was typed before the program had the terminal.

    Enter became a line feed on its way then, which is ctrl+j now that keys come as they are: a new line. Behind a
    single line it is Enter again and sends it. Several lines may be a paste, which no mark tells from keys yet, and a
    line of that could be a command: they stand in the field as they are.
    """
    data = b""
    while select.select([descriptor], [], [], 0)[0] and (piece := os.read(descriptor, READ_BYTES)):
        data += piece
    return data[:-1] + b"\r" if 0 <= data.find(b"\n") == len(data) - 1 else data

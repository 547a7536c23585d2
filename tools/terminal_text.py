"""What a command's output looks like when it stands still: decoded, without escape sequences, carriage returns and
cursor movements resolved. Fed in pieces of any size; the cut never shows in the result.

Numbers are the columns and rows of code points; wide characters count as one.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

LIVE_ROWS = 100  # rows that cursor movements can still reach
MAX_COLUMN = 10_000  # a cursor cannot be put further right
MAX_ROW = 32_768  # a row longer than this is given out in pieces, which nothing can change any more
MAX_PENDING = 4096  # an unfinished escape sequence longer than this is given up

_PLAIN = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udcff]+")  # tab and newline are plain here
_CSI = re.compile(r"(?:\x1b\[|\x9b)([0-?]*)([ -/]*)([@-~])")
_CSI_PART = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*\Z")
_STRING = re.compile(r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\|(?=[\n\x1b]))")
_STRING_PART = re.compile(r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*\x1b?\Z")
_ESCAPE = re.compile(r"\x1b[ -/]*[0-~]")
_ESCAPE_PART = re.compile(r"\x1b[ -/]*\Z")


class TerminalText:
    """Resolves a byte stream. Rows that no cursor movement can reach any more go to `emit`, with their newline.

    `live` gets each row when its newline comes (a row rewritten later comes again), for showing a command at work.
    """

    def __init__(self, emit: Callable[[str], None], live: Callable[[str], None] = lambda text: None) -> None:
        self._emit = emit
        self._live = live
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pending = ""
        self._rows: list[str] = [""]
        self._row = 0
        self._column = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._consume(self._pending + self._decoder.decode(data), final=False)

    def finish(self) -> None:
        """No more comes: emit what is left."""
        self._consume(self._pending + self._decoder.decode(b"", final=True), final=True)
        text = "\n".join(self._rows)
        if self._rows[self._row]:
            self._live(self._rows[self._row])
        self._rows, self._row, self._column = [""], 0, 0
        if text:
            self._emit(text)

    def settle(self) -> str:
        """Emit all rows but the one the cursor is in, which is returned: what is there now, for one who looks."""
        if self._row == len(self._rows) - 1 and self._row:
            self._emit("".join(row + "\n" for row in self._rows[:-1]))
            self._rows, self._row = [self._rows[-1]], 0
        return self._rows[self._row] if self._row == len(self._rows) - 1 else ""

    def _consume(self, text: str, *, final: bool) -> None:
        at = 0
        while at < len(text):
            plain = _PLAIN.match(text, at)
            if plain is not None:
                self._put(plain.group())
                at = plain.end()
                continue
            used = self._control(text, at, final)
            if used == 0:
                break
            at += used
        self._pending = text[at:]
        if len(self._pending) > MAX_PENDING:
            self._pending = self._pending[:2]  # still inside the sequence: drop what it holds

    def _control(self, text: str, at: int, final: bool) -> int:
        """Act on the control character at `at`; returns the characters used, 0 when more is needed."""
        char = text[at]
        if char in "\x1b\x90\x98\x9b\x9d\x9e\x9f":
            return self._sequence(text, at, final)
        if char == "\r":
            if at + 1 == len(text) and not final:
                return 0
            self._column = 0
        elif char == "\x08":
            self._column = max(0, self._column - 1)
        elif char in "\x0b\x0c\x85":
            self._new_row()
        elif "\udc80" <= char <= "\udcff":
            return self._stray(text, at, final)
        return 1

    def _stray(self, text: str, at: int, final: bool) -> int:
        """A byte that is not UTF-8: an 8-bit control when a whole sequence follows, else U+FFFD."""
        byte = ord(text[at]) - 0xDC00
        if byte == 0x9B:
            rest = "\x9b" + text[at + 1 : at + 64]
            if (found := _CSI.match(rest)) is not None:
                self._csi(found)
                return found.end()
            if not final and _CSI_PART.match(rest):
                return 0
        if byte == 0x9D and re.match(r"[0-9]+;", text[at + 1 : at + 8]):
            rest = "\x9d" + re.sub("[\udc9c]", "\x9c", text[at + 1 :])
            if (found := _STRING.match(rest)) is not None:
                return found.end()
            if not final:
                return 0
        self._put("\ufffd")
        return 1

    def _sequence(self, text: str, at: int, final: bool) -> int:
        for pattern in (_STRING, _CSI, _ESCAPE):
            if (found := pattern.match(text, at)) is not None and not (pattern is _ESCAPE and text[at + 1] in "[]PX^_"):
                if pattern is _CSI:
                    self._csi(found)
                return found.end() - at
        unfinished = any(part.match(text, at) for part in (_STRING_PART, _CSI_PART, _ESCAPE_PART))
        if not unfinished:
            return 1
        return len(text) - at if final else 0

    # --------------------------------------------------------------------------------------------- the screen
    def _put(self, text: str) -> None:
        if "\n" not in text:
            self._write(text)
            return
        if self._row == len(self._rows) - 1 and len(text) > 4096:
            self._put_many(text)
            return
        parts = text.split("\n")
        for part in parts[:-1]:
            self._write(part)
            self._new_row()
        self._write(parts[-1])

    def _put_many(self, text: str) -> None:
        """A long run of lines below everything else: only the last rows need to stay reachable."""
        parts = text.split("\n")
        self._write(parts[0])
        rows = [*self._rows, *parts[1:]]
        self._live("".join(row + "\n" for row in rows[self._row : -1]))
        keep = rows[-LIVE_ROWS:]
        self._emit("".join(row + "\n" for row in rows[: len(rows) - len(keep)]))
        self._rows, self._row, self._column = keep, len(keep) - 1, len(keep[-1])

    def _write(self, text: str) -> None:
        if not text:
            return
        row, column = self._rows[self._row], self._column
        if column > len(row):
            row += " " * (column - len(row))
        self._rows[self._row] = row + text if column == len(row) else row[:column] + text + row[column + len(text) :]
        self._column = column + len(text)
        if len(self._rows[-1]) > MAX_ROW and self._row == len(self._rows) - 1:
            self._emit("\n".join(self._rows))
            self._rows, self._row, self._column = [""], 0, 0

    def _new_row(self) -> None:
        self._live(self._rows[self._row] + "\n")
        self._row += 1
        self._column = 0
        if self._row == len(self._rows):
            self._rows.append("")
        if len(self._rows) > LIVE_ROWS:
            self._emit(self._rows.pop(0) + "\n")
            self._row -= 1

    def _csi(self, found: re.Match[str]) -> None:
        given, between, final = found.groups()
        if between or not re.fullmatch(r"[0-9;]*", given):
            return
        numbers = [min(int(n), MAX_COLUMN) if n else 0 for n in given.split(";")]
        first = numbers[0]
        steps = max(1, first)
        match final:
            case "A" | "F":
                self._row = max(0, self._row - steps)
            case "B" | "E":
                self._row = min(len(self._rows) - 1, self._row + steps)
            case "C":
                self._column = min(MAX_COLUMN, self._column + steps)
            case "D":
                self._column = max(0, self._column - steps)
            case "G" | "`":
                self._column = steps - 1
            case "K":
                self._erase_in_row(first)
            case "J":
                self._erase_below(first)
            case "H" | "f":
                self._column = max(1, numbers[1] if len(numbers) > 1 else 1) - 1
            case "P":
                row = self._rows[self._row]
                self._rows[self._row] = row[: self._column] + row[self._column + steps :]
            case _:
                pass
        if final in "EF":
            self._column = 0

    def _erase_in_row(self, how: int) -> None:
        row, column = self._rows[self._row], self._column
        if how == 0:
            self._rows[self._row] = row[:column]
        elif how == 1:
            self._rows[self._row] = " " * min(column + 1, len(row)) + row[column + 1 :]
        else:
            self._rows[self._row] = ""

    def _erase_below(self, how: int) -> None:
        if how == 0:
            self._rows[self._row] = self._rows[self._row][: self._column]
            del self._rows[self._row + 1 :]

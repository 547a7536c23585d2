"""A file as text that maps back to exactly its bytes: every decoding used here is reversible, so a splice of text is a
splice of bytes and nothing outside the spans changes.

Encodings: UTF-8 with or without BOM, UTF-16 and UTF-32 with BOM, Western single-byte (only when the bytes leave little
doubt), and "UTF-8 with stray bytes", whose strays are kept as lone surrogates and shown as U+FFFD.
Lines are counted by U+000A alone.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from dataclasses import dataclass, field

from .base import ToolError

BOMS: tuple[tuple[bytes, str], ...] = (  # UTF-32 first: its little-endian mark begins like UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
WIDE_MARKS = tuple(mark for mark, encoding in BOMS if encoding != "utf-8")
MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n", "PNG image"),
    (b"GIF8", "GIF image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"RIFF", "RIFF media file"),
    (b"%PDF-", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x7fELF", "ELF executable"),
    (b"\x1f\x8b", "gzip archive"),
    (b"BZh", "bzip2 archive"),
    (b"\xfd7zXZ\x00", "xz archive"),
    (b"\x28\xb5\x2f\xfd", "zstd archive"),
    (b"7z\xbc\xaf", "7z archive"),
    (b"OggS", "Ogg media file"),
    (b"fLaC", "FLAC audio"),
    (b"ID3", "MP3 audio"),
    (b"SQLite format 3\x00", "SQLite database"),
    (b"GGUF", "GGUF model"),
    (b"\x00asm", "WebAssembly module"),
)
SAMPLE_BYTES = 65536
CONTROLS = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
HIGH_RUN = re.compile(rb"[\x80-\xff]+")
SURROGATE = re.compile(r"[\ud800-\udfff]")
MULTIBYTE = re.compile(r"[^\x00-\x7f\udc80-\udcff]")
# Western letters and marks that other single-byte code pages use for something else less often.
WESTERN_PAIRS = ("üß", "öß", "äß")  # as in Grüße; in other code pages these bytes do not follow each other
WESTERN = frozenset("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜßàáâãäåæçèéêëìíîïñòóôõöøùúûüÿ°§«»€‘’“”–—…œ")


def binary_kind(data: bytes) -> str | None:
    """What a file that is not text is, by its content; None for text."""
    if any(data.startswith(mark) for mark, _ in BOMS):
        return None
    for mark, kind in MAGIC:
        if data.startswith(mark) and not (mark.isalnum() and _is_plain(data)):
            return kind
    sample = data[:SAMPLE_BYTES]
    if b"\x00" in data:
        return "binary file"
    if len(CONTROLS.findall(sample)) * 20 > len(sample):
        return "binary file"
    return None


def _is_plain(data: bytes) -> bool:
    """A text that merely begins with letters such as `ID3` or `RIFF`."""
    sample = data[:SAMPLE_BYTES]
    return not CONTROLS.search(sample) and sample.isascii()


@dataclass(frozen=True, slots=True)
class FileText:
    """`raw` decoded; `text` is without the BOM. Offsets are characters of `text`."""

    raw: bytes
    bom: bytes
    encoding: str
    errors: str
    text: str
    western: bool = False
    newlines: list[int] = field(default_factory=list[int], repr=False)  # offsets of U+000A, ascending

    @property
    def n_lines(self) -> int:
        """Lines as editors count them: a last line without newline counts, an empty file has none."""
        ends = self.newlines
        return len(ends) + (1 if self.text and not self.text.endswith("\n") else 0)

    def line_of(self, offset: int) -> int:
        """1-based number of the line that holds `offset`."""
        return bisect_right(self.newlines, offset - 1) + 1

    def line_span(self, number: int) -> tuple[int, int]:
        """Start and end offset of 1-based line `number`, its newline included."""
        start = self.newlines[number - 2] + 1 if number > 1 else 0
        end = self.newlines[number - 1] + 1 if number <= len(self.newlines) else len(self.text)
        return start, end

    def line(self, number: int) -> str:
        """Line `number` without its ending (`\\n` or `\\r\\n`)."""
        start, end = self.line_span(number)
        return without_ending(self.text[start:end])

    def ending_near(self, offset: int) -> str:
        """The line ending in use where `offset` lies: of its line, else of the line before, else `\\n`."""
        at = bisect_right(self.newlines, offset - 1)
        if at == len(self.newlines):
            at -= 1
        if at < 0:
            return "\n"
        end = self.newlines[at]
        return "\r\n" if end > 0 and self.text[end - 1] == "\r" else "\n"

    def encode(self, text: str) -> bytes:
        """Bytes of `text` in this file's encoding; raises ToolError where that would not be what the text says."""
        require_unicode(text)
        if text.isascii() or (self.encoding != "utf-8" and not self.western):
            return text.encode(self.encoding)
        if self.western:
            return self._encode_western(text)
        if self.errors == "surrogateescape" and not MULTIBYTE.search(self.text):
            raise ToolError(
                "the file holds bytes that are not UTF-8 and its encoding is unknown, so only ASCII text can be put in"
            )
        return text.encode("utf-8")

    def _encode_western(self, text: str) -> bytes:
        odd = sorted({c for c in text if not c.isascii() and c not in WESTERN})
        if odd:
            raise ToolError(f"the file is in a legacy encoding ({self.encoding}) that has no {' '.join(odd[:5])}")
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ToolError(
                f"the file's encoding ({self.encoding}) cannot hold {error.object[error.start]!r}"
            ) from error

    def spliced(self, spans: list[tuple[int, int, str]]) -> bytes:
        """The file's bytes with each (start, end, text) put in; spans ascend and do not overlap."""
        parts = [self.bom]
        at_char, at_byte = 0, len(self.bom)
        for start, end, new in spans:
            start_byte = at_byte + len(self._original(self.text[at_char:start]))
            parts += [self.raw[at_byte:start_byte], self.encode(new)]
            at_byte = start_byte + len(self._original(self.text[start:end]))
            at_char = end
        parts.append(self.raw[at_byte:])
        return b"".join(parts)

    def whole(self, text: str) -> bytes:
        """Bytes of a new whole content: the BOM is kept, and only once."""
        return self.bom + self.encode(text.removeprefix("\ufeff") if self.bom else text)

    def _original(self, text: str) -> bytes:
        return text.encode(self.encoding, self.errors)


def decode(raw: bytes) -> FileText:
    """Read bytes as text; raises ToolError for a binary file or a damaged UTF-16/32 file."""
    if (kind := binary_kind(raw)) is not None:
        raise ToolError(f"not a text file: {kind}, {len(raw):,} bytes")
    bom, encoding = next(((mark, name) for mark, name in BOMS if raw.startswith(mark)), (b"", "utf-8"))
    body = raw[len(bom) :]
    if encoding != "utf-8":
        try:
            return _made(raw, bom, encoding, "strict", body.decode(encoding))
        except UnicodeDecodeError as error:
            raise ToolError(f"not a text file: begins like {encoding} but is damaged at byte {error.start}") from error
    try:
        return _made(raw, bom, "utf-8", "strict", body.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    if not bom and (western := _western_encoding(body)):
        return _made(raw, bom, western, "strict", body.decode(western), western=True)
    return _made(raw, bom, "utf-8", "surrogateescape", body.decode("utf-8", "surrogateescape"))


def _made(raw: bytes, bom: bytes, encoding: str, errors: str, text: str, western: bool = False) -> FileText:
    return FileText(raw, bom, encoding, errors, text, western, newline_offsets(text))


def newline_offsets(text: str) -> list[int]:
    """Offsets of every U+000A."""
    found: list[int] = []
    at = text.find("\n")
    while at >= 0:
        found.append(at)
        at = text.find("\n", at + 1)
    return found


def _western_encoding(body: bytes) -> str | None:
    """cp1252 or latin-1 when all beyond ASCII is lone Western letters beside ASCII, or one of a few pairs; else None.

    Cyrillic, Greek or CJK text has runs of high bytes; Turkish and Polish use positions left out of WESTERN.
    """
    encoding = "cp1252" if re.search(rb"[\x80-\x9f]", body) else "latin-1"
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        return None
    for run in HIGH_RUN.finditer(body):
        piece = text[run.start() : run.end()]
        if piece in WESTERN_PAIRS:
            continue
        if len(set(piece)) > 1 or len(piece) > 2 or piece[0] not in WESTERN:
            return None
    return encoding


def require_unicode(text: str) -> None:
    """Refuse lone surrogates: they are no characters and have no bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError(
            f"the text holds a lone surrogate (U+{ord(error.object[error.start]):04X}) at {error.start}"
        ) from error


def visible(text: str) -> str:
    """Text as it may be shown: stray bytes become U+FFFD."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def show_name(name: str) -> str:
    """A file name on one line: control characters are written as escapes, stray bytes replaced."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else ("\ufffd" if "\ud800" <= c <= "\udfff" else repr(c)[1:-1]) for c in name)


def without_ending(line: str) -> str:
    """`line` without a final `\\n` or `\\r\\n`."""
    if line.endswith("\r\n"):
        return line[:-2]
    return line.removesuffix("\n")

"""Text made safe and short for people: inert plain text, one-line clips, counts and tool summaries.

Everything a model, a tool or a person wrote goes through `plain` before it reaches a screen: escape sequences, bidi
overrides and invisible characters become visible marks, so no text can move the cursor, hide or reorder anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len, chop_cells

from pointcode_local.events import FileDiff, TurnFinished

# Bidi controls, zero-width and other invisible characters (Unicode 16, general categories Cf, Zl, Zp and fillers).
_INVISIBLE = (
    *range(0x80, 0xA0),
    0xAD,
    0x34F,
    0x61C,
    0x115F,
    0x1160,
    0x17B4,
    0x17B5,
    *range(0x180B, 0x1810),
    0x200B,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0x3164,
    *range(0xFE00, 0xFE0E),
    0xFEFF,
    0xFFA0,
    *range(0xFFF9, 0xFFFC),
    *range(0x13430, 0x13440),
    *range(0x1BCA0, 0x1BCA4),
    *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE0200),
)
_VISIBLE: dict[int, str] = {
    **{code: f"<U+{code:04X}>" for code in _INVISIBLE},
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
# Joiners and variation selectors belong into emoji and into some scripts, at most two after a character (the longest
# well-formed case is VS16 + ZWJ). After ASCII, at the start, or in longer runs they only hide something.
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
_JOINER_RUN = re.compile(f"([\u0300-\u200b\u200e-\ufe0d\ufe10-\U0010ffff]?)([{_JOINERS}]+)")
_UNFINISHED = re.compile(f"[\r{_JOINERS}]+\\Z")


def _checked_joiners(match: re.Match[str]) -> str:
    base, run = match.groups()
    if base and len(run) <= 2:
        return match.group()
    return base + "".join(f"<U+{ord(character):04X}>" for character in run)


def _codepoint(match: re.Match[str]) -> str:
    return f"<U+{ord(match.group()):04X}>"


def plain(text: str, before: str = "") -> str:
    """`text` with every control, bidi and invisible character replaced by a visible mark; `\\n` and `\\t` stay.

    `before` is the character that precedes `text`, for text that arrives in pieces.
    """
    if text.isascii() and text.isprintable():
        return text
    joined = _JOINER_RUN.sub(_checked_joiners, before + text.replace("\r\n", "\n"))
    return _SURROGATE.sub(_codepoint, joined[len(before) :].translate(_VISIBLE))


class PlainStream:
    """`plain` for text in pieces: the output does not depend on where the pieces were cut."""

    def __init__(self) -> None:
        self._held = ""  # a final CR, which may be half a line end, and joiners, whose run may go on
        self._before = ""

    def feed(self, text: str) -> str:
        """The inert form of what `text` adds."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished.group() if unfinished else ""
        return self._show(text[: len(text) - len(self._held)])

    def _show(self, text: str) -> str:
        shown = plain(text, self._before)
        self._before = text[-1:] or self._before
        return shown

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._show(held)


TAB_CELLS = 4
MAX_LINE = 10_000  # characters of one line of an answer that are shown
_ONE_LINE = 20_000  # characters that `one_line` looks at


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning and end where it is longer than `limit`, with what is left out said between them."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]} … {len(text) - limit:,} characters not shown … {text[-tail:]}"


class LineLimit:
    """Cuts lines longer than MAX_LINE, for text in pieces: what comes out does not depend on where they were cut."""

    def __init__(self) -> None:
        self._column = 0

    def feed(self, text: str) -> str:
        """What of `text` is shown."""
        if self._column + len(text) <= MAX_LINE:
            at = text.rfind("\n")
            self._column = self._column + len(text) if at < 0 else len(text) - at - 1
            return text
        parts: list[str] = []
        for n, piece in enumerate(text.split("\n")):
            if n:
                parts.append("\n")
                self._column = 0
            room = MAX_LINE - self._column
            parts.append(piece[: max(0, room)])
            if 0 <= room < len(piece):
                parts.append(" … (the rest of this line is not shown)")
            self._column += len(piece) + (0 <= room < len(piece))
        return "".join(parts)


def one_line(text: str, width: int = 0) -> str:
    """`text` inert and on one line; with `width`, clipped to that many cells with an ellipsis."""
    flat = " ".join(plain(shortened(text, _ONE_LINE)).split())
    return clip(flat, width) if width else flat


def clip(text: str, width: int) -> str:
    """`text` cut to `width` cells; a cut is marked with an ellipsis."""
    if width <= 0:
        return ""
    if len(text) > 4 * width + 64:  # more than can be shown, whatever joins in one cell
        text = text[: 4 * width + 64]
    elif cell_len(text) <= width:
        return text
    pieces = chop_cells(text, width - 1) if width > 1 else []
    return (pieces[0] if pieces else "") + "…"


def short_count(n: int) -> str:
    """A count of tokens in at most five characters: 980, 12.4k, 131k, 1.2M."""
    if n < 1000:
        return str(n)
    if n < 99_950:
        return f"{n / 1000:.1f}k".replace(".0k", "k")
    if n < 999_500:
        return f"{n / 1000:.0f}k"
    return f"{n / 1_000_000:.1f}M"


def short_seconds(seconds: float) -> str:
    """A duration for people: 0.31 s, 4.2 s, 75 s, 3 min 20 s."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def short_bytes(n: int) -> str:
    """A size for people: 512 B, 3.4 kB, 491 MB."""
    size = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def count_lines(text: str) -> int:
    """Lines of `text`; a final newline does not start another."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def plural(n: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def limit_text(event: TurnFinished) -> str:
    """Why a turn ended at a limit, as a sentence."""
    text = event.error or f"stopped after {plural(event.turns, 'model call')}"
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


_FENCED = re.compile(r"(?s)[^\n]*\n(?P<fence>```+)[^\n]*\n(?P<body>.*?\n)?(?P=fence)")


def added_to_prompt(source: str, text: str) -> str:
    """What a person is told of text that was put before the model.

    Lines that are no part of the text are not counted: the one in brackets that says where it is from, the one that
    says where it was cut, and the fence around a file. A text that is nothing but a line in brackets says itself what
    it is.
    """
    head, _, rest = text.partition("\n")
    if head.startswith("[") and head.endswith("]"):
        if not rest:
            return one_line(head[1:-1])
        text = rest
    elif fenced := _FENCED.match(text):
        text = fenced["body"] or ""
    body, _, last = text.rpartition("\n")
    if last.startswith("[cut") and last.endswith("]"):
        return f"{one_line(source)} added to the prompt, its first {plural(count_lines(body), 'line')}"
    return f"{one_line(source)} added to the prompt, {plural(count_lines(text), 'line')}"


_KEY_ARGUMENTS = ("command", "path", "pattern", "question", "patch", "id")


def call_title(name: str, arguments: dict[str, Any]) -> str:
    """One line for a call whose tool gave no title: its name and most telling argument."""
    for key in _KEY_ARGUMENTS:
        if isinstance(value := arguments.get(key), str) and value:
            return one_line(f"{name} {value}")
    return one_line(name)


def result_summary(text: str, is_error: bool, denied: str, diffs: tuple[FileDiff, ...], counts: tuple[int, int]) -> str:
    """What a finished call came to, in a few words; `counts` are the added and removed lines of `diffs`."""
    if denied:
        return f"not allowed: {one_line(denied)}"
    if is_error:
        return _error_summary(text)
    if diffs:
        return f"+{counts[0]} −{counts[1]}"
    n_lines = count_lines(text)
    return plural(n_lines, "line") if n_lines != 1 else one_line(text)


_EXIT_CODE = re.compile(r"exit(?:ed with)?(?: code| status)?:? (\d+)", re.IGNORECASE)


def _error_summary(text: str) -> str:
    """A command's exit code; the error itself when it is one line; the first line of a longer one."""
    lines = [line for line in text.splitlines() if line.strip()]
    for line in (*lines[:1], *lines[-1:]):
        if len(lines) > 1 and (found := _EXIT_CODE.search(line)):
            return f"exit code {found.group(1)}"
    return one_line(lines[0]) if lines else "failed"


def error_tail(text: str, n: int) -> list[str]:
    """The last `n` lines of a failed call's result, without the one that its summary shows already."""
    lines = tail_lines(text, n)
    return lines[1:] if lines and one_line(lines[0]) == _error_summary(text) else lines


def tail_lines(text: str, n: int) -> list[str]:
    """The last `n` lines of `text`, reading no more than it must."""
    end = len(text) - text.endswith("\n")
    start = end
    for _ in range(n):
        start = text.rfind("\n", 0, start)
        if start < 0:
            break
    return text[start + 1 : end].split("\n") if end else []


def expand_tabs(text: str) -> str:
    """Tabs to spaces, so that columns can be counted."""
    return text.expandtabs(TAB_CELLS) if "\t" in text else text


def shown_lines(text: str) -> Iterator[str]:
    """The lines of `text`, inert and without tabs, as output and files are shown."""
    for line in text.removesuffix("\n").split("\n"):
        yield expand_tabs(plain(line))

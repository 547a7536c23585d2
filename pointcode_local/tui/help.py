"""`/help`: how to work with it, every key and command, and what the figures of the last line mean."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from pointcode_local.complete import COMMANDS, MODE_MEANING, SlashCommand
from pointcode_local.tui.panel import Panel

Pairs = tuple[tuple[str, str], ...]

_START = (
    "Write what you want done and press enter. The model reads files, changes them and runs commands until it is "
    "done. In mode ask it shows you each change and each command first, and waits for your yes. /undo takes the last "
    "turn's changes back."
)
SENDING: Pairs = (
    ("enter", "send; while a turn runs: wait for its end"),
    ("ctrl+s", "while a turn runs: tell the model before its next step"),
    ("esc", "stop the turn"),
    ("tab", "answer the open question first"),
    ("ctrl+c twice, ctrl+d", "quit; the session is kept"),
    ("ctrl+z", "back to the shell, where fg returns here; what runs stands still"),
    ("shift+tab", "next permission mode"),
)
WRITING: Pairs = (
    ("@", "name a file"),
    ("!command", "run a command yourself"),
    ("shift+enter, ctrl+j, \\ enter", "new line"),
    ("up, down", "earlier messages, queued ones first"),
    ("ctrl+r", "search earlier messages"),
    ("ctrl+g", "write in your editor"),
    ("ctrl+_, ctrl+y", "undo what was typed, redo it"),
)
READING: Pairs = (
    ("page up, page down", "scroll; ctrl+end goes to the end"),
    ("ctrl+o", "unfold everything, fold again"),
    ("ctrl+t", "all steps of the plan"),
    ("mouse, then ctrl+c", "copy what was marked; with shift the terminal marks instead"),
)
FIGURES: Pairs = (
    ("mode", "what happens without asking you"),
    ("sandbox", "what keeps commands inside this folder"),
    ("job", "a command that the model left running (/jobs); it ends with the program"),
    ("context", "how full the model's memory is; older messages are shortened before 100%, or by /compact"),
    ("tok/s", "how fast the model writes, in tokens (about ¾ of a word)"),
    ("first token", "how long the model read before it wrote"),
    ("cache", "how much of the prompt it had read before"),
    ("guessed", "how many tokens guessed ahead were right"),
    ("title of the window", "? waits for your answer, * works"),
)
_NAME_CELLS = 30
_INDENT = 2


class HelpScreen(Panel):
    """All of it, scrolled by the arrow and page keys."""

    def __init__(self, own: Sequence[SlashCommand] = ()) -> None:
        """`own` are the commands that the person and the project wrote."""
        super().__init__()
        self._own = own

    def lines(self, width: int) -> list[Content]:
        """Sections of pairs."""
        modes = tuple((mode, meaning) for mode, meaning in MODE_MEANING.items())
        commands = tuple((f"/{c.name} {c.argument}".rstrip(), c.summary) for c in (*COMMANDS, *self._own))
        lines = [self.title_line("Help", "esc closes, page down scrolls"), Content("")]
        lines += Content(_START).wrap(width)
        for title, pairs in (
            ("Sending", SENDING),
            ("Writing", WRITING),
            ("Reading", READING),
            ("Commands", commands),
            ("Permission modes", modes),
            ("The last line of the screen", FIGURES),
        ):
            lines += [Content(""), Content.assemble((title, "bold"))]
            for name, meaning in pairs:
                lines += _pair(name, meaning, width)
        return lines


def _pair(name: str, meaning: str, width: int) -> list[Content]:
    """The name, and its meaning beside it, or below it where the screen is narrow."""
    beside = width >= 2 * _NAME_CELLS
    room = width - _INDENT - (_NAME_CELLS if beside else _INDENT)
    wrapped = Content(meaning).wrap(max(8, room))
    head = " " * _INDENT + (name.ljust(_NAME_CELLS) if beside else name)
    pad = " " * (_INDENT + (_NAME_CELLS if beside else _INDENT))
    faint = "$foreground 60%"
    if beside:
        first, rest = Content.assemble(head, wrapped[0].stylize(faint)), wrapped[1:]
    else:
        first, rest = Content(head), wrapped
    return [first, *(Content.assemble(pad, line.stylize(faint)) for line in rest)]

"""Events as lines of text on a terminal or in a file: the output half of the plain front end."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TextIO

from pointcode_local.diff import DiffRow, change_counts, diff_rows, diff_title
from pointcode_local.events import (
    AgentEvent,
    AssistantMessage,
    CompactionFinished,
    CompactionStarted,
    ContextAdded,
    ErrorRaised,
    FileDiff,
    PermissionAsked,
    PrefillChanged,
    PromptQueued,
    QuestionAsked,
    ReasoningDelta,
    Steered,
    TextDelta,
    TodoChanged,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnFinished,
    TurnStarted,
    UsageChanged,
)
from pointcode_local.heldback import HeldBack
from pointcode_local.render import (
    MAX_LINE,
    PlainStream,
    added_to_prompt,
    call_title,
    count_lines,
    error_tail,
    limit_text,
    one_line,
    plain,
    result_summary,
    short_count,
    short_seconds,
    shortened,
    shown_lines,
)

MAX_CHANGED = 10  # names of files that a command changed
MAX_DIFF_ROWS = 200
ERROR_LINES = 8
MAX_ARGUMENT_CHARS = 100_000
_PROGRESS_FROM_TOKENS = 1000
_SGR = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "blue": "34", "mark": "7"}


@dataclass(frozen=True, slots=True)
class Look:
    """What the terminal can show: `color` SGR sequences, `redraw` carriage returns."""

    color: bool
    redraw: bool

    @classmethod
    def of(cls, out: TextIO) -> Look:
        """Nothing for files, pipes and dumb terminals; no colour when NO_COLOR is set."""
        capable = out.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        return cls(color=capable and not os.environ.get("NO_COLOR"), redraw=capable)

    def paint(self, text: str, *styles: str) -> str:
        """`text` in `styles`; one line at a time, so that a pager keeps the colours."""
        if not self.color or not text:
            return text
        return f"\x1b[{';'.join(_SGR[style] for style in styles)}m{text}\x1b[0m"


class LinePrinter:
    """Writes one conversation. Text streams as it comes; everything else begins on a new line."""

    def __init__(self, out: TextIO | None = None, look: Look | None = None) -> None:
        self._out = out or sys.stdout
        self.look = look or Look.of(self._out)
        self._text = PlainStream()
        self._output = PlainStream()
        self._line_open = False
        self._progress_shown = False
        self._thinking_shown = False
        self._held_back = HeldBack()
        self._denials: set[str] = set()  # the sentences in which the agent tells of the turn's denied calls
        self._output_column = 0
        self._n_output_chars = 0

    # ------------------------------------------------------------------- lines
    def line(self, text: str = "", *styles: str) -> None:
        """A line of its own; `text` must be inert already."""
        self.end_line()
        self._write("\n".join(self.look.paint(part, *styles) for part in text.split("\n")) + "\n")

    def end_line(self) -> None:
        """Finish what is open on the present line."""
        self._clear_progress()
        if rest := self._text.finish():
            self._write(rest)
        if self._line_open:
            self._write("\n")
            self._line_open = False

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _clear_progress(self) -> None:
        if self._progress_shown:
            self._progress_shown = False
            self._write("\r\x1b[K")

    def _stream(self, text: str) -> None:
        self._clear_progress()
        if text:
            self._write(text)
            self._line_open = not text.endswith("\n")

    # ------------------------------------------------------------------ events
    def show(self, event: AgentEvent) -> None:
        """Print one event."""
        match event:
            case TextDelta(text=text) if text in self._denials:
                pass  # said with the call
            case TextDelta(text=text):
                self._stream(self._text.feed(self._held_back.feed(text)))
            case ReasoningDelta():
                self._thinking()
            case AssistantMessage(text=text):
                if (rest := self._held_back.rest(text)) and rest not in self._denials:
                    self._stream(self._text.feed(rest))
                self.end_line()
                self._thinking_shown = False
            case PrefillChanged():
                self._prefill(event)
            case ToolStarted():
                self.line(f"* {one_line(event.title or call_title(event.name, event.arguments))}", "bold")
                self._output_column = self._n_output_chars = 0
            case ToolProgress(text=text):
                self._tool_output(text)
            case ToolFinished():
                self._tool_finished(event)
            case TodoChanged(items=items):
                self._todo(items)
            case UsageChanged():
                self._usage(event)
            case ErrorRaised(message=message):
                self.line(f"error: {plain(shortened(message, MAX_ARGUMENT_CHARS))}", "red")
            case ContextAdded(source=source, text=text) if source not in ("environment", "note"):
                self.line(f"({added_to_prompt(source, text)})", "dim")
            case Steered(prompt=prompt):
                self.line(f"> {plain(prompt)}", "dim")
            case PromptQueued(prompt=prompt):
                self.line(f"(queued: {one_line(prompt, 60)})", "dim")
            case CompactionStarted(context_tokens=tokens):
                self.line(f"(shortening the conversation of {short_count(tokens)} tokens)", "dim")
            case CompactionFinished(context_tokens=tokens, summary=summary):
                told = f"the conversation now holds {short_count(tokens)} tokens" if summary else "nothing was left out"
                self.line(f"({told})", "dim")
            case TurnFinished():
                self._turn_finished(event)
            case TurnStarted():
                self._thinking_shown = False
            case _:
                pass

    def _thinking(self) -> None:
        if not self._thinking_shown:
            self._thinking_shown = True
            self.line("(thinking)", "dim")

    def _prefill(self, event: PrefillChanged) -> None:
        if not self.look.redraw or event.total_tokens < _PROGRESS_FROM_TOKENS or self._line_open:
            return
        percent = 100 * event.done_tokens // max(1, event.total_tokens)
        cached = f", {short_count(event.cached_tokens)} from cache" if event.cached_tokens else ""
        self._progress_shown = True
        total = short_count(event.total_tokens)
        self._write("\r\x1b[K" + self.look.paint(f"reading the prompt: {percent}% of {total} tokens{cached}", "dim"))

    def _tool_output(self, text: str) -> None:
        self._clear_progress()
        shown = self._output.feed(text)
        self._n_output_chars += len(text)
        pieces: list[str] = []
        for n, part in enumerate(shown.split("\n")):
            if n:
                pieces.append("\n")
                self._output_column = 0
            if part:
                pieces.append(("  | " if self._output_column == 0 else "") + part)
                self._output_column += len(part)
        self._write("".join(pieces))
        self._line_open = self._output_column > 0

    def _tool_finished(self, event: ToolFinished) -> None:
        self._output.finish()
        if event.denied:
            self._denials.add(f"Denied: {event.denied}.")
        counts = change_counts(event.diffs)
        summary = result_summary(event.text, event.is_error, event.denied, event.diffs, counts)
        word, color = ("no", "yellow") if event.denied else ("failed", "red") if event.is_error else ("ok", "green")
        self.line(f"  {word}: {summary}", color)
        if event.is_error and not event.denied and not self._n_output_chars and count_lines(event.text) > 1:
            for raw in error_tail(event.text, ERROR_LINES):
                for shown in shown_lines(shortened(raw, MAX_LINE)):
                    self.line(f"  | {shown}", "dim")
        if event.changed:
            names = ", ".join(map(one_line, event.changed[:MAX_CHANGED]))
            more = len(event.changed) - MAX_CHANGED
            self.line(f"  changed {names}" + (f" and {more} more" if more > 0 else ""), "dim")
        for diff in event.diffs:
            self.diff(diff)

    def diff(self, diff: FileDiff) -> None:
        """One file's diff: signs, line numbers, and colours and word marks where the terminal has them."""
        rows = diff_rows(diff)
        self.line(f"  {diff_title(diff)}", "bold")
        for row in rows[:MAX_DIFF_ROWS]:
            self.line("  " + self._diff_row(row))
        if len(rows) > MAX_DIFF_ROWS:
            self.line(f"  ... {len(rows) - MAX_DIFF_ROWS:,} more rows", "dim")

    def _diff_row(self, row: DiffRow) -> str:
        if row.kind == "gap":
            return self.look.paint(f"       ... {row.text}", "dim")
        number = row.new_no if row.new_no is not None else row.old_no
        sign = {"add": "+", "del": "-", "same": " "}[row.kind]
        head = f"{number:>5} {sign} "
        if row.kind == "same":
            return self.look.paint(head + row.text, "dim")
        color = "green" if row.kind == "add" else "red"
        parts = [self.look.paint(head, color)]
        at = 0
        for start, end in row.marks:
            parts += [self.look.paint(row.text[at:start], color), self.look.paint(row.text[start:end], color, "mark")]
            at = end
        return "".join([*parts, self.look.paint(row.text[at:], color)])

    def _todo(self, items: tuple[tuple[str, str], ...]) -> None:
        marks = {"done": "[x]", "in_progress": "[>]"}
        for text, status in items:
            self.line(f"  {marks.get(status, '[ ]')} {one_line(text)}", "dim" if status == "done" else "blue")

    def _usage(self, usage: UsageChanged) -> None:
        speed = f"{usage.tokens_per_second:.0f} tok/s, " if usage.tokens_per_second else ""  # one token has no speed
        self._usage_text = (
            f"{short_count(usage.context_tokens)} of {short_count(usage.context_limit)} tokens in context, "
            f"{speed}first token {short_seconds(usage.time_to_first_token_s)}, "
            f"{100 * usage.cached_tokens // max(1, usage.prompt_tokens)}% of the prompt from cache"
        )

    _usage_text = ""

    def _turn_finished(self, event: TurnFinished) -> None:
        self._stream(self._text.feed(self._held_back.abandon()))
        self.end_line()
        match event.outcome:
            case "cancelled":
                self.line("(stopped)", "yellow")
            case "limit":
                self.line(f"({plain(limit_text(event))})", "yellow")
            case "error" if event.error:
                self.line(f"error: {plain(event.error)}", "red")
            case "denied" if not self._denials:
                self.line("(stopped: a needed permission was denied)", "yellow")
            case _:
                pass
        self._denials.clear()
        if self._usage_text:
            self.line(f"({self._usage_text})", "dim")
            self._usage_text = ""

    # --------------------------------------------------------------- questions
    def permission(self, ask: PermissionAsked, *, offers_edits: bool) -> None:
        """Everything the person needs to decide; the rule is shown exactly as "always" would store it."""
        self.line(f"? allow {one_line(ask.title or ask.name)}", "yellow", "bold")
        if ask.diffs:
            for diff in ask.diffs:
                self.diff(diff)
        else:
            for name, value in ask.arguments.items():
                for n, shown in enumerate(shown_lines(shortened(str(value), MAX_ARGUMENT_CHARS))):
                    self.line(f"  {plain(name)}: {shown}" if n == 0 else f"    {shown}")
        if ask.reason:
            self.line(f"  why it asks: {one_line(ask.reason)}", "dim")
        always = f", a = always allow {plain(ask.rule)}".replace("\n", "␊") if ask.rule else ""
        edits = ", e = yes, and all later edits" if offers_edits else ""
        session = ", s = allow for this session" if ask.offers_session else ""
        self.line(f"  y = yes, this once{edits}{session}{always}, n = no")

    def question(self, ask: QuestionAsked) -> None:
        """The model's question and its numbered options."""
        self.line("? " + "\n  ".join(shown_lines(ask.question)), "yellow", "bold")
        for n, option in enumerate(ask.options, 1):
            self.line(f"  {n}. {one_line(option)}")

"""The lines around the composer: what is going on, the plan, queued messages, and the status line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from pointcode_local.engine_text import acceptance, sparkline
from pointcode_local.events import PrefillChanged, UsageChanged
from pointcode_local.frontend import HostInfo, Progress
from pointcode_local.render import one_line, plural, short_bytes, short_count, short_seconds
from pointcode_local.tui.meter import Meter
from pointcode_local.tui.story import Story

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_CELLS = 16
_JOINT = " · "
_SIDES_GAP = 2  # cells between the left and the right part
MIN_TIMED_TOKENS = 8  # the speed of a shorter reply is noise


def bar(part: float) -> str:
    """A progress bar for 0 ≤ part ≤ 1."""
    full = round(max(0.0, min(1.0, part)) * _BAR_CELLS)
    return "━" * full + "─" * (_BAR_CELLS - full)


def _prefill_text(prefill: PrefillChanged) -> str:
    """How far the prompt is read, and how much of it came from the cache."""
    part = prefill.done_tokens / max(1, prefill.total_tokens)
    text = f"{bar(part)} {short_count(prefill.done_tokens)}/{short_count(prefill.total_tokens)} tokens"
    return text + (f", {short_count(prefill.cached_tokens)} from cache" if prefill.cached_tokens else "")


def turn_text(story: Story, *, is_busy: bool) -> str:
    """What the turn is doing; "" when none runs. `is_busy`: one does, although nothing of it was heard yet."""
    if story.prefill is not None and story.in_turn:
        return f"Reading the prompt  {_prefill_text(story.prefill)}"
    return f"{story.doing or 'Working'}…" if story.in_turn or is_busy else ""


def title_text(info: HostInfo, story: Story) -> str:
    """What tells this window from others: the folder, and whether it waits for an answer (?) or works (*)."""
    mark = "? " if story.asks else "* " if story.in_turn else ""
    return f"{mark}{one_line(info.cwd.name or str(info.cwd), 40)} - pointcode"


def progress_text(progress: Progress) -> str:
    """Opening or fetching a model: `Downloading … ━━━━── 210 MB/491 MB`."""
    text = one_line(progress.text)
    if progress.total:
        return (
            f"{text}  {bar(progress.done / progress.total)} {short_bytes(progress.done)}/{short_bytes(progress.total)}"
        )
    return text


class Changing(Static):
    """A text that is set again and again and drawn only when it is another one."""

    def __init__(self, name: str) -> None:
        super().__init__("", id=name, markup=False)
        self._text_shown = Content("")

    def set_text(self, text: Content) -> None:
        """Show `text`; its lines are laid out again only when their number may be another."""
        before, self._text_shown = self._text_shown, text
        if text.is_same(before):
            return
        is_one_line = self.styles.height is not None and self.styles.height.is_cells
        self.update(text, layout=not is_one_line)


class ActivityLine(Changing):
    """One line above the composer while something runs; it is the only thing that moves on the screen."""

    def __init__(self, clock: Callable[[], float], *, animate: bool) -> None:
        super().__init__("activity")
        self.display = False
        self._clock = clock
        self._animated = animate
        self._since: float | None = None
        self._text = ""
        self._tick = 0
        self._hint = ""

    def on_mount(self) -> None:
        """Ten steps a second are enough for a spinner and a second counter."""
        if self._animated:
            self.set_interval(0.1, self._step)

    def set_activity(self, text: str, hint: str) -> None:
        """Show `text`; "" hides the line and resets its clock."""
        if not text:
            self._since = None
        elif self._since is None:
            self._since = self._clock()
        self._text, self._hint = text, hint
        self.display = bool(text)
        self._draw()

    def restart(self) -> None:
        """Count the seconds from now on: the next turn has begun."""
        self._since = self._clock()

    def _step(self) -> None:
        if self.display:
            self._tick += 1
            self._draw()

    def _draw(self) -> None:
        if self._since is None:
            return
        seconds = int(self._clock() - self._since)
        elapsed = f"{seconds} s" if 1 <= seconds < 120 else short_seconds(seconds) if seconds else ""
        self.set_text(
            Content.assemble(
                (_SPINNER[self._tick % len(_SPINNER)] + " ", "$accent"),
                self._text,
                (f"  {elapsed}" if elapsed else "", "$foreground 60%"),
                (f"  {self._hint}" if self._hint else "", "$foreground 42%"),
            )
        )


_TODO_GLYPHS = {"done": ("✓", "$success"), "in_progress": ("●", "$accent"), "pending": ("○", "$foreground 60%")}


class TodoPanel(Changing):
    """The plan: the step in work and how far it is; all steps after Ctrl+T or a click."""

    def __init__(self) -> None:
        super().__init__("todo")
        self.display = False
        self._items: tuple[tuple[str, str], ...] = ()
        self._unfolded = False

    def set_items(self, items: tuple[tuple[str, str], ...]) -> None:
        """Show `items`; an empty plan, or one that is all done, takes no room."""
        self._items = items
        self.display = any(status != "done" for _, status in items)
        self._draw()

    def toggle(self) -> None:
        """All steps, or only the one in work."""
        self._unfolded = not self._unfolded
        self._draw()

    def on_click(self, event: Click) -> None:
        """The same by mouse."""
        event.stop()
        self.toggle()

    def _draw(self) -> None:
        n_done = sum(status == "done" for _, status in self._items)
        current = next((text for text, status in self._items if status == "in_progress"), None)
        current = current or next((text for text, status in self._items if status != "done"), "")
        lines = [
            Content.assemble(
                ("Plan ", "bold"),
                (f"{n_done}/{len(self._items)}  ", "$foreground 60%"),
                "" if self._unfolded else one_line(current, 200),
            )
        ]
        if self._unfolded:
            for text, status in self._items:
                glyph, color = _TODO_GLYPHS.get(status, _TODO_GLYPHS["pending"])
                style = "$foreground 60%" if status == "done" else "bold" if status == "in_progress" else ""
                lines.append(Content.assemble((f"  {glyph} ", color), (one_line(text, 300), style)))
        self.set_text(Content("\n").join(lines))


class QueueLine(Changing):
    """Messages that wait: for the model's next step, or for the end of the turn."""

    def __init__(self) -> None:
        super().__init__("queue")
        self.display = False

    def set_queue(self, steering: list[str], queued: list[str]) -> None:
        """One line each, in the order in which they will be read."""
        self.display = bool(steering or queued)
        rows = [*(("next step", text) for text in steering), *(("queued", text) for text in queued)]
        lines = [Content.assemble((f"{when}  ", _FAINT), one_line(text, 300)) for when, text in rows]
        self.set_text(Content("\n").join(lines))


@dataclass(frozen=True, slots=True)
class StatusPart:
    """A piece of the status line; of those that do not all fit, the lower `rank` stays."""

    text: str
    style: str
    rank: int
    on_right: bool = False


def status_parts(info: HostInfo, story: Story, meter: Meter) -> list[StatusPart]:
    """Mode, model and sandbox on the left; context and speed on the right; in the order in which they stand."""
    usage = story.usage
    mode = story.mode or info.mode
    sandbox = "no sandbox" if info.sandbox == "none" else f"sandbox {info.sandbox}" if info.sandbox else ""
    parts = [
        StatusPart(f"mode {one_line(mode)}", "$accent" if mode == "auto" else "", 0),
        StatusPart(one_line(info.model.rpartition("/")[2] or info.model), "", 2),
    ]
    if sandbox:
        parts.append(StatusPart(one_line(sandbox), "$warning" if info.sandbox == "none" else _FAINT, 4))
    if info.n_jobs:
        parts.append(StatusPart(plural(info.n_jobs, "job"), "$accent", 3))
    limit = info.context_limit or (usage.context_limit if usage else 0)
    if limit:
        share = story.context_tokens / limit
        parts.append(StatusPart(f"context {100 * share:.0f}%", _context_style(share), 1, on_right=True))
    return parts + _speed_parts(usage, meter)


_FAINT = "$foreground 60%"


def _context_style(part: float) -> str:
    return "bold $error" if part > 0.9 else "$warning" if part > 0.75 else _FAINT


def _speed_parts(usage: UsageChanged | None, meter: Meter) -> list[StatusPart]:
    """Speed (now, else that of the last reply), first token, cache hits, guessed tokens."""
    parts: list[tuple[str, int]] = []
    if meter.is_live:
        parts.append((f"{meter.now.tokens_per_s:.0f} tok/s {sparkline(meter.speeds)}", 3))
    elif usage is not None and usage.completion_tokens >= MIN_TIMED_TOKENS:
        parts.append((f"{usage.tokens_per_second:.0f} tok/s {sparkline(meter.speeds)}".rstrip(), 3))
    if usage is not None:
        cached = 100 * usage.cached_tokens // max(1, usage.prompt_tokens)
        parts += [(f"first token {short_seconds(usage.time_to_first_token_s)}", 5), (f"cache {cached}%", 6)]
    if meter.view is not None and (rate := acceptance(meter.view)):
        parts.append((f"guessed {rate}", 7))
    return [StatusPart(text, _FAINT, rank, on_right=True) for text, rank in parts]


class StatusLine(Changing):
    """The last line: mode, model, sandbox on the left; context and speed on the right; what does not fit goes."""

    def __init__(self) -> None:
        super().__init__("status")
        self._shown: tuple[HostInfo, Story, Meter] | None = None

    def show(self, info: HostInfo, story: Story, meter: Meter) -> None:
        """Draw from the present state."""
        self._shown = (info, story, meter)
        self._draw()

    def on_resize(self) -> None:
        """Another width, another choice of parts."""
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        if self._shown is None or width <= 0:
            return
        parts = _that_fit(status_parts(*self._shown), width)
        left, right = (_joined([part for part in parts if part.on_right == side]) for side in (False, True))
        self.set_text(Content.assemble(left, " " * max(0, width - left.cell_length - right.cell_length), right))


def _that_fit(parts: list[StatusPart], width: int) -> list[StatusPart]:
    """The parts of the lowest ranks that fit; the first always stays."""
    fitting: list[StatusPart] = []
    used = _SIDES_GAP
    for part in sorted(parts, key=lambda part: part.rank):
        used += len(_JOINT) + cell_len(part.text)
        if used > width + len(_JOINT) and fitting:
            break
        fitting.append(part)
    return [part for part in parts if part in fitting]


def _joined(parts: list[StatusPart]) -> Content:
    return Content(_JOINT).join(Content.assemble((part.text, part.style)) for part in parts)

"""The lines around the composer: what is going on, the plan, queued messages, and the status line."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from pointcode_local.events import PrefillChanged, UsageChanged
from pointcode_local.frontend import HostInfo, Progress
from pointcode_local.render import one_line, short_bytes, short_count, short_seconds
from pointcode_local.tui.story import Story

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BAR_CELLS = 16
MIN_TIMED_TOKENS = 8  # the speed of a shorter reply is noise


def bar(part: float, cells: int = _BAR_CELLS) -> str:
    """A progress bar of `cells` cells for 0 ≤ part ≤ 1."""
    full = round(max(0.0, min(1.0, part)) * cells)
    return "━" * full + "─" * (cells - full)


def prefill_text(prefill: PrefillChanged) -> str:
    """How far the prompt is read, and how much of it came from the cache."""
    part = prefill.done_tokens / max(1, prefill.total_tokens)
    text = f"{bar(part)} {short_count(prefill.done_tokens)}/{short_count(prefill.total_tokens)} tokens"
    return text + (f", {short_count(prefill.cached_tokens)} from cache" if prefill.cached_tokens else "")


def progress_text(progress: Progress) -> str:
    """Opening or fetching a model: `Downloading … ━━━━── 210 MB/491 MB`."""
    text = one_line(progress.text)
    if progress.total:
        return (
            f"{text}  {bar(progress.done / progress.total)} {short_bytes(progress.done)}/{short_bytes(progress.total)}"
        )
    return text


class ActivityLine(Static):
    """One line above the composer while something runs; it is the only thing that moves on the screen."""

    def __init__(self, clock: Callable[[], float], *, animate: bool) -> None:
        super().__init__("", id="activity", markup=False)
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

    def set_activity(self, text: str, hint: str = "esc to stop") -> None:
        """Show `text`; "" hides the line and resets its clock."""
        if not text:
            self._since = None
        elif self._since is None:
            self._since = self._clock()
        self._text, self._hint = text, hint
        self.display = bool(text)
        self._draw()

    def _step(self) -> None:
        if self.display:
            self._tick += 1
            self._draw()

    def _draw(self) -> None:
        if self._since is None:
            return
        seconds = int(self._clock() - self._since)
        elapsed = f"{seconds} s" if 1 <= seconds < 120 else short_seconds(seconds) if seconds else ""
        self.update(
            Content.assemble(
                (_SPINNER[self._tick % len(_SPINNER)] + " ", "$accent"),
                self._text,
                (f"  {elapsed}" if elapsed else "", "$foreground 60%"),
                (f"  {self._hint}" if self._hint else "", "$foreground 42%"),
            )
        )


_TODO_GLYPHS = {"done": ("✓", "$success"), "in_progress": ("●", "$accent"), "pending": ("○", "$foreground 60%")}


class TodoPanel(Static):
    """The plan: the step in work and how far it is; all steps after Ctrl+T or a click."""

    def __init__(self) -> None:
        super().__init__("", id="todo", markup=False)
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
        self.update(Content("\n").join(lines))


class QueueLine(Static):
    """Messages that wait for the end of the turn."""

    def __init__(self) -> None:
        super().__init__("", id="queue", markup=False)
        self.display = False

    def set_queue(self, queued: list[str]) -> None:
        """One line each."""
        self.display = bool(queued)
        self.update(
            Content("\n").join(
                Content.assemble(("queued  ", "$foreground 60%"), one_line(text, 300)) for text in queued
            )
        )


def status_parts(info: HostInfo, story: Story, n_shown: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Left and right parts of the status line as (text, style), the most important first on each side.

    `n_shown` 0 shows the fewest parts, larger numbers show more.
    """
    usage = story.usage
    mode = story.mode or info.mode
    sandbox = "no sandbox" if info.sandbox == "none" else info.sandbox
    left = [
        (one_line(mode), "$accent" if mode == "auto" else ""),
        (one_line(info.model.rpartition("/")[2] or info.model), ""),
    ]
    if sandbox:
        left.append((one_line(sandbox), "$warning" if info.sandbox == "none" else "$foreground 60%"))
    limit = info.context_limit or (usage.context_limit if usage else 0)
    right = (
        [(f"context {100 * story.context_tokens // limit}%", _context_style(story.context_tokens / limit))]
        if limit
        else []
    )
    if usage is not None:
        right += _usage_parts(usage)
    return left[: 1 + n_shown], right[: 1 + n_shown]


def _context_style(part: float) -> str:
    return "bold $error" if part > 0.9 else "$warning" if part > 0.75 else "$foreground 60%"


def _usage_parts(usage: UsageChanged) -> list[tuple[str, str]]:
    cached = 100 * usage.cached_tokens // max(1, usage.prompt_tokens)
    speed = f"{usage.tokens_per_second:.0f} tok/s"
    return [
        *([(speed, "$foreground 60%")] if usage.completion_tokens >= MIN_TIMED_TOKENS else []),
        (f"first token {short_seconds(usage.time_to_first_token_s)}", "$foreground 60%"),
        (f"cache {cached}%", "$foreground 60%"),
    ]


class StatusLine(Static):
    """The last line: mode, model, sandbox on the left; context and speed on the right; what does not fit goes."""

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._shown: tuple[HostInfo, Story] | None = None

    def show(self, info: HostInfo, story: Story) -> None:
        """Draw from the present state."""
        self._shown = (info, story)
        self._draw()

    def on_resize(self) -> None:
        """Another width, another choice of parts."""
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        if self._shown is None or width <= 0:
            return
        info, story = self._shown
        for n_shown in range(4, -1, -1):
            left, right = (_joined(side) for side in status_parts(info, story, n_shown))
            gap = width - left.cell_length - right.cell_length
            if gap >= 2:
                self.update(Content.assemble(left, " " * gap, right))
                return
        self.update(Content(one_line(story.mode or info.mode, width)))


def _joined(parts: list[tuple[str, str]]) -> Content:
    return Content(" · ").join(Content.assemble(part) for part in parts)

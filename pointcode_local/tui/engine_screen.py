"""`/engine`: what the engine in this process does at this moment."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from pointcode_local.engine_text import EngineLine, engine_lines, request_text
from pointcode_local.frontend import EngineRequest, PagePool, Timeline
from pointcode_local.tui.meter import SAMPLE_S, Meter
from pointcode_local.tui.panel import Panel
from pointcode_local.tui.status import bar
from pointcode_local.tui.timeline import timeline_lines

_NAME_CELLS = 10
_MEANING_FROM = 66  # cells of the panel
_MEANING_AT = 46
_FAINT = "$foreground 50%"
NO_ENGINE = "The model does not run in this process, so there is nothing to see here: its server has the figures."


class EngineScreen(Panel):
    """Live figures, twice a second while it is open."""

    def __init__(self, meter: Meter, look: Callable[[], None], trace: Timeline | None, *, animate: bool) -> None:
        super().__init__()
        self._trace = trace
        self._meter = meter
        self._look = look
        self._is_live = animate

    def on_mount(self) -> None:
        """Look at once, then regularly. (Textual also calls the base class's handler.)"""
        self._look()
        if self._is_live:
            self.set_interval(SAMPLE_S, self.refresh_figures)

    def refresh_figures(self) -> None:
        """Look at the engine and draw it."""
        self._look()
        self.redraw()

    def lines(self, width: int) -> list[Content]:
        """Title, figures, requests."""
        title = self.title_line("Engine", "esc closes")
        view = self._meter.view
        if view is None:
            return [title, Content(""), *Content(NO_ENGINE).wrap(width), *self._timeline(width)]
        meter = self._meter
        lines = [title, Content("")]
        for line in engine_lines(view, meter.now, meter.since_start, meter.speeds):
            lines += _figure(line, width)
            if line.name == "KV cache":
                lines.append(_indented(_pages(view.pools[0], min(40, width - _NAME_CELLS - 2)), ""))
        lines += [_request(request, width) for request in view.requests]
        return lines + self._timeline(width)

    def _timeline(self, width: int) -> list[Content]:
        if self._trace is None:
            return []
        return [Content(""), *timeline_lines(self._trace, width, colours=not self.app.no_color)]


def _figure(line: EngineLine, width: int) -> list[Content]:
    """The figure, with its meaning beside it where there is room, else below; narrow screens show the figure alone."""
    head = Content.assemble((f"{line.name:<{_NAME_CELLS}}", "$foreground 60%"), line.text)
    if not line.meaning or width < _MEANING_FROM:
        return [head]
    gap = max(2, _MEANING_AT - head.cell_length)
    if head.cell_length + gap + len(line.meaning) > width:
        return [head, _indented(line.meaning, _FAINT)]
    return [Content.assemble(head, " " * gap, (line.meaning, _FAINT))]


def _indented(text: str, style: str) -> Content:
    return Content.assemble(" " * _NAME_CELLS, (text, style))


def _pages(pool: PagePool, cells: int) -> str:
    n_used = round(pool.used / max(1, pool.total) * cells)
    n_kept = round(pool.cached / max(1, pool.total) * cells)
    n_used, n_kept = max(n_used, pool.used > 0), max(n_kept, pool.cached > 0)
    return "█" * n_used + "▒" * n_kept + "░" * max(0, cells - n_used - n_kept)


def _request(request: EngineRequest, width: int) -> Content:
    text = request_text(request)
    if request.state == "reading" and width >= _MEANING_FROM:
        text += "  " + bar(request.done_tokens / max(1, request.prompt_tokens))
    return _indented(text, "$accent" if request.state == "writing" else "$foreground 60%")

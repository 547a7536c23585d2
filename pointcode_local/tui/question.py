"""The panel of the open question, above the composer, and which of the two has the keys."""

from __future__ import annotations

from collections.abc import Callable

from textual.containers import Vertical

from pointcode_local.tui.composer import Choices, Composer
from pointcode_local.tui.dialogs import AskPanel, make_panel
from pointcode_local.tui.story import Ask


class OpenQuestion:
    """At most one panel is shown, in `bottom` before `choices`. `announce` is called for each that comes up."""

    def __init__(
        self,
        bottom: Vertical,
        choices: Choices,
        composer: Composer,
        clock: Callable[[], float],
        announce: Callable[[], None],
    ) -> None:
        self.panel: AskPanel | None = None
        self._bottom = bottom
        self._choices = choices
        self._composer = composer
        self._clock = clock
        self._announce = announce

    async def show(self, ask: Ask | None, mode: str) -> None:
        """Show this question, or give the keys back to the composer where there is none."""
        if self.panel is not None and (ask is None or self.panel.call_id != ask.call_id):
            panel, self.panel = self.panel, None
            await panel.remove()
            self._composer.focus()
        if ask is not None and self.panel is None:
            self.panel = make_panel(ask, self._clock, mode, lambda: self._composer.text)
            await self._bottom.mount(self.panel, before=self._choices)
            self._announce()

    def message_changed(self) -> None:
        """Once the message is sent or wiped out, the keys are for the open question again."""
        if self.panel is not None:
            is_over = self._composer.app.focused is self._composer and not self._composer.text
            self.panel.take_keys() if is_over else self.panel.check_armed()

    def take_keys(self) -> None:
        """The open question has the keys, whatever has been written."""
        if self.panel is not None:
            self.panel.take_keys(is_meant=True)

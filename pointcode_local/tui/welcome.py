"""The first screen: what this is, where it works, and what to type."""

from __future__ import annotations

from pathlib import Path

from textual.content import Content
from textual.widgets import Static

from pointcode_local.complete import MODE_MEANING
from pointcode_local.frontend import HostInfo
from pointcode_local.render import one_line

NARROW_BELOW = 70  # cells
_FIRST_EXAMPLES = ("Create hello.py that prints a table of squares",)
_EXAMPLES = (
    "Explain how this project is laid out",
    *_FIRST_EXAMPLES,
    "Run the tests and fix what fails",
)


class Welcome(Static):
    """Shown while the conversation is empty."""

    def __init__(self) -> None:
        super().__init__("", id="welcome", markup=False)
        self._info: HostInfo | None = None

    def on_resize(self) -> None:
        """A narrow screen gets fewer words."""
        if self._info is not None:
            self.show(self._info)

    def show(self, info: HostInfo) -> None:
        """Draw for this host."""
        self._info = info
        sandbox = (
            ("no sandbox on this machine: commands run with your rights", "$warning")
            if info.sandbox == "none"
            else (f"what runs unasked is confined ({one_line(info.sandbox)})", "$foreground 60%")
        )
        is_narrow = self.app.size.width < NARROW_BELOW
        mode = "" if is_narrow else MODE_MEANING.get(info.mode, "")
        sandbox_row = Content.assemble(("sandbox  ".rjust(10), "$foreground 60%"), sandbox)
        examples = _examples(info.cwd)[: 1 if is_narrow else None]
        rows: list[Content] = [
            Content.assemble(("pointcode", "bold $primary"), (f" {info.version}".rstrip(), "$foreground 60%")),
            Content(_where(info)),
            Content(""),
            _row("folder", one_line(str(info.cwd))),
            _row("model", f"{one_line(info.model)} ({one_line(info.backend)})"),
            _row("mode", f"{one_line(info.mode)}: {mode}" if mode else one_line(info.mode)),
            *([] if is_narrow or not info.sandbox else [sandbox_row]),
            Content(""),
            Content.assemble(("Say what you want done, for example", "$foreground 60%")),
            *(Content.assemble(("  › ", "$primary"), example) for example in examples),
            Content(""),
            Content.assemble(
                ("@", "bold"), (" names a file   ", "$foreground 60%"),
                ("!", "bold"), (" runs a command   ", "$foreground 60%"),
                ("/help", "bold"), (" shows everything else", "$foreground 60%"),
            ),
        ]  # fmt: skip
        self.update(Content("\n").join(rows))


def _examples(folder: Path) -> tuple[str, ...]:
    """What makes sense here: nothing can be explained in an empty folder."""
    try:
        is_empty = next(folder.iterdir(), None) is None
    except OSError:
        is_empty = False
    return _FIRST_EXAMPLES if is_empty else _EXAMPLES


def _where(info: HostInfo) -> str:
    if info.backend.startswith(("http://", "https://")):
        return f"A coding assistant. Its model runs at {one_line(info.backend)}."
    return "A coding assistant whose model runs on this machine. Nothing you write leaves it."


def _row(name: str, value: str) -> Content:
    return Content.assemble((f"{name}  ".rjust(10), "$foreground 60%"), value)

"""Our colour themes and the choice between them. Without colours (NO_COLOR) the terminal's own are used."""

from __future__ import annotations

import os

from textual.theme import Theme

DARK = Theme(
    name="pointcode-dark",
    primary="#8fb4e8",
    secondary="#b7a2d9",
    accent="#e3b670",
    warning="#e3b670",
    error="#e58a82",
    success="#93c48f",
    foreground="#d5d8de",
    background="#15171b",
    surface="#1b1e23",
    panel="#23272d",
    dark=True,
    variables={
        "footer-key-foreground": "#8fb4e8",
        "input-selection-background": "#8fb4e8 30%",
        "scrollbar": "#30353d",
        "scrollbar-background": "#15171b",
        "scrollbar-hover": "#424953",
        "scrollbar-background-hover": "#15171b",
        "scrollbar-active": "#5a6370",
        "scrollbar-background-active": "#15171b",
    },
)
LIGHT = Theme(
    name="pointcode-light",
    primary="#2d5fa8",
    secondary="#6b4fa0",
    accent="#8f5a00",
    warning="#8f5a00",
    error="#b3352a",
    success="#2f7a33",
    foreground="#2a2d33",
    background="#fbfaf8",
    surface="#f3f1ed",
    panel="#e9e6e0",
    dark=False,
    variables={
        "input-selection-background": "#2d5fa8 25%",
        "scrollbar": "#d3cfc7",
        "scrollbar-background": "#fbfaf8",
        "scrollbar-hover": "#b9b4aa",
        "scrollbar-background-hover": "#fbfaf8",
        "scrollbar-active": "#9a958b",
        "scrollbar-background-active": "#fbfaf8",
    },
)
DARK_CONTRAST = Theme(
    name="pointcode-dark-contrast",
    primary="#9fd0ff",
    secondary="#e0b0ff",
    accent="#ffd75f",
    warning="#ffd75f",
    error="#ff8a80",
    success="#7dff8a",
    foreground="#ffffff",
    background="#000000",
    surface="#101010",
    panel="#1c1c1c",
    dark=True,
)
LIGHT_CONTRAST = Theme(
    name="pointcode-light-contrast",
    primary="#003a8c",
    secondary="#4b0082",
    accent="#6b3f00",
    warning="#6b3f00",
    error="#9b0000",
    success="#005a00",
    foreground="#000000",
    background="#ffffff",
    surface="#f2f2f2",
    panel="#e4e4e4",
    dark=False,
)
THEMES = {
    "dark": DARK,
    "light": LIGHT,
    "dark-contrast": DARK_CONTRAST,
    "light-contrast": LIGHT_CONTRAST,
}


def no_color() -> bool:
    """Whether the person asked programs not to use colours (any non-empty value counts: https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def choose_theme(wanted: str = "auto") -> str:
    """The Textual name of the theme to start with; `wanted` is "auto" or a key of THEMES.

    "auto" reads COLORFGBG, which many terminals set to "foreground;background" as ANSI colour numbers.
    """
    if no_color():
        return "ansi-dark"
    if wanted == "auto":
        background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
        wanted = "light" if background in ("7", "15") else "dark"
    return THEMES.get(wanted, DARK).name

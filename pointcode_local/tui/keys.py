"""The keys that work wherever the focus is."""

from __future__ import annotations

from textual.binding import Binding, BindingType

KEYS: list[BindingType] = [
    Binding("ctrl+c", "interrupt", priority=True, show=False),
    Binding("ctrl+q", "leave", priority=True, show=False),
    Binding("shift+tab", "next_mode", priority=True, show=False),
    Binding("ctrl+o", "details", priority=True, show=False),
    Binding("ctrl+t", "plan", priority=True, show=False),
    Binding("ctrl+z", "to_shell", priority=True, show=False),
    Binding("ctrl+g", "editor", priority=True, show=False),
    Binding("pageup", "page(-1)", priority=True, show=False),
    Binding("pagedown", "page(1)", priority=True, show=False),
    Binding("ctrl+home", "to_edge(-1)", priority=True, show=False),
    Binding("ctrl+end", "to_edge(1)", priority=True, show=False),
    Binding("escape", "stop", show=False),
]

"""A tool of the editor in the place of one of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointcode_local.tools.base import Access, FileChange, Tool, ToolContext


class StandIn:
    """Looks to model and person like `own`, which it replaces; subclasses say how it runs."""

    def __init__(self, own: Tool) -> None:
        self._own = own

    @property
    def name(self) -> str:
        """Its name for the model."""
        return self._own.name

    @property
    def description(self) -> str:
        """What the model reads of it."""
        return self._own.description

    @property
    def parameters(self) -> Mapping[str, object]:
        """JSON schema of the arguments."""
        return self._own.parameters

    @property
    def access(self) -> Access:
        """What permission it needs."""
        return self._own.access

    def title(self, arguments: Mapping[str, Any]) -> str:
        """One line for people."""
        return self._own.title(arguments)

    def paths(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The paths that this call touches."""
        return self._own.paths(arguments)

    def preview(self, context: ToolContext, arguments: Mapping[str, Any]) -> tuple[FileChange, ...]:
        """What the call would change, as far as it is known."""
        return self._own.preview(context, arguments)

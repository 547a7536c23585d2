"""What a permission policy says about a call, and what is asked of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pointcode_local.tools.base import Tool


@dataclass(frozen=True, slots=True)
class Decision:
    """May a call run? `rule` is what "always" would store, "" when it cannot be stored. `agreed`: a rule of the
    person allows it; it would not be allowed without. `secret`: the reason names files that may hold secrets.
    `paths`: where the call's paths lead, links resolved; None: not known."""

    verdict: Literal["allow", "ask", "deny"]
    reason: str = ""
    rule: str = ""
    agreed: bool = False
    secret: bool = False
    paths: frozenset[Path] | None = field(default=None, compare=False)


class Policy(Protocol):
    """Decides on calls. `remember` stores an "always", `allow_for_session` keeps a rule in memory."""

    mode: str

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Decision:
        """May this call run now?"""
        ...

    def remember(self, rule: str) -> None:
        """Allow what `rule` covers from now on; raises OSError or ValueError when only this session will know."""
        ...

    def allow_for_session(self, rule: str) -> None:
        """Allow what `rule` covers until the session is left; raises ValueError when it is malformed."""
        ...

    def may_read(self, path: Path) -> bool:
        """May this file be shown to the model without asking (for `@path` mentions)?"""
        ...

"""Puts the parts together: settings, tools, permission policy, model. Front ends get the result as a `Host`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pointcode_local.config import ConfigError, Places, Settings, find_places, load_settings
from pointcode_local.engine.types import ChatModel
from pointcode_local.exits import UsageError
from pointcode_local.frontend import OnProgress, Progress
from pointcode_local.policy import rule_problem


@dataclass(frozen=True, slots=True)
class Setup:
    """What a start needs: settings, where things are kept, the folder, and which tools are offered (None: all)."""

    settings: Settings
    places: Places
    cwd: Path
    allowed_tools: tuple[str, ...] | None = None


def prepare(options: Any, environment: Mapping[str, str]) -> Setup:
    """Settings from files, environment and flags. Raises UsageError."""
    places = find_places(environment)
    flags = {
        "model": options.model,
        "backend": options.backend,
        "endpoint": options.endpoint,
        "permission_mode": getattr(options, "permission_mode", None),
        "max_turns": getattr(options, "max_turns", None),
    }
    try:
        settings = load_settings(places, options.cwd, environment, flags, rule_problem)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    allowed = getattr(options, "allowed_tools", None)
    return Setup(settings, places, options.cwd, tuple(allowed) if allowed is not None else None)


def pick_tools(tools: Sequence[Any], allowed: tuple[str, ...] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The tools to offer by name, in their fixed order, and why the others are not. Raises UsageError."""
    known = {tool.name: tool for tool in tools}
    if allowed is None:
        return known, {}
    for name in allowed:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
            raise UsageError(f"--allowed-tools: unknown tool {name!r}; {hint}")
    withheld = {name: f"{name} is not among --allowed-tools ({', '.join(allowed) or 'none'})" for name in known}
    return {n: t for n, t in known.items() if n in allowed}, {n: why for n, why in withheld.items() if n not in allowed}


def system_prompt(*, small: bool, blocks: bool = False) -> str:
    """The system prompt for large or small models, or for the edit menu "blocks"."""
    name = "blocks.md" if blocks else "small.md" if small else "system.md"
    path = Path(__file__).parent / "prompts" / name
    return path.read_text(encoding="utf-8").strip()


async def open_model(settings: Settings, places: Places, on_progress: OnProgress) -> ChatModel:
    """The model that the settings ask for: an endpoint's, a running server's of this machine, or one loaded here.

    Raises EngineError.
    """
    if settings.endpoint:
        from pointcode_local.endpoint import EndpointModel

        on_progress(Progress(f"asking {settings.endpoint}"))
        model = EndpointModel(
            settings.endpoint,
            model=settings.model,
            api_key=settings.api_key,
            stall_timeout_s=settings.stall_timeout_s,
        )
        await model.open()
        return model
    from pointcode_local.attach import attach
    from pointcode_local.local_models import open_local_model

    attached = await attach(places, settings, os.environ)
    if attached is not None:
        on_progress(Progress(f"attached to the running server of {attached.name}"))
        return attached
    return await open_local_model(settings, places, on_progress)


def models_to_choose(settings: Settings) -> tuple[str, ...]:
    """Names that `use_model` can open now: those on disk; at an endpoint, its own."""
    if settings.endpoint:
        return (settings.model,) if settings.model else ()
    from pointcode_local.local_models import known_models

    return known_models()

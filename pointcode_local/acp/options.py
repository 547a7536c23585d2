"""What an editor can choose in a session: the permission mode (as a mode and as an option) and the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    AvailableCommandsUpdate,
    SessionConfigOptionBoolean,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionMode,
    SessionModeState,
    UnstructuredCommandInput,
)

from pointcode_local import complete
from pointcode_local.complete import MODE_MEANING, SlashCommand
from pointcode_local.events import MODES, Mode

ConfigOption = SessionConfigOptionSelect | SessionConfigOptionBoolean
# with the other front ends
_SHARED = ("compact", "undo", "redo", "diff", "map", "mcp", "jobs", "mode", "model", "status")
_NAMES: dict[Mode, str] = {"ask": "Ask", "accept-edits": "Accept edits", "plan": "Plan", "auto": "Auto"}
COMMANDS = (
    *(command for command in complete.COMMANDS if command.name in _SHARED),
    SlashCommand("help", "these commands"),
)


def mode_of(text: str) -> Mode | None:
    """The mode of this name."""
    return next((mode for mode in MODES if mode == text), None)


def mode_state(current: str) -> SessionModeState:
    """All modes and the one in force."""
    modes = [SessionMode(id=mode, name=_NAMES[mode], description=MODE_MEANING[mode]) for mode in MODES]
    return SessionModeState(current_mode_id=current, available_modes=modes)


def config_options(mode: str, model: str, models: Sequence[str]) -> list[ConfigOption]:
    """The selectors of a session; the model's only where there is more than one."""
    modes = [SessionConfigSelectOption(value=m, name=_NAMES[m], description=MODE_MEANING[m]) for m in MODES]
    options: list[ConfigOption] = [_select("mode", "Mode", "What runs without asking", mode, modes)]
    names = list(dict.fromkeys([*models, model]))
    choices = [SessionConfigSelectOption(value=name, name=name) for name in names if name]
    if choices:
        options.append(_select("model", "Model", "What answers", model, choices))
    return options


def _select(
    id: Literal["mode", "model"],  # the protocol's name
    name: str,
    description: str,
    current: str,
    choices: list[SessionConfigSelectOption],
) -> SessionConfigOptionSelect:
    return SessionConfigOptionSelect.model_validate(
        {
            "type": "select",
            "id": id,
            "name": name,
            "description": description,
            "category": id,
            "currentValue": current,
            "options": choices,
        }
    )


def commands_update(own: Sequence[SlashCommand]) -> AvailableCommandsUpdate:
    """The slash commands, with those that the person and the project wrote."""
    return AvailableCommandsUpdate(
        session_update="available_commands_update",
        available_commands=[
            AvailableCommand(name=c.name, description=c.summary, input=_hint(c.argument)) for c in (*COMMANDS, *own)
        ],
    )


def _hint(argument: str) -> AvailableCommandInput | None:
    return AvailableCommandInput(root=UnstructuredCommandInput(hint=argument.strip("[]"))) if argument else None


def command_in(text: str, own: Sequence[SlashCommand]) -> tuple[str, str] | None:
    """(name, argument) when a prompt is one of the commands; `/etc/hosts is wrong` is none."""
    head, *rest = text.strip().split(maxsplit=1)
    known = any(head == f"/{command.name}" for command in (*COMMANDS, *own))
    return (head[1:], rest[0] if rest else "") if known else None


def is_built_in(name: str) -> bool:
    """Whether the front end itself runs this command; the others make a prompt."""
    return any(command.name == name for command in COMMANDS)

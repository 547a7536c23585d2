"""What the slash commands of an editor do; each answers with a text."""

from __future__ import annotations

from typing import Protocol

from pointcode_local.acp.options import COMMANDS, mode_of
from pointcode_local.acp.tool_calls import fenced
from pointcode_local.complete import MODE_MEANING, commands_help
from pointcode_local.events import MODES, Mode
from pointcode_local.frontend import EditorHost, HostError
from pointcode_local.jobs import jobs_command
from pointcode_local.status import status_text
from pointcode_local.unified import unified_diff


class Chooser(Protocol):
    """The part of a session that commands change."""

    @property
    def mode(self) -> str: ...

    def set_mode(self, mode: Mode) -> None:
        """Change the permission mode."""
        ...

    async def tell_options(self, *, mode_too: bool) -> None:
        """Tell the editor."""
        ...

    async def change_model(self, name: str) -> None:
        """Go on with another model. Raises HostError."""
        ...


async def run_command(session: Chooser, host: EditorHost, name: str, argument: str) -> str:
    """Run a known command; an expected failure is a text too."""
    try:
        match name:
            case "undo":
                return await host.undo()
            case "redo":
                return await host.redo()
            case "diff":
                return _block("".join(map(unified_diff, host.changes())), "diff") or "Nothing was changed."
            case "map":
                return _block(await host.repo_map()) or "There is nothing to map."
            case "mcp":
                return _block(host.servers()) or "There are no MCP servers."
            case "jobs":
                return _block(await jobs_command(host, argument))
            case "mode":
                return await _mode(session, argument)
            case "model":
                return await _model(session, host, argument)
            case "status":
                return _block(await status_text(host))
            case _:
                return _block(commands_help((*COMMANDS, *host.commands())))
    except HostError as error:
        return f"That did not work: {error}"


def _block(text: str, language: str = "") -> str:
    """Text as a Markdown block of code; "" stays empty."""
    block = fenced(text)
    ticks = block[: block.index("\n")]
    return f"{ticks}{language}{block.removeprefix(ticks)}" if text.strip() else ""


async def _mode(session: Chooser, argument: str) -> str:
    mode = mode_of(argument)
    if mode is None:
        lines = "\n".join(f"- `{m}`: {MODE_MEANING[m]}{' (now)' if m == session.mode else ''}" for m in MODES)
        return f"There is no mode {argument!r}.\n{lines}" if argument else lines
    session.set_mode(mode)
    await session.tell_options(mode_too=True)
    return f"The mode is now `{mode}`: {MODE_MEANING[mode]}."


async def _model(session: Chooser, host: EditorHost, argument: str) -> str:
    if not argument:
        names = list(dict.fromkeys([host.info.model, *host.models()]))
        return "\n".join(f"- `{name}`{' (in use)' if name == host.info.model else ''}" for name in names)
    await session.change_model(argument)
    await session.tell_options(mode_too=False)
    return f"The model is now `{host.info.model}`."

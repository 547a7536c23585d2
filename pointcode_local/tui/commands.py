"""What the `/` commands do on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pointcode_local.complete import MODE_MEANING
from pointcode_local.events import MODES, SessionInfo
from pointcode_local.frontend import Host, HostError
from pointcode_local.jobs import jobs_command
from pointcode_local.render import one_line, plural, short_seconds
from pointcode_local.status import status_text
from pointcode_local.tui.help import HelpScreen
from pointcode_local.tui.picker import Pick, Picker
from pointcode_local.tui.story import AnswerRecord
from pointcode_local.tui.theme import THEMES
from pointcode_local.tui.turns import Turns

if TYPE_CHECKING:
    from pointcode_local.tui.app import PointcodeApp


class CommandRunner:
    """Runs one parsed command against the app and its host."""

    def __init__(self, app: PointcodeApp, host: Host, turns: Turns, send_prompt: Callable[[str], None]) -> None:
        self._app = app
        self._host = host
        self._turns = turns
        self._send_prompt = send_prompt

    async def run(self, name: str, argument: str) -> None:
        """Do it; an expected failure becomes a notice."""
        try:
            await self._do(name, argument)
        except HostError as error:
            await self._app.note(str(error), "error")

    async def _do(self, name: str, argument: str) -> None:
        match name:
            case "help":
                self._app.push_screen(HelpScreen(self._host.commands()))
            case "clear":
                self._app.use_agent(await self._host.new_session())
                await self._app.replay()
            case "compact":
                self._compact()
            case "resume":
                await self._resume(argument)
            case "undo":
                await self._app.note(await self._host.undo())
            case "name":
                await self._app.note(self._host.name_session(argument))
            case "redo":
                await self._app.note(await self._host.redo())
            case "diff":
                await self._app.show_changes(self._host.changes())
            case "mcp":
                await self._app.note(self._host.servers() or "There are no MCP servers in the settings.")
            case "jobs":
                await self._app.note(await jobs_command(self._host, argument))
            case "status":
                await self._app.note(await status_text(self._host))
            case "map":
                await self._app.note(await self._host.repo_map())
            case "mode":
                await self._mode(argument)
            case "model":
                await self._model(argument)
            case "engine":
                self._app.show_engine()
            case "copy":
                await self._copy()
            case "theme":
                await self._theme(argument)
            case "quit":
                await self._app.action_leave()
            case _:
                self._send_prompt(self._host.expand(name, argument))
                self._app.show_state()

    def _compact(self) -> None:
        if (agent := self._turns.agent) is not None:
            self._turns.start(agent, agent.compact())
            self._app.show_state()

    async def _resume(self, session_id: str) -> None:
        session_id = session_id or await self._pick_session()
        if not session_id:
            return
        self._app.use_agent(await self._host.resume(session_id))
        await self._app.replay()

    async def _pick_session(self) -> str:
        sessions = self._host.sessions()
        if not sessions:
            await self._app.note("There are no earlier sessions in this folder.")
            return ""
        picks = [Pick(s.id, one_line(s.title) or s.id, session_detail(s, self._app.wall_clock())) for s in sessions]
        return await self._app.push_screen_wait(Picker("Resume a session", picks))

    async def _mode(self, argument: str) -> None:
        if not argument:
            argument = await self._app.push_screen_wait(
                Picker("Permission mode", [Pick(m, m, MODE_MEANING[m]) for m in MODES], current=self._app.mode)
            )
        if not argument:
            return
        if argument not in MODES:
            await self._app.note(f"There is no mode “{argument}”. Modes: {', '.join(MODES)}.", "warning")
            return
        self._app.set_mode(argument)

    async def _model(self, argument: str) -> None:
        name = argument
        if not name:
            models = self._host.models()
            if not models:
                await self._app.note(f"The model is {self._host.info.model}; no other is on this machine.")
                return
            current = self._host.info.model
            picks = [Pick(m, m, "in use" if m == current else "") for m in models]
            name = await self._app.push_screen_wait(Picker("Model", picks, current=current))
        if name and name != self._host.info.model:
            await self._app.open_model(name)

    async def _copy(self) -> None:
        answer = next((r for r in reversed(self._app.story.records) if isinstance(r, AnswerRecord)), None)
        if answer is None:
            await self._app.note("There is no answer to copy yet.")
            return
        self._app.copy_to_clipboard(answer.text)
        self._app.notify(f"{plural(len(answer.text), 'character')} copied", markup=False)

    async def _theme(self, argument: str) -> None:
        if argument and argument not in THEMES:
            await self._app.note(f"There are these themes: {', '.join(THEMES)}.", "warning")
            return
        before = self._app.theme
        current = next((name for name, theme in THEMES.items() if theme.name == before), "")
        chosen = argument
        if not chosen:
            picks = [Pick(name, name, _THEME_MEANING[name]) for name in THEMES]
            picker = Picker("Colours", picks, current=current, on_mark=self._show_theme)
            chosen = await self._app.push_screen_wait(picker)
        self._app.theme = THEMES[chosen].name if chosen else before
        if chosen and chosen != current:
            await self._app.note(f"Colours: {chosen}. To keep them: pointcode config set theme {chosen}")

    def _show_theme(self, name: str) -> None:
        self._app.theme = THEMES[name].name


_THEME_MEANING = {
    "dark": "light text on dark",
    "light": "dark text on light",
    "dark-contrast": "white on black",
    "light-contrast": "black on white",
}


def session_detail(session: SessionInfo, now_s: float) -> str:
    """How long ago and how much: `3 h ago, 12 prompts`."""
    ago = max(0.0, now_s - session.updated_s)
    if ago < 120:
        text = f"{short_seconds(float(int(ago)))} ago" if ago >= 1 else "now"
    elif ago < 7200:
        text = f"{ago / 60:.0f} min ago"
    elif ago < 172_800:
        text = f"{ago / 3600:.0f} h ago"
    else:
        text = f"{ago / 86_400:.0f} days ago"
    return f"{text}, {plural(session.n_prompts, 'prompt')}"
